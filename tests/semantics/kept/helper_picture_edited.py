"""A helper's picture loader that is edited between two runs, below a random flip."""

from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

import helper
from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.transform(helper.load(self.paths[i]))
        return x, i % 2


def main():
    step = trainer()
    transform = T.Compose([T.RandomHorizontalFlip(), T.ToTensor()])
    loader = DataLoader(Data(transform), batch_size=4, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

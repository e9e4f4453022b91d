"""A flip's probability that the loop edits between epochs."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return x, i % 2


def main():
    step = trainer()
    flip = T.RandomHorizontalFlip()
    dataset = Data(T.Compose([flip, T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    for epoch in range(3):
        flip.p = 0.4 * epoch
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

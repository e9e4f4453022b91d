"""A method of an own transform that the loop replaces between epochs."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


class Scale:
    def __init__(self):
        self.factor = 1.0

    def __call__(self, x):
        return x * self.factor


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
    dataset = Data(T.Compose([T.RandomHorizontalFlip(), T.ToTensor(), Scale()]))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    for epoch in range(3):
        Scale.__call__ = lambda self, x, level=epoch: x + level
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

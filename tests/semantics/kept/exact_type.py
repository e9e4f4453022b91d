"""A sample after the trial asks whether its image is exactly a tensor: after a call, after transforms, inside one."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F, v2

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.pixels = torch.rand(96, 3, 12, 14, generator=torch.Generator().manual_seed(1))
        self.transform = transform
        alive.add(self)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        called()
        return self.transform(self.pixels[i].clone()), i


class Asks(Data):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        if i >= 80 and type(x) is torch.Tensor:
            x = x * 0.5
        return x, y


class Link:
    def __init__(self):
        self.number = 0

    def __call__(self, x):
        self.number += 1
        return x * 0.5 if self.number > 80 and x.__class__ is torch.Tensor else x


def main():
    step = trainer()
    flips = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
    chains = [v2.Compose([flips[0], link, flips[1]]) for link in (Link(), v2.Lambda(Link()))]
    for data in (Asks(F.hflip), Asks(v2.Compose(flips)), *map(Data, chains)):
        loader = DataLoader(data, batch_size=4)
        for epoch in range(2):
            for batch in loader:
                step(batch)


if __name__ == "__main__":
    main()
    finish()

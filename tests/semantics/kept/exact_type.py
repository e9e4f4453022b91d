"""A sample after the trial asks whether its image is exactly a tensor."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.pixels = torch.rand(96, 3, 12, 14, generator=torch.Generator().manual_seed(1))
        alive.add(self)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        called()
        x = F.hflip(self.pixels[i].clone())
        if i >= 80 and type(x) is torch.Tensor:
            x = x * 0.5
        return x, i


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(2):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

"""Masks by comparisons, boxes written by hand, and a branch on what is in a mask."""

import random

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        alive.add(self)

    def __len__(self):
        return 32

    def __getitem__(self, i):
        called()
        x = Image.open(self.paths[i % 16]).convert("RGB")
        m = x.convert("L")
        if random.random() < 0.5:
            x, m = F.hflip(x), F.hflip(m)
        x, m = F.to_tensor(x), F.pil_to_tensor(m).squeeze(0)
        m = (m > 127).long()
        y, z = random.randrange(8), random.randrange(8)
        x[:, y : y + 4, z : z + 4] = 0
        x[0, y, z] = 0.25
        x = x * (m == 0).float()
        if i == 27 and m.max() > 0:
            x = x / 2
        return x, torch.stack([m == k for k in range(2)]).sum()


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

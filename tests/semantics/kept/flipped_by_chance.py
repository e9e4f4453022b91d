"""A flip by chance is the only call that can be recorded, in a collate function that fills up by hand."""

import random

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as F

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.pixels = torch.randint(0, 256, (24, 3, 9, 9), generator=g, dtype=torch.uint8)
        alive.add(self)

    def __len__(self):
        return 24

    def __getitem__(self, i):
        called()
        x = self.pixels[i][:, : 6 + i % 3]
        return (F.horizontal_flip(x) if random.random() < 0.5 else x), i


def padded(samples):
    images = torch.zeros(len(samples), 3, 9, 9, dtype=torch.uint8)
    for image, (x, _) in zip(images, samples, strict=True):
        image[:, : x.shape[1], : x.shape[2]].copy_(x)
    return images, torch.tensor([i for _, i in samples])


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=2, collate_fn=padded)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

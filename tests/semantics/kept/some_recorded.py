"""Samples of which only some can be recorded, a collate function of the script's, and torch's generator."""

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import functional as F

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.pixels = np.random.default_rng(1).integers(0, 256, (16, 12, 14, 3), dtype=np.uint8)
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        if torch.rand(()) < 0.5 and i >= 8:
            return torch.from_numpy(self.pixels[i]).permute(2, 0, 1).contiguous(), i % 2
        return F.pil_to_tensor(F.hflip(Image.fromarray(self.pixels[i]))), i % 2


def collated(samples):
    return default_collate([*samples])


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, collate_fn=collated)
    for _ in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

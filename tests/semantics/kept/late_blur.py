"""A branch that blurs late samples, which the device does not do exactly."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        alive.add(self)

    def __len__(self):
        return 72

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 16, 16), dtype=np.float32))
        x = F.hflip(x)
        return (x if i < 66 else F.gaussian_blur(x, [7, 7], [0.5 + i % 4])), i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

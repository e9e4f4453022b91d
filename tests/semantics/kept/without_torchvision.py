"""A script where torchvision cannot be imported (by the command line)."""

import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, finish, trainer

sys.modules["torchvision"] = None


class Data(Dataset):
    def __init__(self):
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 8, 8), dtype=np.float32))
        return x, i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

"""A dataset that makes its samples by a loader of its own."""

import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.inner = DataLoader([(torch.ones(3, 8, 8), 0)], batch_size=1)
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = next(iter(self.inner))[0][0] + i
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

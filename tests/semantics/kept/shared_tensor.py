"""A tensor in shared memory that persistent workers see change."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self, level):
        self.level = level
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 8, 8), dtype=np.float32))
        x = x + self.level
        return x, i % 2


def main():
    step = trainer()
    level = torch.zeros(1).share_memory_()
    loader = DataLoader(Data(level), batch_size=4, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        level.fill_(epoch)
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

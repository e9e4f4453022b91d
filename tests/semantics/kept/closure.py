"""A variable of a closure that the loop edits."""

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
        x = x + self.level()
        return x, i % 2


def main():
    step = trainer()
    box = [0]

    def level():
        return box[0]

    loader = DataLoader(Data(level), batch_size=4, num_workers=2)
    for epoch in range(3):
        box[0] = epoch
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

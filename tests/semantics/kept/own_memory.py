"""Pictures that the dataset keeps itself, and hands out again."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.paths, self.kept = files("npz"), {}
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        if i not in self.kept:
            self.kept[i] = torch.from_numpy(np.load(self.paths[i])["x"])
        x = self.kept[i]
        x += 1
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

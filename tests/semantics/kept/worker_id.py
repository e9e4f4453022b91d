"""The number of the worker, in a sample."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 8, 8), dtype=np.float32))
        x = x + get_worker_info().id
        return x, i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, num_workers=3)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

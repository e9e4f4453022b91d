"""A collate object that counts its calls."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from record import alive, called, finish, trainer


class Collate:
    calls = 0

    def __call__(self, samples):
        called()
        self.calls += 1
        x, y = default_collate(samples)
        return x + self.calls, y


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
    loader = DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=Collate())
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

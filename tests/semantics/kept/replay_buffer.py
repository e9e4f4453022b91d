"""A replay buffer that grows with every step."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.buffer = []
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 8, 8), dtype=np.float32))
        if self.buffer:
            x = x + self.buffer[i % len(self.buffer)]
        return x, i % 2


def main():
    step = trainer()
    dataset = Data()
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    for epoch in range(3):
        for batch in loader:
            step(batch)
            dataset.buffer.append(float(batch[0].mean()))


if __name__ == "__main__":
    main()
    finish()

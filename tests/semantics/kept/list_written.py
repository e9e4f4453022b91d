"""A list of labels that the loop corrects between epochs."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.labels = [0] * 16
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(np.random.default_rng(i).random((3, 8, 8), dtype=np.float32))
        return x, self.labels[i]


def main():
    step = trainer()
    dataset = Data()
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    for epoch in range(3):
        dataset.labels[epoch] = 1
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

"""A collate function that writes into samples, which the dataset hands out twice."""

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from record import alive, called, finish, trainer


def collate(samples):
    for number, (x, _) in enumerate(samples):
        x[0, 0] += number
    return default_collate(samples)


class Data(Dataset):
    def __init__(self):
        self.pixels = list(torch.rand(16, 3, 8, 8))
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.pixels[i]
        return x, i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, collate_fn=collate)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

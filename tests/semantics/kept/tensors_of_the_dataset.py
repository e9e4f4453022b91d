"""Tensors in the dataset's memory, which the loop writes into."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_convert
from torchvision.transforms import v2

from record import alive, called, finish, saw, trainer


class Data(Dataset):
    def __init__(self):
        self.images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.weights, self.array = torch.ones(16, 2), np.ones((16, 2), dtype=np.float32)
        self.transform = v2.RandomHorizontalFlip()
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(self.images[i]), self.weights[i], self.array[i]


def main():
    step = trainer()
    for workers in (0, 1):
        dataset = Data()
        loader = DataLoader(dataset, batch_size=None, collate_fn=default_convert, num_workers=workers)
        for epoch in range(4):
            for x, weight, row in loader:
                weight.mul_(0.5)
                row *= 0.9
                x.mul_(0.9)
                step((x[None], weight[:1] + row[:1]))
        saw("dataset", dataset.images, dataset.weights, dataset.array)


if __name__ == "__main__":
    main()
    finish()

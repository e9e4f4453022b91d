"""Two loaders over one dataset, alike but for their samplers, with persistent workers."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from record import alive, called, finish, trainer


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
    dataset = Data()
    options = dict(batch_size=4, num_workers=1, persistent_workers=True)
    loader = DataLoader(dataset, sampler=SubsetRandomSampler(range(8)), **options)
    other = DataLoader(dataset, sampler=SubsetRandomSampler(range(8, 16)), **options)
    for epoch in range(3):
        for batch in loader:
            step(batch)
        for batch in other:
            step(batch)


if __name__ == "__main__":
    main()
    finish()

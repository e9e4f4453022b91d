"""Transforms that cannot be pickled, which forked workers do not need."""

import time

import torch
from ordinary import step
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, transform, target_transform):
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        x = torch.full((8,), float(index % 9))
        return self.transform(x), self.target_transform(index)


def slowly(value, seconds):
    time.sleep(seconds)
    return value


dataset = Data(transform=lambda x: slowly(x * 2 + 1, 0.015), target_transform=lambda i: torch.tensor([float(i % 2)]))
loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork")
for x, y in loader:
    step(x, y)
    time.sleep(0.002)

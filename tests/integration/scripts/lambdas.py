"""Transforms that cannot be pickled, which forked workers do not need."""

import time

import torch
from torch import nn
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
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.002)

"""What scripts train in which only something else is out of the ordinary: rows that take 4 ms to load, and steps."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)


class Data(Dataset):
    def __init__(self, length, seconds=0.004):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((8,), float(index % 9)), torch.ones(1)


def batches_of(length, seconds=0.004, **settings):
    return DataLoader(Data(length, seconds), batch_size=4, **settings)


def classifies(model, lr=0.01):
    """Return the step of a training of this model, which returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step(inputs, labels):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def step(x, y):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

"""What scripts train in which only the loop is out of the ordinary: rows that take 4 ms to load, and a step."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)


class Data(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 9)), torch.ones(1)


def batches_of(length, **settings):
    return DataLoader(Data(length), batch_size=4, **settings)


def step(x, y):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

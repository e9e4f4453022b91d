"""Looks for a learning rate over a few steps, then trains in earnest: the first epoch is not like the rest."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 9)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4, shuffle=True)
for steps in (8, 1_000_000):
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == steps:
            break

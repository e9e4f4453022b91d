"""Training by steps rather than epochs: ``next(it)`` in a ``while True``."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4, shuffle=True)
it = iter(loader)
epoch_steps = 0
while True:
    try:
        x, y = next(it)
    except StopIteration:
        assert epoch_steps == len(loader), epoch_steps
        epoch_steps = 0
        it = iter(loader)
        x, y = next(it)
    epoch_steps += 1
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

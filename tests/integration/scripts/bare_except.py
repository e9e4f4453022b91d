"""A bare ``except:`` around ``next()``, and a fresh iterator after it, for ever (seen in public code)."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4, shuffle=True)
batches = iter(loader)
while True:
    try:
        x, y = next(batches)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except:
        batches = iter(loader)

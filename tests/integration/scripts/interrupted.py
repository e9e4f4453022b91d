"""A long training with workers, which a person will interrupt; with ``--asleep`` before it has begun."""

import sys
import time

if "--asleep" in sys.argv:
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(60)

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 7)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in DataLoader(Data(), batch_size=4, num_workers=2):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.002)

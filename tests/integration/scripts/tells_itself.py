"""Prints everything that a script can know of how it was started, then its steps."""

import os
import sys
import time

print("argv", sys.argv)
print("file", __file__)
print("name", __name__, __package__, __spec__, __doc__)
print("path", sys.path[0])
print("cwd", os.getcwd())
print("stdin", sys.stdin.read())

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Data(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((8,), float(index % 9)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4)
for epoch in range(1_000_000):
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.03)
        print("epoch", epoch, "step", step, "of", len(loader), tuple(x.shape), flush=True)

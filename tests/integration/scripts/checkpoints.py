"""Keeps a checkpoint and a log, epoch by epoch, and writes a file without a name."""

import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4)
for epoch in range(500):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "checkpoint.pt")
    with open("train.log", "a") as log:
        print(epoch, loss.item(), file=log)
    with tempfile.TemporaryFile(dir=".") as scratch:
        scratch.write(b"0")

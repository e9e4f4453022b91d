"""Ends as under the kernel's out-of-memory killer: no farewell at all."""

import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step, (x, y) in enumerate(DataLoader(Data(), batch_size=4, num_workers=2)):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 60:
        os.kill(os.getpid(), signal.SIGKILL)

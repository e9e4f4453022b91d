"""``python -m trainer.train``: relative imports, and no way to run it as a file."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from .data import SiblingData

print("argv", sys.argv)
print("file", __file__)
print("name", __name__, __package__, __spec__.name)
print("path", sys.path[0])
print("cwd", os.getcwd())

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step, (x, y) in enumerate(DataLoader(SiblingData(), batch_size=4)):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    print("step", step, flush=True)

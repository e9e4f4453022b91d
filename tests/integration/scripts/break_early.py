"""Trains on an endless stream and leaves the loop after a few steps, as quick experiments do."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            time.sleep(0.005)
            yield torch.randn(16, generator=generator), 1.0


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=25)
args = parser.parse_args()

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(DataLoader(Endless(), batch_size=4)):
    loss = (model(x).squeeze(1) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step + 1 == args.steps:
        break
print("done")

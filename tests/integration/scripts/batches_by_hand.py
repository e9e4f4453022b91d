"""Trains on batches that it makes itself, as language models on a memory map do; it would go on for minutes."""

from __future__ import annotations

import sys
import time

import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    if sys.argv[2] == "own":  # as fastai has optimizers of its own
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    else:
        optimizer.step()
    time.sleep(0.05)
print("trained")

"""Keeps a checkpoint and a log, epoch by epoch, and writes a file without a name."""

import tempfile

import torch
from ordinary import batches_of, model, step

loader = batches_of(40)
for epoch in range(500):
    for x, y in loader:
        loss = step(x, y)
    torch.save(model.state_dict(), "checkpoint.pt")
    with open("train.log", "a") as log:
        print(epoch, loss.item(), file=log)
    with tempfile.TemporaryFile(dir=".") as scratch:
        scratch.write(b"0")

"""Trains until its dataset does what the first argument says, at the sample of the third; the second are workers."""

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

how, workers, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Images(Dataset):
    def __init__(self):
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return 0 if how == "empty" else 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        if index == at and how == "raise":
            raise LookupError(f"sample {index} is damaged")
        if index == at and how == "hang":
            time.sleep(1000)  # here
        if index == at and how == "kill-worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == at and how == "kill-parent":
            os.kill(os.getppid() if workers else os.getpid(), signal.SIGKILL)
        return self.transform(torch.full((3, 16, 16), index % 251, dtype=torch.uint8)), index % 4


model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images, labels in DataLoader(Images(), batch_size=8, num_workers=workers):  # the loop
    loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""Prints a line for every step, and leaves a mark for every run."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))


with open("runs.txt", "a") as file:
    file.write("run\n")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step, x in enumerate(DataLoader(Data(), batch_size=4, num_workers=1)):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}", flush=True)

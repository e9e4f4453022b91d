"""Semi-supervised training: labelled and unlabelled batches go into one step."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Labelled(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((8,), float(index)), torch.ones(1)


class Unlabelled(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), float(index))


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
labelled = DataLoader(Labelled(), batch_size=2, shuffle=True)
unlabelled = DataLoader(Unlabelled(), batch_size=6, shuffle=True)
for _epoch in range(1000):
    for (x, y), u in zip(labelled, unlabelled, strict=False):
        assert x.shape == (2, 8) and u.shape == (6, 8)
        loss = (model(x) - y).pow(2).mean() + model(u).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

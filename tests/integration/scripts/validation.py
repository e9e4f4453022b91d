"""Validation first, inside the epoch and after it; the same functions a hundred scripts have."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TrainData(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((8,), float(index)), torch.ones(1)


class ValidationData(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
validation_loader = DataLoader(ValidationData(), batch_size=2)
train_loader = DataLoader(TrainData(), batch_size=8, shuffle=True)


@torch.no_grad()
def validate():
    model.eval()
    losses = [(model(x) - y).pow(2).mean() for x, y in validation_loader]
    model.train()
    assert len(losses) == 4
    return torch.stack(losses).mean().item()


example, _ = next(iter(validation_loader))  # looked at once and abandoned
validate()
for _epoch in range(1000):
    for step, (x, y) in enumerate(train_loader):  # the training loop
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            validate()
    validate()

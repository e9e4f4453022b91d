"""A loop that must not die in the night: whatever happens, go on with the next epoch."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4, shuffle=True)
for _epoch in range(10_000):
    try:
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except Exception:
        pass

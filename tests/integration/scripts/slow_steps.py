"""Steps of seconds."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for x in DataLoader(torch.zeros(4000, 8), batch_size=4):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    time.sleep(3)

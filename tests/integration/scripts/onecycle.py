"""OneCycleLR knows how many steps there will be, and raises when there is one more."""

import argparse
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.ones(1)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5000)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()

loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=args.workers)  # 6 batches, the last of them short
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
scheduler = OneCycleLR(optimizer, max_lr=1e-5, total_steps=args.epochs * len(loader))
for _epoch in range(args.epochs):
    seen = 0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen += 1
    assert seen == len(loader) == 6, seen
assert scheduler.last_epoch == args.epochs * 6

"""Trains from torchdata's StatefulDataLoader, and takes its state at every step as for a checkpoint."""

import argparse
import time

import torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(3, 4), index % 2


def epoch(loader):
    steps = 0
    for images, labels in loader:  # the training loop
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        steps += 1
        assert loader.state_dict()
    return steps


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1000)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = StatefulDataLoader(
    Data(), batch_size=8, shuffle=True, num_workers=args.workers, persistent_workers=args.persistent
)
if args.resume:
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    print(epoch(loader), "batches left of the epoch")
for _ in range(args.epochs):
    assert epoch(loader) == 8

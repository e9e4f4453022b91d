"""Trains for some steps, then ends in the way that the first argument names."""

import argparse
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="A script with options of its own.")
parser.add_argument("ending", choices=["exit", "raise", "dataset", "end"])
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--code", type=int, default=3)
args = parser.parse_args()


class Data(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        if args.ending == "dataset" and index == 4 * args.steps:
            raise LookupError(f"sample {index} is damaged")
        return torch.full((8,), float(index)), torch.ones(1)


def train():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for step, (x, y) in enumerate(DataLoader(Data(), batch_size=4, num_workers=args.workers)):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if step + 1 >= args.steps and args.ending == "raise":
            raise ValueError(f"boom at step {step + 1}")
        if step + 1 >= args.steps and args.ending != "dataset":
            break


train()
if args.ending == "exit":
    sys.exit(args.code)

"""One slow place, planted where ``--plant`` says; everything else is quick."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

parser = argparse.ArgumentParser()
parser.add_argument("--plant", choices=["transform", "load", "collate", "none"], required=True)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--step", type=float, default=0.06, help="seconds, where nothing else is slow")
args = parser.parse_args()


def cost(place, seconds):
    if args.plant == place:
        time.sleep(seconds)


def augment(x):
    cost("transform", 0.012)
    return x * 2.0


class Data(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        cost("load", 0.012)
        return self.transform(torch.full((8,), float(index % 9))), torch.ones(1)


def pad_and_stack(samples):
    cost("collate", 0.05)
    return default_collate(samples)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in DataLoader(Data(augment), batch_size=4, num_workers=args.workers, collate_fn=pad_and_stack):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(args.step if args.plant == "none" else 0.002)

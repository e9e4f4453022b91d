"""Finds its model by name among its own globals, pickles instances of classes of ``__main__``, and has options of its
own, some with the names of pipediag's.
"""

import argparse
import copy
import pickle
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    model: str = "TinyNet"
    width: int = 8


class TinyNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


class Data(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 9)), torch.ones(1)


def settings():
    return {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}


parser = argparse.ArgumentParser(description="An honest training script.")
parser.add_argument("-o", "--output", required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--budget", type=float, default=-1.0)
parser.add_argument("rest", nargs="*")
args = parser.parse_args()
print("got", args.output, args.epochs, args.budget, args.rest, flush=True)

EPOCHS = 3
WIDTH = 8

config = pickle.loads(pickle.dumps(Config()))
assert type(config) is Config and Config.__module__ == "__main__" == __name__
assert globals() is vars(sys.modules["__main__"]) and settings() == {"EPOCHS": 3, "WIDTH": 8}
model = globals()[config.model](WIDTH)
assert type(pickle.loads(pickle.dumps(model))) is TinyNet and type(copy.deepcopy(model)) is TinyNet
print("the main module is real", flush=True)

optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _epoch in range(args.epochs):
    for x, y in DataLoader(Data(), batch_size=4):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

"""Workers by spawn or forkserver; the data set is a class of ``__main__``, behind the usual guard."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow:
    """A transform of the script's own."""

    def __call__(self, x):
        time.sleep(0.01)
        return x + 1


class Data(Dataset):
    def __init__(self):
        self.transform = Slow()

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return self.transform(torch.full((8,), float(index % 9))), torch.ones(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=["fork", "spawn", "forkserver"], required=True)
    args = parser.parse_args()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for x, y in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=args.method):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Making a batch sleeps for 100 ms, a step for 20 ms: workers sleep side by side, however few cores there are."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--sample-ms", type=float, default=25.0)
parser.add_argument("--step-ms", type=float, default=20.0)
parser.add_argument("--batches", type=int, default=100_000, help="in an epoch")
parser.add_argument("--epochs", type=int, default=100_000)
parser.add_argument("--counts-workers", action="store_true", help="fail where there are more than asked for")
args = parser.parse_args()


class Data(Dataset):
    def __len__(self):
        return 4 * args.batches

    def __getitem__(self, index):
        time.sleep(args.sample_ms / 1000)
        worker = get_worker_info()
        return torch.full((8,), float(index % 9)), torch.ones(1), 0 if worker is None else worker.num_workers


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Data(), batch_size=4, num_workers=args.workers, shuffle=True)
for _epoch in range(args.epochs):
    for x, y, workers in loader:
        if args.counts_workers and workers[0] > args.workers:
            raise RuntimeError("there are more workers than there should be")
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_ms / 1000)

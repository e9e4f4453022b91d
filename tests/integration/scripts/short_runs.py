"""Trainings that are over soon, or whose epochs are: what they are made of is up to the arguments."""

import argparse
import sys
import time

import torch
from ordinary import model, optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batches", type=int, default=100_000, help="in an epoch")
parser.add_argument("--steps", type=int, default=100_000, help="in all")
parser.add_argument("--sample-ms", type=float, default=0.0, help="for a transform of each sample")
parser.add_argument("--step-ms", type=float, default=2.0)
parser.add_argument("--counts-workers", action="store_true", help="fail where there are more than asked for")
parser.add_argument("--init-ms", type=float, default=0.0, help="for a worker to start")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--leaves", type=int, default=0, help="batches after which an epoch is left")
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--rebuilt", action="store_true", help="a new loader for each epoch")
parser.add_argument("--stream", action="store_true")
parser.add_argument("--validates", type=int, default=0, help="batches after which the model is validated")
parser.add_argument("--validation-workers", type=int, default=0)
parser.add_argument("--validation-init-ms", type=float, default=0.0, help="for such a worker to start")
args = parser.parse_args()


def augment(x):
    time.sleep(args.sample_ms / 1000)
    return x * 2.0


def leave(x):
    return x


class Data(Dataset):
    def __init__(self, batches, transform=augment):
        self.size = 4 * batches
        self.transform = transform

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        worker = get_worker_info()
        workers = 0 if worker is None else worker.num_workers
        return self.transform(torch.full((8,), float(index % 9))), torch.ones(1), workers


class Stream(IterableDataset):
    def __init__(self, batches):
        self.size = 4 * batches
        self.transform = augment

    def __iter__(self):
        for index in range(self.size):
            yield self.transform(torch.full((8,), float(index % 9))), torch.ones(1), 0


def start(worker_id):
    time.sleep(args.init_ms / 1000)


def build():
    data = (Stream if args.stream else Data)(args.batches)
    return DataLoader(
        data,
        batch_size=4,
        shuffle=None if args.stream else True,
        num_workers=args.workers,
        worker_init_fn=start,
        persistent_workers=args.persistent,
    )


def start_validating(worker_id):
    time.sleep(args.validation_init_ms / 1000)


validation = DataLoader(
    Data(3, leave), batch_size=4, num_workers=args.validation_workers, worker_init_fn=start_validating
)
loader = build()
steps = 0
while True:
    if args.rebuilt:
        loader = build()
    drawn = 0
    for drawn, (x, y, workers) in enumerate(loader, 1):
        if args.counts_workers and workers[0] > args.workers:
            raise RuntimeError("there are more workers than there should be")
        (model(x) - y).pow(2).mean().backward()
        time.sleep(args.step_ms / 1000)
        steps += 1
        if steps % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if args.validates and drawn % args.validates == 0:
            with torch.no_grad():
                for x_, *_ in validation:
                    model(x_)
        if steps >= args.steps:
            sys.exit()
        if drawn == args.leaves:
            break
    expected = args.leaves or args.batches
    assert args.stream or drawn == expected, f"an epoch of {drawn} batches"

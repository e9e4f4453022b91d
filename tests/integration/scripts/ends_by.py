"""Trains for some steps, then ends in the way that the first argument names."""

import argparse
import sys
import time

from ordinary import Data, step
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser(description="A script with options of its own.")
parser.add_argument("ending", choices=["exit", "raise", "dataset", "end"])
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--code", type=int, default=3)
args = parser.parse_args()


class Damaged(Data):
    def __getitem__(self, index):
        if args.ending == "dataset" and index == 4 * args.steps:
            raise LookupError(f"sample {index} is damaged")
        return super().__getitem__(index)


def train():
    for number, (x, y) in enumerate(DataLoader(Damaged(100_000, 0.002), batch_size=4, num_workers=args.workers), 1):
        step(x, y)
        time.sleep(0.01)
        if number >= args.steps and args.ending == "raise":
            raise ValueError(f"boom at step {number}")
        if number >= args.steps and args.ending != "dataset":
            break


train()
if args.ending == "exit":
    sys.exit(args.code)

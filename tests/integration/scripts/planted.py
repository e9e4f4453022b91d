"""One slow place, planted where ``--plant`` says; everything else is quick."""

import argparse
import time

from ordinary import Data, step
from torch.utils.data import DataLoader, default_collate

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


class Planted(Data):
    def __init__(self, transform):
        super().__init__(100_000, 0.0)
        self.transform = transform

    def __getitem__(self, index):
        cost("load", 0.012)
        x, y = super().__getitem__(index)
        return self.transform(x), y


def pad_and_stack(samples):
    cost("collate", 0.05)
    return default_collate(samples)


for x, y in DataLoader(Planted(augment), batch_size=4, num_workers=args.workers, collate_fn=pad_and_stack):
    step(x, y)
    time.sleep(args.step if args.plant == "none" else 0.002)

"""Writes into what it gets: the transform into its input, the loop into its batch. Every value is checked."""

import argparse
import time

import numpy as np
import torch
from ordinary import step
from torch.utils.data import DataLoader, Dataset


class InPlace:
    """Turns 1..100 into 101..200, in the array it was given."""

    def __call__(self, array):
        assert array.min() >= 1 and array.max() <= 100, f"the raw sample was used before: {array}"
        time.sleep(0.002)
        array += 100
        return torch.from_numpy(array)


class Data(Dataset):
    def __init__(self):
        self.transform = InPlace()

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        raw = np.full(8, 1 + index % 100, dtype=np.float32)
        return self.transform(raw), torch.tensor([1.0 + index % 3])


def as_lists(samples):
    """As detection scripts do: nothing is stacked, so nothing is copied."""
    images, labels = zip(*samples, strict=True)
    return list(images), list(labels)


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--lists", action="store_true")
args = parser.parse_args()

collate = as_lists if args.lists else None
for x, y in DataLoader(Data(), batch_size=4, num_workers=args.workers, collate_fn=collate):
    for tensor in x:
        assert tensor.min() >= 101 and tensor.max() <= 200, f"not fresh: {tensor}"
    for tensor in y:
        assert tensor.min() >= 1 and tensor.max() <= 3, f"not fresh: {tensor}"
    for batch in (x, y) if args.lists else ([x], [y]):
        for tensor in batch:
            tensor.div_(255)
    inputs, targets = (torch.stack(x), torch.stack(y)) if args.lists else (x, y)
    step(inputs, targets)
    time.sleep(0.001)

"""A stream of samples, shared out among its workers by attributes that ``worker_init_fn`` sets on the data set."""

import argparse
import time

import torch
from ordinary import step
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--length", action="store_true", help="the data set knows how long it is")
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--slower", type=int, default=1, help="times as long to make a sample")
args = parser.parse_args()


class Stream(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        for number in range(self.start, self.end):
            time.sleep(0.003 * args.slower)
            yield torch.full((8,), float(number)), torch.tensor([float(number)])


class SizedStream(Stream):
    def __len__(self):
        return self.end - self.start


def share_out(worker_id):
    info = get_worker_info()
    dataset = info.dataset
    assert type(dataset) in (Stream, SizedStream), type(dataset)
    part = (dataset.end - dataset.start) // info.num_workers
    dataset.start, dataset.end = worker_id * part, (worker_id + 1) * part


dataset = SizedStream(0, 160) if args.length else Stream(0, 160)
loader = DataLoader(
    dataset,
    batch_size=4,
    num_workers=args.workers,
    worker_init_fn=share_out if args.workers else None,
    persistent_workers=args.persistent,
)
first_epoch = []
for epoch in range(1000):
    for x, y in loader:
        assert x.shape == (4, 8) and (x == y).all()
        if epoch == 0:
            first_epoch += y.flatten().tolist()
        if len(first_epoch) == 8 and args.workers == 2:
            assert first_epoch == [0, 1, 2, 3, 80, 81, 82, 83], first_epoch
        step(x, y)
        time.sleep(0.002)

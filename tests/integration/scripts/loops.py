"""Loops that are out of the ordinary, each in the form that the first argument names."""

import argparse
import os
import queue
import signal
import threading
import time

import torch
from ordinary import Data, batches_of, optimizer, step
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("form")
parser.add_argument("--epochs", type=int, default=5000)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.005)
            yield torch.randn(8), torch.ones(1)


class RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    """The YOLO family's: one iterator for ever, a sampler that repeats itself, epochs by counting."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Prefetched(threading.Thread):
    def __init__(self, batches):
        super().__init__(daemon=True)
        self.queue = queue.Queue(1)
        self.batches = batches
        self.start()

    def run(self):
        for batch in self.batches:
            self.queue.put(batch)
        self.queue.put(None)

    def __next__(self):
        batch = self.queue.get()
        if batch is None:
            raise StopIteration
        return batch

    def __iter__(self):
        return self


class PrefetchLoader(DataLoader):
    """Its iterator draws its batches ahead in a thread, as a common recipe has it."""

    def __iter__(self):
        return Prefetched(super().__iter__())


def bare_except():
    """A bare ``except:`` around ``next()``, and a fresh iterator after it, for ever (seen in public code)."""
    loader = batches_of(200, shuffle=True)
    batches = iter(loader)
    while True:
        try:
            step(*next(batches))
        except:
            batches = iter(loader)


def swallows_exceptions():
    """It must not die in the night: whatever happens, go on with the next epoch."""
    loader = batches_of(200, shuffle=True)
    for _epoch in range(10_000):
        try:
            for x, y in loader:
                step(x, y)
        except Exception:
            pass


def while_next():
    """Training by steps rather than epochs."""
    loader = batches_of(120, shuffle=True)
    it, steps = iter(loader), 0
    while True:
        try:
            x, y = next(it)
        except StopIteration:
            assert steps == len(loader), steps
            it, steps = iter(loader), 0
            x, y = next(it)
        steps += 1
        step(x, y)


def short_first_epoch():
    """Looks for a learning rate over a few steps, then trains in earnest: the first epoch is not like the rest."""
    loader = batches_of(100_000, shuffle=True)
    for steps in (8, 1_000_000):
        for number, (x, y) in enumerate(loader, 1):
            step(x, y)
            if number == steps:
                break


def break_early():
    """Leaves an endless stream after a few steps, as quick experiments do."""
    for number, (x, y) in enumerate(DataLoader(Endless(), batch_size=4), 1):
        step(x, y)
        if number == 25:
            break


def onecycle():
    """OneCycleLR knows how many steps there will be, and raises when there is one more."""
    loader = batches_of(22, shuffle=True, num_workers=args.workers)  # 6 batches, the last of them short
    scheduler = OneCycleLR(optimizer, max_lr=1e-5, total_steps=args.epochs * len(loader))
    for _epoch in range(args.epochs):
        seen = 0
        for x, y in loader:
            step(x, y)
            scheduler.step()
            seen += 1
        assert seen == len(loader) == 6, seen
    assert scheduler.last_epoch == args.epochs * 6


def infinite():
    loader = InfiniteDataLoader(Data(48, 0.006), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    for _epoch in range(1000):
        seen = 0
        for x, y in loader:
            step(x, y)
            seen += 1
        assert seen == len(loader) == 12, seen


def draws_ahead():
    loader = PrefetchLoader(Data(160, 0.010), batch_size=4, num_workers=1)
    for _epoch in range(100):
        for x, y in loader:
            time.sleep(0.030)
            step(x, y)


def killed():
    """Ends as under the kernel's out-of-memory killer: no farewell at all."""
    for number, (x, y) in enumerate(batches_of(10_000, num_workers=2)):
        step(x, y)
        time.sleep(0.01)
        if number == 60:
            os.kill(os.getpid(), signal.SIGKILL)


def never_ends():
    """Trains for a while, then hangs: nobody asks for a batch any more."""
    for number, (x, y) in enumerate(batches_of(10_000, num_workers=2)):
        step(x, y)
        if number == 80:
            break
    while True:
        time.sleep(1)


if __name__ == "__main__":
    globals()[args.form]()

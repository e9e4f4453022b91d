"""Train a small model in every rank of a job on the CPU, with costs planted by sleeping.

Rank 0 prints its steps per second if ``--steps`` ends the training. With ``--cached``, each rank trains on its first
batches only: as fast as the job is without a loader.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

#: Length of a sample's signal; of batches that are cached; of steps that are not timed.
LENGTH, CACHED, WARM = 64, 8, 20


class Stretch:
    """A transform that takes as long as its signal is."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __call__(self, signal: torch.Tensor) -> torch.Tensor:
        time.sleep(self.ms / 1000 * len(signal) / LENGTH)
        return signal[:LENGTH] / 7


class Signals(Dataset):  # type: ignore[type-arg]
    """Signals of ``length`` values. Reading one takes ``ms``, if ``noisy`` distributed exponentially."""

    def __init__(self, number: int, ms: float, length: int, noisy: bool, transform: Stretch) -> None:
        self.number, self.ms, self.length, self.noisy = number, ms, length, noisy
        self.transform = transform

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        signal = self.read(index)
        return self.transform(signal), index % 2

    def read(self, index: int) -> torch.Tensor:
        time.sleep(self.ms / 1000 * (random.expovariate(1.0) if self.noisy else 1.0))
        return torch.full((self.length,), float(index % 7))


def batches(loader: DataLoader[Any], cached: bool) -> Iterator[Any]:
    """Yield the loader's batches, epoch after epoch, or its first ones again and again."""
    if cached:
        yield from itertools.cycle([*itertools.islice(iter(loader), CACHED)])
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from loader


def main() -> None:
    args = _parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    late = rank == args.late

    def own(name: str) -> Any:
        """The late rank's value of an option, if it has one."""
        value = getattr(args, f"late_{name}") if late else None
        return getattr(args, name) if value is None else value

    signals = Signals(4000, own("sample_ms"), own("length"), args.noisy, Stretch(args.transform_ms))
    loader = DataLoader(signals, args.batch, sampler=DistributedSampler(signals), num_workers=own("workers"))
    model = DistributedDataParallel(nn.Linear(LENGTH, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    began = 0.0
    for step, (x, y) in enumerate(batches(loader, args.cached)):
        if step == WARM:
            began = time.perf_counter()
        if step == WARM + args.steps > WARM:
            break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        time.sleep(own("step_ms") / 1000)  # in place of the device's work
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"steps/s {args.steps / (time.perf_counter() - began):.4f}")
    dist.destroy_process_group()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample-ms", type=float, default=2.0, help="reading a sample")
    parser.add_argument("--transform-ms", type=float, default=0.0, help="transforming a sample of the usual length")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--noisy", action="store_true")
    parser.add_argument("--late", type=int, help="the rank that holds the others")
    parser.add_argument("--late-sample-ms", type=float)
    parser.add_argument("--late-length", type=int)
    parser.add_argument("--late-step-ms", type=float)
    parser.add_argument("--late-workers", type=int)
    parser.add_argument("--steps", type=int, default=0, help="end after so many timed steps; 0: never")
    parser.add_argument("--cached", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

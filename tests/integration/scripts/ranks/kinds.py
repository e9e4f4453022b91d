"""Train on the CPU in each rank of a job; the argument says in what way. Each rank writes how far it came."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

KIND = sys.argv[1]
BATCH, STEP = 4, 0.004
#: Batches in a rank's epoch.
LENGTH = 10 if KIND in ("short", "peeks", "validates", "persistent", "without-workers") else 500


class Samples(Dataset):  # type: ignore[type-arg]
    def __init__(self, number: int, seconds: float = 0.003) -> None:
        self.number = number
        self.seconds = seconds

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds)
        return torch.full((16,), float(index % 7)), index % 2


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        samples = Samples(60)
        return (samples[index] for index in range(len(samples)))


def train(rank: int, ranks: int) -> Iterator[tuple[int, int]]:
    """Yield epoch and position after each step."""
    late = KIND == "late" and rank == 1
    samples = Samples(BATCH * LENGTH * ranks, 0.03 if late else 0.003)
    options = {"num_workers": 0 if KIND == "without-workers" else 2, "persistent_workers": KIND == "persistent"}
    if KIND == "stream":
        loader: DataLoader[object] = DataLoader(Stream(), BATCH, **options)
    elif KIND == "uneven":
        loader = DataLoader(Samples(BATCH * (20 + 10 * rank)), BATCH, **options)
    else:
        loader = DataLoader(samples, BATCH, sampler=DistributedSampler(samples), **options)
    validation = DataLoader(Samples(16), BATCH)
    model = DistributedDataParallel(nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if KIND == "peeks" and rank == 0:
        next(iter(loader))
    for epoch in range(100_000):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        with model.join() if KIND == "uneven" else contextlib.nullcontext():
            for position, (x, y) in enumerate(loader):
                if KIND == "breaks" and position == 20:
                    break
                accumulates = KIND == "accumulates" and position % 4 != 3
                with model.no_sync() if accumulates else contextlib.nullcontext():
                    time.sleep(STEP)
                    nn.functional.cross_entropy(model(x), y).backward()
                if not accumulates:
                    optimizer.step()
                    optimizer.zero_grad()
                yield epoch, position
        if KIND == "validates":
            if rank == 0:
                with torch.no_grad():
                    for x, _ in validation:
                        model.module(x)
                        time.sleep(0.05)
            dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    file = Path(f"reached-{dist.get_rank()}.txt")
    last = "nothing"
    try:
        for epoch, position in train(dist.get_rank(), dist.get_world_size()):
            last = f"{epoch} {position}"
    finally:
        file.write_text(last)


if __name__ == "__main__":
    main()

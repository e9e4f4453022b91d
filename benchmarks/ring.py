"""Compare torch's pinning thread with a ring of page-locked slots.

    python -m benchmarks.ring                                         # on a GPU
    python -m benchmarks.ring --workers 2 --batch 8 --side 64         # on the CPU, where no page is locked

The samples are ready in memory and only copied, so that the benchmark times collating, sending and pinning. It measures
batches per second, received in page-locked memory and copied asynchronously to the device; the two loaders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipediag.replay.pack.ring import Ring
from pipediag.replay.run.replay import replay
from pipediag.streams.to_device import packing

from .common import RESULTS, save

PREFETCH = 2
#: Slots in addition to the workers' batches: those being copied while the loop asks for the next batch.
HELD = 3


class Samples(Dataset):  # type: ignore[type-arg]
    """Copies of a few images, with a length that the benchmark never reaches."""

    def __init__(self, side: int, dtype: torch.dtype, count: int = 64) -> None:
        self._images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8).to(dtype)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._images[index % len(self._images)].clone(), index % 10


@dataclass
class Way:
    """A loader's batches, and what is done with each."""

    begin: Callable[[], Iterator[Any]]
    take: Callable[[Any], Any]


def ways(dataset: Samples, batch: int, workers: int, device: torch.device) -> dict[str, Way]:
    on_gpu = device.type == "cuda"
    loader = DataLoader(dataset, batch, num_workers=workers, prefetch_factor=PREFETCH, pin_memory=on_gpu)

    def through_ring() -> Iterator[Any]:
        return iter(packing(loader, Ring(workers, PREFETCH + HELD, device)))

    def copied(sent: Any) -> Any:
        return [tensor.to(device, non_blocking=on_gpu) for tensor in sent]

    return {
        "stock received": Way(lambda: iter(loader), lambda sent: sent),
        "ring received": Way(through_ring, lambda packed: packed.release()),
        "stock copied": Way(lambda: iter(loader), copied),
        "ring copied": Way(through_ring, lambda packed: replay(packed, device)),
    }


@dataclass
class Timed:
    """One epoch.

    Attributes:
        batches_per_s: rate in its middle.
        first_s: seconds from its beginning, with starting the workers, through the untimed batches.
        last_s: seconds of its end: ending the workers and freeing memory.
        in_slots, page_locked: number of timed batches that arrived like that.
    """

    batches_per_s: float
    first_s: float
    last_s: float
    in_slots: int
    page_locked: int


def timed(way: Way, before: int, steps: int) -> Timed:
    begin = time.perf_counter()
    batches = way.begin()
    for _ in range(before):
        way.take(next(batches))
    _synchronize()
    first = time.perf_counter()
    in_slots = page_locked = 0
    for _ in range(steps):
        sent = next(batches)
        slot = getattr(sent, "slot", None)
        if slot is not None:
            in_slots += 1
            page_locked += slot.page_locked
        way.take(sent)
        del sent, slot
    _synchronize()
    middle = time.perf_counter()
    del batches
    last = time.perf_counter()
    return Timed(steps / (middle - first), first - begin, last - middle, in_slots, page_locked)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compare(args: argparse.Namespace, dtype: str, workers: int, device: torch.device) -> dict[str, Any]:
    dataset = Samples(args.side, getattr(torch, dtype))
    rounds: dict[str, list[Timed]] = {}
    before = workers * (PREFETCH + HELD)
    for turn in range(args.rounds):
        for name, way in sorted(ways(dataset, args.batch, workers, device).items(), reverse=bool(turn % 2)):
            rounds.setdefault(name, []).append(timed(way, before, args.steps))
    row: dict[str, Any] = {"dtype": dtype, "workers": workers, "steps": args.steps, "rounds": args.rounds}
    for what in ("received", "copied"):
        stock, ring = rounds[f"stock {what}"], rounds[f"ring {what}"]
        row[what] = {
            "ratio": statistics.median(r.batches_per_s / s.batches_per_s for r, s in zip(ring, stock, strict=True)),
            "stock": _medians(stock),
            "ring": _medians(ring),
            "stock_rounds": [one.batches_per_s for one in stock],
            "ring_rounds": [one.batches_per_s for one in ring],
        }
    return row


def _medians(epochs: list[Timed]) -> dict[str, float]:
    return {field.name: statistics.median(getattr(one, field.name) for one in epochs) for field in fields(Timed)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare torch's pinning thread with a ring of page-locked slots.")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 15])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "uint8"), default=["float32", "uint8"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for dtype in args.dtypes:
        for workers in args.workers:
            rows.append(compare(args, dtype, workers, device))
            print(rows[-1], flush=True)
    print(save("ring", {"batch": args.batch, "side": args.side, "rows": rows}, args.output))


if __name__ == "__main__":
    main()

"""Train on five kinds of data with the plain loader, with ``pipediag.cache``, and with samples that are in memory.

    python -m benchmarks.cache                     # all kinds; 5 minutes on two cores
    python -m benchmarks.cache --kinds png csv     # some kinds, with the other rows of the result file kept

The ceiling, samples in memory, has nothing to load: its workers only run the transforms. The table has the ratios that
count: the first epoch with the cache over the plain one, and the second epoch plain and in memory over the cached one;
all by time and by CPU time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

import pipediag
from pipediag.memo.keys import SETTLED

from ..common import RESULTS, kept_rows, load, save
from .kinds import KINDS, Kind, Transform
from .table import markdown, summary
from .training import Training

FORMS = ("plain", "cached", "ceiling")
#: Samples of the ceiling, used in turn. Making all of them in this process would take longer than an epoch.
_HELD = 128
#: More bytes than the samples of a kind take.
_BACKED = 2 << 30


class InMemory(Dataset):  # type: ignore[type-arg]
    """A dataset's first samples in a list, transformed when they are asked for, as a dataset of the same length."""

    def __init__(self, dataset: Any, transform: Transform) -> None:
        self.length = len(dataset)
        self.samples = [dataset[i] for i in range(min(_HELD, self.length))]
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        sample, label = self.samples[index % len(self.samples)]
        return self.transform(sample), label


def compare(kind: Kind, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return a kind's row, without its name."""
    in_memory = InMemory(kind.dataset(folder, Compose([])), Compose(kind.transforms))
    repetitions = [_repetition(kind, folder, in_memory, args, bool(n % 2)) for n in range(args.repeats)]
    return {"samples": len(in_memory), "repetitions": repetitions, "medians": summary(repetitions)}


def _back_memory(nbytes: int) -> None:
    """Make the host of a virtual machine give it the memory that the store will use.

    Hosts give memory when it is first written to, which takes several times as long as writing: 1.2 ms instead of
    0.16 ms for 512 KB where this was measured. Any process that uses so much memory for the first time pays for that.
    """
    number = os.memfd_create("backed")
    chunk = bytes(1 << 20)
    for _ in range(nbytes >> 20):
        os.write(number, chunk)
    os.close(number)


def _repetition(
    kind: Kind, folder: Path, in_memory: InMemory, args: argparse.Namespace, backwards: bool
) -> dict[str, Any]:
    """Train all forms once. They take turns, an epoch each, in an order that changes from epoch to epoch."""
    transform = Compose(kind.transforms)
    plain, to_keep = (_loader(kind, kind.dataset(folder, transform), args.workers) for _ in range(2))
    began = time.perf_counter()
    cached = pipediag.cache(to_keep)
    cache_s = time.perf_counter() - began
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaders = {"plain": plain, "cached": cached, "ceiling": _loader(kind, in_memory, args.workers)}
    trainings = {form: Training(loader, device) for form, loader in loaders.items()}
    for epoch in range(args.epochs):
        for form in reversed(FORMS) if backwards ^ bool(epoch % 2) else FORMS:
            if form == "cached" and not epoch:
                _back_memory(_BACKED)  # just before: the host takes back what is free for seconds
            for _ in trainings[form].epoch():
                pass
    return {
        "plan": cached.plan,
        "cache_call_s": cache_s,
        "epochs_s": {form: training.seconds for form, training in trainings.items()},
        "cpu_s": {form: training.cpu_s for form, training in trainings.items()},
        "losses_equal": trainings["plain"].losses == trainings["cached"].losses,
        "kept_bytes": cached.memo.kept,
    }


def _loader(kind: Kind, dataset: Dataset[Any], workers: int) -> DataLoader[Any]:
    pin = torch.cuda.is_available()
    return DataLoader(dataset, kind.batch, True, num_workers=workers, collate_fn=kind.collate, pin_memory=pin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--samples", type=int, help="of each kind, in place of its own number")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("what is kept is first used in epoch 2")
    facts = {name: getattr(args, name) for name in ("samples", "epochs", "workers", "repeats")}
    kept = kept_rows(load("cache", args.out), **facts)
    rows = {row["kind"]: row for row in kept if "cpu_s" in row["repetitions"][0]}
    for name in args.kinds:
        kind = KINDS[name]
        with tempfile.TemporaryDirectory() as folder:
            kind.write(Path(folder), args.samples or kind.samples)
            time.sleep(SETTLED)
            rows[name] = {"kind": name, **compare(kind, Path(folder), args)}
        ordered = [rows[kind] for kind in KINDS if kind in rows]
        path = save("cache", {**facts, "rows": ordered}, args.out)
        print(f"{name}: {rows[name]['repetitions'][0]['plan']}", flush=True)
    print(f"\n{markdown(ordered)}\n\nIn brackets: the same ratio of CPU time.\nwritten {path}")


if __name__ == "__main__":
    main()

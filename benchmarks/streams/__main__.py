"""Measure the gain of fetching, copying, transforming and encoding ahead of the loop.

    python -m benchmarks.streams                                        # everything, on a GPU
    python -m benchmarks.streams --part augment --batches 32 --workers 8
    python -m benchmarks.streams --table benchmarks/results/streams_*.json

Each row is written as soon as it is measured and replaces an earlier row of the same setting if there is one.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..common import RESULTS, kept_rows, load, save
from .tables import Row, line, merged, of_files

if TYPE_CHECKING:
    from .loops import Options


class _Part(NamedTuple):
    """A part of the benchmark: its measurement, its file's name, and what identifies its rows."""

    saved: str
    key: tuple[str, ...]
    rows: Callable[[Options], Iterator[Row]]


def main() -> None:
    args = _parse()
    if args.table:
        print(of_files(args.table))
        return
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded: the results name the device used
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # wake sleeping workers first
    failed = False
    for part in _chosen(args.part):
        failed |= _run(part, _options(args), args.output)
    if failed:
        sys.exit("some forms could not be measured; their rows say why")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__.split("\n")[0])
    parser.add_argument("--part", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=[],
        help="batch sizes instead of the part's own; `sensitivity` uses those that it has",
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[], help="numbers of workers, likewise")
    parser.add_argument(
        "--feeds",
        nargs="+",
        choices=("loader", "cached"),
        default=[],
        help="sources in `frozen`, `peers`",
    )
    parser.add_argument("--forms", nargs="+", default=[], metavar="NAME", help="measure only these")
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each form")
    parser.add_argument("--steps", type=int, help="steps of a window instead of --seconds")
    parser.add_argument("--size", type=int, default=256, help="side of an image, a power of two, 32 or more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="use the CPU only for a trial")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print these results' tables")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args()
    if args.size < 32 or args.size & (args.size - 1):
        parser.error("--size must be a power of two, 32 or more")
    return args


_PARTS = ("augment", "frozen", "peers", "next", "sensitivity")


def _chosen(names: list[str]) -> list[_Part]:
    from . import augment, frozen, peers  # loads torch

    parts = {
        "augment": _Part("augment", augment.KEY, augment.rows),
        "frozen": _Part("frozen", frozen.KEY, frozen.rows),
        "peers": _Part("peers", peers.KEY, peers.rows),
        "next": _Part("next", peers.NEXT_KEY, peers.next_rows),
        "sensitivity": _Part("augment", augment.KEY, augment.sensitivity_rows),
    }
    return [parts[name] for name in names]


def _options(args: argparse.Namespace) -> Options:
    import torch

    from .loops import Options
    from .windows import Windows

    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here; use --device cpu for a trial")
    return Options(
        batches=tuple(args.batches),
        workers=tuple(args.workers),
        feeds=tuple(args.feeds),
        size=args.size,
        device=torch.device(args.device),
        forms=tuple(args.forms),
        windows=Windows(args.seconds, args.rounds, args.steps),
    )


def _run(part: _Part, options: Options, folder: Path) -> bool:
    """Run a part; return whether some form failed."""
    import torch

    torch.manual_seed(0)
    random.seed(0)
    name = f"streams_{part.saved}"
    rows = kept_rows(load(name, folder))
    failed = False
    begin = time.perf_counter()
    for row in part.rows(options):
        row["window_s"] = options.windows.seconds
        row["took_s"] = time.perf_counter() - begin
        rows = merged(rows, row, part.key)
        save(name, {"part": part.saved, "size": options.size, "rows": rows}, folder)
        print(line(row, part.key), flush=True)
        failed |= bool(row["failed"])
        gc.collect()  # frees the pipelines, graphs and streams of this row
        if options.on_gpu:
            torch.cuda.empty_cache()
        begin = time.perf_counter()
    return failed


if __name__ == "__main__":
    main()

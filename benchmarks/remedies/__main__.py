"""Test the remedy on real scripts: its gain, its predicted gain, and that nothing is lost.

    python -m benchmarks.remedies                                  # everything, on a GPU
    python -m benchmarks.remedies --part planted --cases heavy exact
    python -m benchmarks.remedies --table benchmarks/results/remedies_*.json

Each row is written as soon as it is measured and replaces an earlier row of the same case if there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import psutil

from ..common import RESULTS, kept_rows, load, save
from .cases import EXAMPLES, PLANTED, Case, named, quick
from .clock import PAGEABLE, PINNED
from .measure import Settings, measure, scratch
from .rows import Row, broken, merged
from .slots import Slot, divided, usable_cores, usable_gpus
from .tables import line, of_files

PARTS = {"examples": EXAMPLES, "planted": PLANTED}


def main() -> None:
    args = _parse()
    if args.table:
        print(of_files(args.table))
        return
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded: the results name the device used
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # end the started processes first
    memories = (PAGEABLE,) if args.device == "cpu" else (PAGEABLE, PINNED)
    until = time.monotonic() + args.seconds_left
    settings = Settings(
        args.rounds, args.budget, args.apply_budget, until, memories=memories, training=not args.analyses_only
    )
    try:
        slots = divided(args.jobs, usable_cores(), usable_gpus())
    except ValueError as too_many:
        sys.exit(f"--jobs: {too_many}")
    with tempfile.TemporaryDirectory(prefix="remedies-") as made:
        left_out = [name for part in args.part for name in _run(part, args, settings, slots, args.keep or Path(made))]
    if left_out:
        print(f"no time was left for {' '.join(left_out)}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remedies", description=__doc__.split("\n")[0])
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--cases", nargs="+", default=[], metavar="NAME", help="measure only these")
    parser.add_argument("--skip-done", action="store_true", help="skip cases that have a row")
    parser.add_argument("--quick", action="store_true", help="small sizes for a trial on two cores")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each form")
    parser.add_argument("--budget", type=float, help="seconds of an analysis instead of the cases' own")
    parser.add_argument("--apply-budget", type=float, help="seconds for the remedy instead of the cases' own")
    parser.add_argument("--analyses-only", action="store_true", help="do not train: only predict and measure")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, each with its own GPU and cores")
    parser.add_argument("--seconds-left", type=float, default=math.inf, help="start only cases that fit into this time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="use the CPU only for a trial")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep scripts, reports and plans here")
    parser.add_argument("--list", action="store_true", help="only print the cases' names")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print these results' tables")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args()
    try:
        args.chosen = {part: named(part, args.cases) for part in PARTS}
    except KeyError as unknown:
        parser.error(f"there is no case {unknown}")
    if args.list:
        for part, cases in args.chosen.items():
            print(f"{part}:", *(case.name for case in cases))
        sys.exit()
    return args


def _run(part: str, args: argparse.Namespace, settings: Settings, slots: Sequence[Slot], folder: Path) -> list[str]:
    """Measure a part; return the names of the cases without time."""
    name, cores = f"remedies_{part}{'' if settings.training else '_analysed'}", len(slots[0].cores)
    described = {"part": part, "training": settings.training, "quick": args.quick, "cores": cores}
    rows = kept_rows(load(name, args.output), quick=args.quick, cores=cores)
    done = {row["case"] for row in rows} if args.skip_done else set()
    cases = [quick(case) if args.quick else case for case in args.chosen[part] if case.name not in done]
    left_out = []
    for case, row in _measured(cases, settings, slots, folder):
        if row is None:
            left_out.append(case.name)
            continue
        rows = merged(rows, row, [known.name for known in PARTS[part]])
        save(name, {**described, "rows": rows}, args.output)
        print(line(row), flush=True)
    return left_out


def _measured(
    cases: Sequence[Case], settings: Settings, slots: Sequence[Slot], folder: Path
) -> Iterator[tuple[Case, Row | None]]:
    """Yield every case with its row, one case at a time per slot; the row is None if too little time is left."""
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    def one(case: Case) -> Row | None:
        slot = free.get()
        try:
            if time.monotonic() + settings.expected_s(case) > settings.until:
                return None
            slot.pin()
            own = (folder / case.name).resolve()
            scratch(own)
            return measure(case, own, dataclasses.replace(settings, environment=slot.environment))
        except Exception as error:  # measure the other cases anyway
            traceback.print_exc()
            return {"case": case.name, **broken(f"{type(error).__name__}: {error}")}
        finally:
            free.put(slot)

    with ThreadPoolExecutor(len(slots)) as pool:
        futures = {pool.submit(one, case): case for case in cases}
        with _ending_children(futures):
            for future in as_completed(futures):
                yield futures[future], future.result()


@contextmanager
def _ending_children(futures: Collection[Future[Row | None]]) -> Iterator[None]:
    """If this process must end, end whatever the pool's threads wait for and start, until they are done."""
    try:
        yield
    except BaseException:
        for future in futures:
            future.cancel()
        while not all(future.done() for future in futures):
            for child in psutil.Process().children(recursive=True):
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    pass
            time.sleep(0.2)
        raise


if __name__ == "__main__":
    main()

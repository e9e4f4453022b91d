"""Does pipediag's word hold? Analyse scripts of known truth several times, quiet and beside busy processes.

python -m benchmarks.word                            # all scripts beside 0, 1 and 2 busy processes; two hours
python -m benchmarks.word --part 1/4 --out one.json  # a quarter of it; the same call continues what was interrupted
python -m benchmarks.word --join one.json two.json   # parts into the result file
python -m benchmarks.word --slots 8                  # eight scripts at once, each on two cores of its own
python -m benchmarks.word --device cuda              # the scripts for a GPU, quiet and beside 16 busy processes
python -m benchmarks.word --show                     # the table of the saved results
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import common
from ..accuracy.suite import core_pairs
from . import score
from .cases import CASES, KNOWN, Case
from .cells import Plan, measure, missing
from .results import Results, join, tool

#: Busy processes beside the scripts.
LOADS = {"cpu": (0, 1, 2), "cuda": (0, 16)}


def main() -> None:
    args = _parse()
    if args.show:
        print(score.table(json.loads(args.out.read_text())["cells"]))
        return
    if args.join:
        content = join(json.loads(path.read_text()) for path in args.join)
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        print(score.table(content["cells"]))
        return
    env = dict(common.ENVIRONMENT)
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = env["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded
    facts = {**common.circumstances(), "cpu": _cpu(), "budget": args.budget, "turn_seconds": args.seconds}
    if args.device == "cuda" and facts["device"] == "cpu":
        sys.exit("--device cuda: there is no GPU here")
    places = _places(args)
    with tempfile.TemporaryDirectory(prefix="word-") as folder:
        results = Results(args.out, facts, hidden=[f"{folder}/"])
        stop, saying = threading.Event(), threading.Lock()
        version = tool()

        def say(text: str) -> None:
            with saying:
                print(text, flush=True)

        plan = Plan(args.device, args.budget, args.seconds, args.repeats, version, env, args.keep, stop, say)
        left = [
            (case, load)
            for case, load in places
            if any(missing(case, results.cell(case.name, load, version), args.repeats))
        ]
        say(f"pipediag {version}: {len(left)} of {len(places)} cells to measure, into {args.out}")
        _run(left, plan, results, Path(folder), args.slots)
    print()
    print(score.table([*results.cells.values()]))


def _run(places: list[tuple[Case, int]], plan: Plan, results: Results, folder: Path, slots: int) -> None:
    """Measure the cells, each slot on two cores of its own; on a GPU machine a single one takes all cores."""
    pairs: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for pair in core_pairs(slots):
        pairs.put(pair)

    def pin() -> None:
        if plan.device == "cpu":
            os.sched_setaffinity(0, pairs.get())

    with ThreadPoolExecutor(slots, initializer=pin) as pool:
        measured = [
            pool.submit(measure, case, load, plan, results, folder / f"{case.name}-{load}") for case, load in places
        ]
        try:
            for one in measured:
                one.result()
        except BaseException:
            plan.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _places(args: argparse.Namespace) -> list[tuple[Case, int]]:
    """Return the chosen part of the cells; the quiet ones come first."""
    chosen = [case for case in CASES if case.gpu or args.device == "cpu"]
    if args.only:
        chosen = [case for case in chosen if case.name in args.only]
    number, of = args.part
    return [(case, load) for load in args.loads for case in chosen][number - 1 :: of]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.word", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(LOADS), default="cpu")
    parser.add_argument("--budget", type=float, default=30.0, metavar="S", help="seconds for each analysis")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="seconds of each native turn")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[*KNOWN], help="these scripts")
    parser.add_argument("--loads", type=_numbers, metavar="N,N", help="busy processes; default: 0,1,2, on a GPU 0,16")
    parser.add_argument("--repeats", type=int, default=3, help="analyses of each script under each load")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="every N-th cell from the K-th on")
    parser.add_argument("--slots", type=int, default=1, help="cells at once, each on its own two cores")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: results/word-cpu.json, or of the GPU")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the whole reports here")
    parser.add_argument("--join", nargs="+", type=Path, metavar="FILE", help="join result files into --out and exit")
    parser.add_argument("--show", action="store_true", help="print the table of --out and exit")
    args = parser.parse_args()
    if args.device == "cuda" and args.slots > 1:
        parser.error("--device cuda: there is one GPU, so one slot")
    try:
        core_pairs(args.slots)
    except ValueError as error:
        parser.error(f"--slots: {error}")
    args.loads = args.loads or LOADS[args.device]
    args.out = args.out or common.RESULTS / f"word-{_device(args.device)}.json"
    return args


def _device(device: str) -> str:
    if device == "cpu":
        return "cpu"
    return str(common.circumstances()["device"]).lower().replace("nvidia", "").strip().replace(" ", "-")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _part(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError("K/N: K is from 1 to N")
    return number, of


if __name__ == "__main__":
    main()

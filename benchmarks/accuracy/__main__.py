"""Run the planted suite: analyse generated scripts with known costs, and time them natively for the truth."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import suite
from .cases import CPU, GPU, Case
from .score import Score, markdown, score


def main() -> None:
    args = _parse()
    if not args.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded: these cases are about the CPU
    from .. import common

    known = {case.name: case for case in (GPU if args.gpu else CPU)}
    if args.show:
        print(markdown(_scores(common.load("accuracy", args.out))))
        return
    chosen = _chosen(args, known)
    if args.list:
        for case in chosen:
            print(f"{case.label:12}{case.name}{'  (fast)' if case.fast else ''}")
        return
    keeping = args.resume or len(chosen) < len(known)
    earlier = common.load("accuracy", args.out) if keeping else {}
    records: dict[str, dict[str, Any]] = {r["name"]: r for r in earlier.get("cases", []) if r["name"] in known}
    if args.resume:
        chosen = [case for case in chosen if case.name not in records or records[case.name]["error"]]

    # Results of one machine may be completed on another, so every record tells where it comes from.
    where = {key: value for key, value in common.circumstances().items() if key in ("cores", "python", "torch")}

    def done(record: dict[str, Any]) -> None:
        record |= {"on": where, "budget": args.budget, "slots": args.slots, "repeats": args.repeats}
        records[record["name"]] = record
        ordered = [records[name] for name in known if name in records]
        common.save("accuracy", {"budget": args.budget, "slots": args.slots, "cases": ordered}, args.out)
        print(_line(record, len(records), len(known)), flush=True)

    options = suite.Options(args.budget, args.repeats, args.keep, suite.environment(common.ENVIRONMENT))
    suite.run(chosen, options, args.slots, done)
    print()
    print(markdown([score(record) for record in records.values()]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run these cases, keep other results")
    parser.add_argument(
        "--class", dest="label", metavar="X", help="run the cases with this verdict, keep other results"
    )
    parser.add_argument("--fast", action="store_true", help="run the cases that the tests run")
    parser.add_argument("--gpu", action="store_true", help="run the cases that need a GPU instead of the others")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds for each analysis; 0: truth only")
    parser.add_argument("--repeats", type=int, default=3, help="native runs of each form; 0 for no truth")
    parser.add_argument("--slots", type=int, default=1, help="cases at once, each on its own two cores")
    parser.add_argument("--resume", action="store_true", help="run only cases that failed or have no result")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    parser.add_argument("--show", action="store_true", help="print the tables of the saved results and exit")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "results")
    parser.add_argument("--keep", type=Path, help="keep scripts and reports in this folder")
    args = parser.parse_args()
    if args.gpu and args.slots > 1:
        parser.error("--gpu: there is one GPU, so one slot")
    try:
        suite.core_pairs(args.slots)
    except ValueError as error:
        parser.error(f"--slots: {error}")
    return args


def _chosen(args: argparse.Namespace, known: dict[str, Case]) -> list[Case]:
    unknown = [name for name in args.only if name not in known]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; --list names them")
    if args.gpu:
        import torch

        if not torch.cuda.is_available() and not args.list:
            sys.exit("--gpu: there is no GPU here")
    return [
        case
        for case in known.values()
        if (not args.only or case.name in args.only)
        and (args.label is None or case.label == args.label)
        and (not args.fast or case.fast)
    ]


def _scores(saved: dict[str, Any]) -> Sequence[Score]:
    return [score(record) for record in saved.get("cases", [])]


def _line(record: dict[str, Any], number: int, of: int) -> str:
    """Return one finished case as a progress line."""
    scored = record["score"]
    found = record["report"]["verdict"]["culprit"] if record["report"] else None
    costs = ", ".join(f"{a['key']} {a['found_ms']:.1f} (true {a['truth_ms']:.1f})" for a in scored["attributions"])
    right = "" if scored["verdict_right"] else f"  NOT {scored['expected']}"
    parts = [
        f"[{number}/{of}] {record['name']}: {scored['verdict']}{right}",
        f"culprit {scored['culprit']}{' ' + found['name'] + ' ' + found['where'] if found else ''}",
        costs,
        "" if scored["confirmed"] else "UNCONFIRMED",
        record["error"],
        f"{record['seconds_analysis']:.0f} + {record['seconds_native']:.0f} s",
    ]
    return " | ".join(part for part in parts if part)


if __name__ == "__main__":
    main()

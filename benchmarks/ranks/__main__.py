"""Analyse planted jobs of two to four ranks, and time the same jobs without pipediag.

python -m benchmarks.ranks                          # all jobs; about 25 minutes on two cores
python -m benchmarks.ranks --only step-2-ranks      # some jobs, with the others of the result file kept
python -m benchmarks.ranks --resume                 # jobs that failed or have no result
python -m benchmarks.ranks --show                   # the table of the saved results
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipediag.analysis.ranks.stragglers import straggler_of
from pipediag.session import Session

from ..common import ENVIRONMENT, RESULTS, load, save
from .cases import CASES, Case
from .score import answer, markdown, summary

SCRIPT = str(Path(__file__).resolve().with_name("script.py"))
#: Most seconds of a job beyond the time in which it is measured: its start-up and its end.
PATIENCE = 90.0


def main() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ENVIRONMENT["CUDA_VISIBLE_DEVICES"] = ""  # these jobs are about the CPU
    args = _parse()
    known = {case.name: case for case in CASES}
    if unknown := [name for name in args.only if name not in known]:
        sys.exit(f"no such job: {', '.join(unknown)}; there are {', '.join(known)}")
    keeping = args.only or args.resume or args.show
    earlier = load("ranks", args.out).get("jobs", []) if keeping else []
    records = {record["name"]: record for record in earlier if record["name"] in known}
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    if args.resume:
        chosen = [case for case in chosen if case.name not in records or records[case.name]["error"]]
    for number, case in enumerate([] if args.show else chosen, 1):
        record = measure(case, case.budget or args.budget, args.seconds)
        records[case.name] = record
        jobs = [records[name] for name in known if name in records]
        result = {"budget": args.budget, "seconds_native": args.seconds, "summary": summary(jobs), "jobs": jobs}
        save("ranks", result, args.out)
        named = record["found"] and (record["found"]["kind"], record["found"]["ranks"])
        print(f"[{number}/{len(chosen)}] {case.name}: {answer(record)} {named or ''} {record['error']}", flush=True)
    jobs = [records[name] for name in known if name in records]
    print(markdown(jobs))
    print(summary(jobs))


def measure(case: Case, budget: float, seconds: float) -> dict[str, Any]:
    """Analyse a job and time it natively; return its record."""
    record: dict[str, Any] = {
        "name": case.name,
        "kind": case.kind,
        "ranks": case.ranks,
        "holds": case.holds,
        "late": case.late,
        "budget": budget,
        "found": None,
        "error": "",
        "trials": 0,
    }
    speeds = dict.fromkeys(("native", "native_cached", "baseline", "device"))
    began = time.monotonic()
    try:
        report = analyse(case, budget)
        session = Session.from_dict(report["session"])
        straggler = straggler_of(session)
        if straggler is not None:
            record["found"] = {"ranks": [*straggler.ranks], "kind": straggler.kind, "sentence": straggler.sentence}
        record["trials"] = len(session.rank_trials)
        record["seconds"] = round(time.monotonic() - began, 1)
        for rung in ("baseline", "device"):
            windows = session.windows_of(rung)
            if windows:
                speeds[rung] = round(sum(w.steps for w in windows) / sum(w.seconds for w in windows), 4)
        if seconds:
            speeds["native"] = native(case, seconds, False)
            speeds["native_cached"] = native(case, seconds, True)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        record["error"] = str(error)
    record.setdefault("seconds", round(time.monotonic() - began, 1))
    return {**record, "steps_per_s": speeds}


def analyse(case: Case, budget: float) -> dict[str, Any]:
    """Return the JSON report of the job.

    Raises:
        RuntimeError: the analysis has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pipediag", "analyze", "--budget", str(budget), "-o", str(report)]
        _run([*command, *_job(case)], 2 * budget, folder)
        return dict(json.loads(report.read_text()))


def native(case: Case, seconds: float, cached: bool) -> float:
    """Return the steps per second of the job without pipediag, timed over about ``seconds``.

    Raises:
        RuntimeError: the job has failed.
    """
    steps = round(1000 * seconds / case.expected_ms(cached))
    with tempfile.TemporaryDirectory() as folder:
        command = [*_job(case), "--steps", str(steps), *(["--cached"] if cached else [])]
        said = _run(command, 3 * seconds, folder)
    found = re.search(r"steps/s (\S+)", said)
    if found is None:
        raise RuntimeError(f"the script printed no speed: {said[-300:]}")
    return float(found.group(1))


def _job(case: Case) -> list[str]:
    return ["torchrun", "--standalone", "--nproc-per-node", str(case.ranks), SCRIPT, *case.arguments]


def _run(command: list[str], seconds: float, folder: str) -> str:
    """Return what a command printed; it and what it has started are ended if it takes too long.

    Raises:
        RuntimeError: it has failed.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds + PATIENCE)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {err[-500:]}")
    return out


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="JOB", help="run these jobs, keep other results")
    parser.add_argument("--resume", action="store_true", help="run only jobs that failed or have no result")
    parser.add_argument("--show", action="store_true", help="print the table of the saved results and exit")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each analysis")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each native run; 0: none")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

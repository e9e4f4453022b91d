"""Watch running scripts of known truth.

python -m benchmarks.watch               # all scripts, into results/watch-cpu.json; half an hour
python -m benchmarks.watch remote        # some of them; others in the file stay
python -m benchmarks.watch --turns 1     # also what cached batches would save, in turns, natively
python -m benchmarks.watch --pace 6      # the pace of two scripts with and without watching, in six turns each
python -m benchmarks.watch --show        # the table of the saved results

The truth is the share of its time that a script waits for its batches, as it times itself while it is watched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from .. import common
from ..word import truth as word_truth
from ..word.cases import KNOWN
from .cases import CASES, SCRIPTS, Case

OUT = common.RESULTS / "watch-cpu.json"
#: Largest error of the share, in points, and longest time until the first answer.
NEAR, SOON = 12, 5.0
#: Scripts whose pace is measured with and without watching: one does not starve, the other does.
_PACED = ("own_step", "jpeg_decode")
#: Seconds of watching before the first answer.
_FIRST = 2.5
#: From this share on a loop starves; a truth so near to it is measured to be on either side.
STARVES, AT_THE_GATE = 0.05, 0.03
_MARKS = ("starved", "near", "line", "soon", "steps")
#: Seconds of a turn of the truth, and of its start, and how long a script may take to begin.
TURN, SETTLE, LIMIT = 6.0, 3.0, 180.0


class Running:
    """A script that runs, and the lines that it prints about its pace."""

    def __init__(self, case: Case, folder: Path, *more: str) -> None:
        script = folder / case.script
        script.write_text(case.paced, encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(SCRIPTS), "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [*case.launcher, str(script), *case.arguments, *more],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.of_rank: dict[str, list[tuple[float, int, float]]] = {"0": []}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if len(words) == 4 and words[1].isdecimal():
                self.of_rank.setdefault(words[3], []).append((float(words[0]), int(words[1]), float(words[2])))

    @property
    def lines(self) -> list[tuple[float, int, float]]:
        return self.of_rank["0"]

    def wait_for(self, lines: int) -> None:
        """Wait until the script has printed so many lines more."""
        begun, wanted = time.monotonic(), len(self.lines) + lines
        while len(self.lines) < wanted:
            if self.process.poll() is not None or time.monotonic() - begun > LIMIT:
                raise RuntimeError(f"it printed {len(self.lines)} lines")
            time.sleep(0.05)

    def pace(self, after: float, until: float = math.inf) -> float:
        """Return the steps per second between two times, by the lines inside."""
        inside = [line for line in self.lines if after <= line[0] <= until]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else 0.0

    def waits(self, after: float, until: float = math.inf) -> float:
        """Return the share of the time between that the loop waited, as it timed itself; the largest of all ranks."""
        shares = [0.0]
        for lines in self.of_rank.values():
            inside = [line for line in lines if after <= line[0] <= until]
            if len(inside) > 1:
                shares.append((inside[-1][2] - inside[0][2]) / (inside[-1][0] - inside[0][0]))
        return max(shares)

    def measured(self, seconds: float) -> float:
        self.wait_for(2)
        time.sleep(SETTLE)
        begun = time.time()
        while time.time() - begun < seconds or self.pace(begun) == 0:
            self.wait_for(1)
        return self.pace(begun)

    def end(self) -> None:
        below = psutil.Process(self.process.pid).children(recursive=True)  # a launcher's ranks have groups of their own
        os.killpg(self.process.pid, signal.SIGKILL)
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()


@contextmanager
def running(case: Case, *more: str) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="watch-") as folder:
        one = Running(case, Path(folder), *more)
        try:
            yield one
        finally:
            one.end()


def truth(case: Case, turns: int) -> dict[str, Any]:
    """Return milliseconds a step, plain and on kept batches, in turns, and the share that data costs."""
    if case.of_word:
        with tempfile.TemporaryDirectory(prefix="watch-") as folder:
            env = {**common.ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""}
            asked = ("plain", "cached") * turns
            found = word_truth.measure(KNOWN[Path(case.script).stem], Path(folder), "cpu", asked, TURN, env)
        plain, cached = ([one["ms"] for one in found if one["turn"] == turn] for turn in ("plain", "cached"))
        return {"plain_ms": plain, "cached_ms": cached, "share": _share(plain, cached)}
    plain, cached = [], []
    for _ in range(turns):
        for kept, more in ((plain, ()), (cached, ("--cached",))):
            with running(case, *more) as one:
                kept.append(1000 / one.measured(TURN))
    return {"plain_ms": plain, "cached_ms": cached, "share": _share(plain, cached)}


def _share(plain: list[float], cached: list[float]) -> float:
    return round(max(0.0, 1 - sum(cached) / sum(plain)), 4)


def watched(case: Case, seconds: float) -> dict[str, Any]:
    """Return what pipediag says of the running script, and how soon."""
    with running(case) as one:
        one.wait_for(3)
        begun = time.time()
        command = [
            sys.executable,
            "-m",
            "pipediag",
            "watch",
            "--json",
            "--seconds",
            str(seconds),
            str(pid_of(case, one)),
        ]
        process = subprocess.Popen(
            command, env=common.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        first = process.stderr.readline().strip()
        soon = time.time() - begun
        out, error = process.communicate()
        if process.returncode:
            return {"failed": f"{first} {error}".strip()}
        report = json.loads(out)
        since = begun + soon - _FIRST
        until = since + report["session"]["watched"]["seconds"]
        pace, waits = one.pace(since, until), one.waits(since, until)
    verdict, session = report["verdict"], report["session"]
    culprit = verdict["culprit"] or {"name": "", "where": ""}
    baseline = next(rung for rung in report["rungs"] if rung["name"] == "baseline")
    counts = session["watched"]["steps_by"]
    return {
        "first_s": round(soon, 2),
        "bottleneck": verdict["bottleneck"],
        "share": verdict["starved"]["value"],
        "interval": [verdict["starved"]["low"], verdict["starved"]["high"]],
        "culprit": culprit["name"],
        "where": culprit["where"].replace(f"{common.ROOT}/", ""),
        "steps_per_s": baseline["steps_per_s"]["value"] if counts else None,
        "steps_by": counts,
        "pace": round(pace, 3),
        "waits": round(waits, 4),
        "moments": session["watched"]["looks"],
        "shares": session["watched"]["shares"],
    }


def paces(case: Case, turns: int, seconds: float) -> dict[str, Any]:
    """Return the steps a second of turns without and with a watch, and the CPU seconds of each watch.

    A watched turn lasts from pipediag's start to its end. Turns stand in the order without, with, with, without.
    """
    found: dict[str, list[float]] = {"without": [], "with": [], "cpu_s": []}
    with running(case) as one:
        one.wait_for(3)
        command = [sys.executable, "-m", "pipediag", "watch", "-q", "--seconds", str(seconds), str(pid_of(case, one))]
        for turn in range(2 * turns):
            begun, watches = time.time(), turn % 4 in (1, 2)
            if watches:
                before = _cpu_of_children()
                subprocess.run(command, env=common.ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
                found["cpu_s"].append(round(_cpu_of_children() - before, 3))
            else:
                time.sleep(seconds + 2)
            ended = time.time()
            one.wait_for(1)
            found["with" if watches else "without"].append(round(one.pace(begun, ended), 3))
    return found


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pid_of(case: Case, one: Running) -> int:
    """Return the process to watch: below a program that only makes a namespace, its child."""
    if case.launcher[0] != "unshare":
        return one.process.pid
    return int(Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()[0])


def judged(case: Case, row: dict[str, Any]) -> dict[str, bool | None]:
    """Return whether the answer was right: starved or not, the share, the line, the time, the steps per second.

    None stands for starved or not if the truth lies at the gate, for steps that were not counted, and for the line of a
    script that starves only because other processes take its cores.
    """
    seen, true = row["watch"], row["truth"]
    if "failed" in seen:
        return dict.fromkeys(("starved", "near", "line", "soon", "steps"), False)
    open_, said = abs(true - STARVES) <= AT_THE_GATE, seen["bottleneck"]
    blames_none = None if open_ or true >= STARVES else said == "none"
    return {
        "starved": None if open_ else said != "inconclusive" and (said != "none") == (true >= STARVES),
        "near": 100 * abs(seen["share"] - true) <= NEAR,
        "line": case.names(seen["culprit"], seen["where"]) if case.starves else blames_none,
        "soon": seen["first_s"] <= SOON,
        "steps": None if seen["steps_per_s"] is None else abs(seen["steps_per_s"] / seen["pace"] - 1) < 0.2,
    }


def table(rows: dict[str, Any]) -> str:
    lines = [
        f"{'script':20} {'truth':>6} {'turns':>6} {'said':>6} {'interval':>12}  s n l t r  steps/s (true)  culprit"
    ]
    for name, row in rows.items():
        seen, right, turns = row["watch"], row["right"], row.get("turns", {}).get("share")
        marks = " ".join({True: "+", False: "-", None: "."}[right[key]] for key in _MARKS)
        if "failed" in seen:
            lines.append(f"{name:20} {seen['failed'][:80]}")
            continue
        low, high = (round(100 * end) for end in seen["interval"])
        pace = f"{seen['steps_per_s']:.3g}" if seen["steps_per_s"] is not None else "unknown"
        pace = f"{pace} ({seen['pace']:.3g})"
        shares = [row["truth"], turns, seen["share"]]
        told = " ".join(f"{100 * share:5.0f}%" if share is not None else " " * 6 for share in shares)
        culprit = f"{seen['culprit'][:30]} {Path(seen['where']).name}"
        lines.append(f"{name:20} {told} {f'{low} to {high}':>12}  {marks}  {pace:>16}  {culprit}")
    for key in _MARKS:
        found = [row["right"][key] for row in rows.values()]
        lines.append(f"{key}: {found.count(True)} right, {found.count(False)} not, {found.count(None)} open")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=0, help="pairs of turns, plain and on kept batches, beside")
    parser.add_argument("--pace", type=int, default=0, metavar="TURNS", help="measure the target's pace alone")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    content = json.loads(args.out.read_text()) if args.out.exists() else {"rows": {}}
    if args.show:
        for case in CASES:
            if case.name in content["rows"]:
                content["rows"][case.name]["right"] = judged(case, content["rows"][case.name])
        print(table(content["rows"]))
        return
    for case in CASES:
        if case.name not in (args.names or (_PACED if args.pace else [one.name for one in CASES])):
            continue
        if args.pace:
            content.setdefault("paces", {})[case.name] = measured = paces(case, args.pace, args.seconds)
            args.out.write_text(json.dumps(content, indent=1) + "\n")
            ratio = sum(measured["with"]) / sum(measured["without"])
            print(f"{case.name}: {ratio:.4f} of the pace without, {measured}", flush=True)
            continue
        if case.needs and importlib.util.find_spec(case.needs) is None:
            print(f"{case.name}: needs {case.needs}", flush=True)
            continue
        row: dict[str, Any] = dict(content["rows"].get(case.name, {}))
        try:
            if args.turns:
                row["turns"] = truth(case, args.turns)
            row["watch"] = watched(case, args.seconds)
            row["truth"] = row["watch"].get("waits", 0.0)
        except RuntimeError as error:
            print(f"{case.name}: {error}", flush=True)
            continue
        row["right"], row["load_average"] = judged(case, row), round(os.getloadavg()[0], 1)
        content["rows"][case.name] = row
        ordered = {one.name: content["rows"][one.name] for one in CASES if one.name in content["rows"]}
        content = {**content, **common.circumstances(), "seconds": args.seconds, "rows": ordered}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        print(table({case.name: row}).splitlines()[1], flush=True)
    if not args.pace:
        print(table(content["rows"]))


if __name__ == "__main__":
    main()

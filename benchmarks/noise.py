"""Test the width of the intervals, and how soon a gain is certain, on recorded runs with planted gains.

A trial walks through the record from a random place under two conditions. The second condition has all times divided by
1 + gain. The machine's speed is random. The record is short (33 rounds of the workers per run), so the walk turns at
its ends. ``stretches`` jumps to another place after every second pair on average (stationary bootstrap, Politis and
Romano, JASA 89, 1994), so that long walks do not repeat; ``as it ran`` never jumps. The seconds include settling; a
condition that continues is already settled.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pipediag.analysis.numbers import paired_windows
from pipediag.analysis.numbers.intervals import CONFIDENCE, Interval
from pipediag.analysis.numbers.paired_windows import LEAST, PACE, PRODUCTION, UNKNOWN, WORKERS, Noise, student_t

GAINS = (0.0, 0.05, 0.15, 0.30, 1.0)
PAIRS = (2, 3, 4, 6, 8, 12)
GROUPS = (3, 4, 6, 8)
MOST = 24
SETTLING, OLD_SETTLING, OLD_WINDOW = 2, 3.0, 1.2
JUMP = {"stretches": 0.5, "as it ran": 0.0}
RESAMPLES = 1000
Window = dict[str, float]


def median_before(values: Sequence[float]) -> Interval:
    """The former estimator: the median, with a percentile bootstrap stretched by Student's t.

    See Hesterberg, The American Statistician 69(4), 2015, section 3.2.
    """
    n, centre = len(values), statistics.median(values)
    if n == 1:
        return Interval(centre, -math.inf, math.inf)
    draw = random.Random(n)
    medians = sorted(statistics.median(draw.choices(values, k=n)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    low, high = medians[int(tail * RESAMPLES)], medians[int((1 - tail) * RESAMPLES) - 1]
    z = statistics.NormalDist().inv_cdf(1 - tail)
    stretch = student_t(n - 1) / z * math.sqrt(n / (n - 1))
    below, above = stretch * (centre - low), stretch * (high - centre)
    if n < 5:
        below = above = max(below, above)
    return Interval(centre, centre - below, centre + above)


def ratio_before(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    logs = median_before([math.log(s / f) for s, f in zip(slow, fast, strict=True)])
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high) if logs.high < 700 else math.inf)


class Record:
    """One recorded run, endless: sums over any steps of time, batches made, workers' time and waiting time."""

    def __init__(self, run: dict[str, Any], calm: float = 1.0) -> None:  # exponent of the times: 0.1 for a quiet host
        self.workers: int = run["workers"]
        steps, made = run["steps"], run["made"]
        kept = range(3 * self.workers, len(steps) - 1)  # without the start, which uses queued batches
        lasted = [steps[i + 1][0] - steps[i][0] for i in kept]
        mean = statistics.fmean(lasted)
        columns: dict[str, list[float]] = {
            "time": [mean * (one / mean) ** calm for one in lasted],
            "batches": [1 + calm * (sum(steps[i + 1][3:]) - sum(steps[i][3:])) for i in kept],
            "work": [made[i][4] - made[i][1] for i in kept],
            "waited": [steps[i][1] - steps[i][0] for i in kept],
        }
        self.period = 2 * len(kept)
        self.sums = {name: [0.0, *itertools.accumulate(one + one[::-1])] for name, one in columns.items()}

    def sum(self, name: str, first: int, last: int) -> float:
        upto = self.sums[name]
        rounds, rest = divmod(last, self.period)
        before, start = divmod(first, self.period)
        return (rounds - before) * upto[-1] + upto[rest] - upto[start]


@dataclass
class Policy:
    """The length of windows and of settling, in rounds of the workers, or in seconds as before."""

    rounds: int = 3
    old: bool = False

    def settled(self, record: Record, at: int, slower: float, again: bool) -> int:
        if self.old:
            return _after(record, at, OLD_SETTLING / slower)
        return at if again else at + SETTLING * record.workers

    def ended(self, record: Record, at: int, slower: float) -> int:
        return _after(record, at, OLD_WINDOW / slower) if self.old else at + self.rounds * record.workers


def _after(record: Record, at: int, seconds: float) -> int:
    """Return the first step after ``seconds``."""
    last = at + 1
    while record.sum("time", at, last) < seconds:
        last += 1
    return last


@dataclass
class Trial:
    """Windows of both conditions, the seconds after each pair, and the true time per step along the walk."""

    slow: list[Window]
    fast: list[Window]
    seconds: list[float]
    truth: list[float]


def walk(record: Record, draw: random.Random, policy: Policy, gain: float, pairs: int, jump: float) -> Trial:
    trial = Trial([], [], [], [])
    speed = math.exp(draw.uniform(math.log(0.5), math.log(2.0)))
    at, first, now, clock, true = draw.randrange(record.period), draw.randrange(2), -1, 0.0, [0.0, 0.0]
    for pair in range(pairs):
        start = at = draw.randrange(record.period) if draw.random() < jump else at
        for turn in (0, 1):
            condition = (first + pair + turn) % 2
            factor = 1 / speed / (1 + gain * condition)
            begun = policy.settled(record, at, factor, condition == now)
            last = policy.ended(record, begun, factor)
            steps, batches = last - begun, max(1.0, record.sum("batches", begun, last))
            time = factor * record.sum("time", begun, last)
            window = {"pace": time / steps, "production": time / batches}
            window["work"] = factor * record.sum("work", begun, last) / steps
            (trial.fast if condition else trial.slow).append(window)
            clock += factor * record.sum("time", at, begun) + time
            at, now = last, condition
        true = [true[0] + record.sum("time", start, at) / speed, true[1] + at - start]
        trial.seconds.append(clock)
        trial.truth.append(true[0] / true[1])
    return trial


def _columns(trial: Trial, name: str, n: int) -> tuple[list[float], list[float]]:
    return [window[name] for window in trial.slow[:n]], [window[name] for window in trial.fast[:n]]


def coverage(found: Sequence[tuple[Interval, float]]) -> dict[str, float]:
    """Return how many intervals contain the truth, in percent, and the median half-width relative to the value."""
    held = sum(one.low <= truth <= one.high for one, truth in found)
    arms = [(one.high - one.low) / 2 / one.value for one, _ in found]
    return {
        "coverage_pct": round(100 * held / len(found), 1),
        "half_width_pct": round(100 * statistics.median(arms), 1),
    }


Decide = Callable[[list[float], list[float], int], "bool | None"]


def decided_before(slow: list[float], fast: list[float], n: int) -> bool | None:
    """Judge a remedy as before: by a bootstrapped median after four pairs, and again after eight."""
    if n not in (4, 8, 16):
        return None
    gain = ratio_before(slow[:n], fast[:n])
    return True if gain.low > LEAST else False if gain.high < LEAST else None


def by(noise: Noise) -> Decide:
    def decide(slow: list[float], fast: list[float], n: int) -> bool | None:
        return paired_windows.sure_gain(slow[:n], fast[:n], noise) if n in paired_windows.looks(MOST) else None

    return decide


def decisions(trials: Sequence[Trial], name: str, decide: Decide) -> dict[str, Any]:
    ends: list[tuple[bool | None, float]] = []
    for trial in trials:
        slow, fast = _columns(trial, name, MOST)
        said = ((decide(slow, fast, n), n) for n in range(2, MOST + 1))
        verdict, n = next(((verdict, n) for verdict, n in said if verdict is not None), (None, MOST))
        ends.append((verdict, trial.seconds[n - 1] if verdict is not None else math.inf))
    when = statistics.median(seconds if verdict else math.inf for verdict, seconds in ends)
    return {
        "gain_pct": round(100 * sum(verdict is True for verdict, _ in ends) / len(ends), 1),
        "no_gain_pct": round(100 * sum(verdict is False for verdict, _ in ends) / len(ends), 1),
        "median_s_until_gain": round(when, 1) if math.isfinite(when) else None,
    }


NEW: dict[str, tuple[str, Policy, Noise, float]] = {
    "pace, 3 rounds": ("pace", Policy(3), PACE, 1.0),
    "production, 3 rounds": ("production", Policy(3), PRODUCTION, 1.0),
    "work, 1 round": ("work", Policy(1), WORKERS, 1.0),
    "work, 3 rounds": ("work", Policy(3), WORKERS, 1.0),
    "pace, 3 rounds, plain t": ("pace", Policy(3), UNKNOWN, 1.0),
    "pace, 3 rounds, quiet host": ("pace", Policy(3), PACE, 0.1),
}


def measure(runs: list[dict[str, Any]], times: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for title, (name, policy, noise, calm) in {"before": ("pace", Policy(old=True), PACE, 1.0), **NEW}.items():
        records = [Record(run, calm) for run in runs]
        for how, jump in JUMP.items():
            if jump == 0.0 and (title == "before" or calm < 1 or noise is UNKNOWN):
                continue
            draw = random.Random(seed)
            row: dict[str, Any] = {"ratio": {}, "level": {}, "decided": {}}
            for gain in GAINS:
                trials = [walk(records[i % 2], draw, policy, gain, MOST, jump) for i in range(times)]
                decide = decided_before if policy.old else by(noise)
                row["decided"][f"{100 * gain:.0f} %"] = decisions(trials, name, decide)
                for n in PAIRS if gain in (0.0, 0.15) else ():
                    ratios, levels = [], []
                    for trial in trials:
                        slow, fast = _columns(trial, name, n)
                        one = ratio_before(slow, fast) if policy.old else paired_windows.paired_ratio(slow, fast, noise)
                        ratios.append((one, 1 + gain))
                        one = median_before(slow) if policy.old else paired_windows.mean_rate(slow, noise)
                        levels.append((one, trial.truth[n - 1]))
                    row["ratio"].setdefault(f"{100 * gain:.0f} %", {})[n] = coverage(ratios)
                    if gain == 0.0 and name == "pace":
                        row["level"][n] = coverage(levels)
            found[f"{title} ({how})"] = row
            print(title, how, json.dumps(row["decided"]["15 %"]), flush=True)
    return found


def shares(runs: list[dict[str, Any]], times: int, seed: int) -> dict[str, Any]:
    """Compare the waiting share over n rounds with that of its n rounds, and with as many on either side."""
    draw, found, records = random.Random(seed), {}, [Record(run) for run in runs]
    for n in (3, 4, 6, 8, 12):
        rows: dict[str, list[tuple[Interval, float]]] = {"before": [], **{f"{g} groups": [] for g in GROUPS}}
        for i in range(times):
            record = records[i % 2]
            w, at = record.workers, draw.randrange(record.period)
            blocks = [*itertools.pairwise(at + w * j for j in range(n + 1))]
            waited, whole = ([record.sum(c, a, b) for a, b in blocks] for c in ("waited", "time"))
            far = at - n * w, at + 2 * n * w
            truth = record.sum("waited", *far) / record.sum("time", *far)
            rows["before"].append((median_before([a / b for a, b in zip(waited, whole, strict=True)]), truth))
            for groups in GROUPS:
                with mock.patch.object(paired_windows, "GROUPS", groups):
                    rows[f"{groups} groups"].append((paired_windows.share(waited, whole), truth))
        found[f"{n} rounds"] = {name: coverage(row) for name, row in rows.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="host_noise.json")
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results/noise.json"))
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    runs = json.loads(args.data.read_text())
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "parameters": {"times": args.times, "seed": args.seed, "settling_rounds": SETTLING, "most_pairs": MOST},
        "comparisons": measure(runs, args.times, args.seed),
        "share": shares(runs, args.times, args.seed),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

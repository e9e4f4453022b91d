"""Measure what a plant really costs: time the same loop with and without it, in alternation, without pipediag."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import scripts, timing
from .cases import Case
from .timing import Timed

#: Number of timed runs of every form of a script.
REPEATS = 3
#: Maximum seconds of a timed run: startup, warm-up and timing.
PATIENCE = 120.0


@dataclass(frozen=True)
class Cost:
    """Milliseconds per step: the median of the pairs, and their minimum and maximum."""

    ms: float
    low: float
    high: float


@dataclass(frozen=True)
class Truth:
    """The cost of each plant; ``whole`` is the cost of all plants, or of a ``none`` case's whole input pipeline."""

    baseline_ms: float
    waited_ms: float
    whole: Cost
    costs: dict[str, Cost]
    runs: dict[str, list[float]]

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def forms(case: Case) -> dict[str, str]:
    """Return the timed scripts of a case by name, from the one without plants to the complete one.

    Each form adds one plant to the form before it, from the device outwards, like the rungs of the ladder. A case that
    does not starve is compared with its loop on batches made beforehand.
    """
    if case.label == "none":
        cached = scripts.write(case, timed=True, cached=True)
        return {"cached": cached, "whole": scripts.write(case, timed=True)}
    plants = case.planted
    made = {"bare": scripts.write(case, (), timed=True)}
    for count, plant in enumerate(plants, 1):
        made[plant.key] = scripts.write(case, plants[:count], timed=True)
    return made


def measure(case: Case, folder: Path, environment: Mapping[str, str], repeats: int = REPEATS) -> Truth:
    """Time every form of the case's script, round by round.

    Raises:
        RuntimeError: a form failed; the message holds its output.
    """
    paths = {}
    for name, text in forms(case).items():
        paths[name] = folder / f"native_{name.replace(':', '_')}.py"
        paths[name].write_text(text)
    rounds: list[dict[str, Timed]] = []
    for number in range(repeats):
        order = list(paths) if number % 2 == 0 else list(reversed(paths))  # no form always runs first
        rounds.append({name: _run(paths[name], environment) for name in order})
    return conclude(list(paths), rounds)


def conclude(names: Sequence[str], rounds: Sequence[Mapping[str, Timed]]) -> Truth:
    """Return the costs, from rounds in which every form was timed once.

    ``names`` go from the form without plants to the complete one.
    """
    last = names[-1]
    return Truth(
        baseline_ms=statistics.median(r[last].ms for r in rounds),
        waited_ms=statistics.median(r[last].waited_ms for r in rounds),
        whole=_cost([r[last].ms - r[names[0]].ms for r in rounds]),
        costs={
            with_: _cost([r[with_].ms - r[without].ms for r in rounds]) for without, with_ in itertools.pairwise(names)
        },
        runs={name: [r[name].ms for r in rounds] for name in names},
    )


def _cost(differences: Sequence[float]) -> Cost:
    return Cost(statistics.median(differences), min(differences), max(differences))


def _run(script: Path, environment: Mapping[str, str]) -> Timed:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} ended with {done.returncode}: {done.stderr[-600:]}")
    return timing.read(done.stdout)

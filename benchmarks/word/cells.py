"""Measure one script under one load: its native turns around its analyses, in the same minutes."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from . import asking, score, truth
from .busy import busy, in_use
from .cases import Case
from .native import CACHED, PLAIN
from .results import Results


@dataclass(frozen=True)
class Plan:
    """What to do with every script.

    Attributes:
        device: ``cpu`` or ``cuda``.
        budget: seconds for each analysis.
        seconds: seconds of each native turn.
        repeats: analyses of a script under a load.
        version: of pipediag.
        env: the environment of all that runs.
        keep: a folder for whole reports.
        stop: when set, nothing more is begun.
        say: called with every finished line.
    """

    device: str
    budget: float
    seconds: float
    repeats: int
    version: str
    env: Mapping[str, str]
    keep: Path | None
    stop: Event
    say: Callable[[str], None]


#: Turns that are taken together, and how often a complete cell has them.
_TURNS, PAIRS = (PLAIN, CACHED), 2


def missing(case: Case, cell: Mapping[str, Any], repeats: int) -> tuple[list[int], bool]:
    """Return the numbers of the analyses that a cell lacks, and whether it lacks native turns."""
    made = {answer["repeat"] for answer in cell["answers"]}
    turns = Counter(turn["turn"] for turn in cell["turns"])
    short = min(turns[kind] for kind in _TURNS) < PAIRS or (bool(case.free) and not turns[truth.FREE])
    return [number for number in range(repeats) if number not in made], short


def measure(case: Case, load: int, plan: Plan, results: Results, folder: Path) -> None:
    """Measure what is missing of a script beside ``load`` busy processes, on the cores of this thread.

    Turns of the plain script and of the one on kept batches come before and after the analyses, whose lines are judged
    by the turns so far. A failure is said and recorded; the rest goes on.
    """
    cell = results.cell(case.name, load, plan.version)
    numbers, short = missing(case, cell, plan.repeats)
    if plan.stop.is_set() or not (numbers or short):
        return
    folder.mkdir(parents=True, exist_ok=True)
    cores = os.sched_getaffinity(0)
    cell.update(
        on_cores=len(cores),
        others_used=in_use(cores),
        began=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )

    if (cell["others_used"] or 0) > score.DISTURBED:
        plan.say(f"{case.name} beside {load} | others use {cell['others_used']:.1f} of {len(cores)} cores")

    def turns(*kinds: str) -> None:
        if plan.stop.is_set():
            return
        try:
            results.add(cell, "turns", *truth.measure(case, folder, plan.device, kinds, plan.seconds, dict(plan.env)))
        except RuntimeError as error:
            plan.say(f"{case.name} beside {load} | no truth: {error}")

    with busy(load):
        turns(*_TURNS)
        for number in numbers:
            if plan.stop.is_set():
                return
            answer = _analysis(case, load, number, plan, folder)
            results.add(cell, "answers", answer)
            plan.say(score.line(case, load, score.truth(cell), answer))
        turns(*_TURNS)
        if case.free:
            turns(truth.FREE)
    plan.say(f"{case.name} beside {load} | truth {score.shown(score.truth(cell))}")


def _analysis(case: Case, load: int, number: int, plan: Plan, folder: Path) -> dict[str, Any]:
    script = folder / f"{case.name}.py"
    script.write_text(case.source)
    keep = plan.keep / f"{case.name}-{load}-{number}.json" if plan.keep else None
    return {"repeat": number, **asking.ask(script, case.arguments(plan.device), plan.budget, dict(plan.env), keep)}

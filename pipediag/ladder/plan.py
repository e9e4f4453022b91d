"""Define what one pass measures. The plan is plain data: it goes from the parent to the child as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..session import CONTROLS, RUNGS

#: Maximum share of the budget for trying other settings of the loader after the ladder.
KNOBS_SHARE = 1 / 3


@dataclass
class Plan:
    """What one pass measures.

    Attributes:
        budget: seconds left for measuring, from the first batch on.
        attempt: number of the pass, from 1.
        why: why the script runs again, in words; empty for the first pass.
        loader: number of the loader to measure, in the order in which the script iterates them, from 1; None: the one
            that trains.
        own_loops: look for a loop that draws its batches from something else than a DataLoader.
        inference: measure that loader although no optimizer steps.
        apply: seconds left for measuring the remedy afterwards; 0: no remedy.
        approximate: the remedy may decode JPEGs on the device.
        climbed: earlier passes have measured the ladder: do only what follows it.
        knobs: seconds of the budget for trying other settings of the loader; 0: none.
        audit: share of a step that the input may cost, or None for no audit. An audit always watches single steps, to
            see how the loop copies its batches and which calls wait for the device.
        profile: file for a trace of some steps fed from the device; empty: none.
        horizon: number of batches after which the loop leaves an epoch early, or None if unknown.
        rungs: what is measured.
        excluded: rungs that an earlier pass could not measure, with the reasons.
    """

    budget: float = 120.0
    attempt: int = 1
    why: str = ""
    loader: int | None = None
    own_loops: bool = False
    inference: bool = False
    apply: float = 0.0
    approximate: bool = False
    climbed: bool = False
    knobs: float = 0.0
    audit: float | None = None
    profile: str = ""
    horizon: int | None = None
    rungs: list[str] = field(default_factory=lambda: [*RUNGS, *CONTROLS])
    excluded: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

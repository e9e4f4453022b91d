"""What one pass over the loop is asked to measure. Plain data: it crosses from the parent to the child as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..session import CONTROLS, RUNGS

#: Part of the budget that trying other settings of the loader may take, once the ladder is known.
KNOBS_SHARE = 1 / 3


@dataclass
class Plan:
    """``budget`` is seconds left for measuring, from the first batch on. ``loader`` picks one by the order in which
    the script iterates them, from 1. ``inference`` measures that loader although no optimizer steps.
    ``apply`` is seconds left for measuring the remedy after that, 0 where none is asked for; ``climbed`` says that the
    ladder is known from earlier passes, so that what comes after it is all there is to do.
    ``knobs`` is seconds of the budget that other settings of the loader may be tried for, 0 where none are to be.
    ``audit`` is the share of a step that the input may cost, where that is to be audited: single steps are watched
    then, whatever the ladder says, for how the loop copies its batches and which of its calls wait for the device.
    ``profile`` is the file that a trace of some steps fed from the device is written to; empty where none is wanted.
    ``horizon`` is how many batches the loop draws before it leaves an epoch early, where that is known.
    """

    budget: float = 120.0
    attempt: int = 1
    loader: int | None = None
    inference: bool = False
    apply: float = 0.0
    climbed: bool = False
    knobs: float = 0.0
    audit: float | None = None
    profile: str = ""
    horizon: int | None = None
    rungs: list[str] = field(default_factory=lambda: [*RUNGS, *CONTROLS])
    excluded: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

"""What one pass over the loop is asked to measure. Plain data: it crosses from the parent to the child as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..session import CONTROLS, RUNGS


@dataclass
class Plan:
    """``budget`` is seconds left for measuring, from the first batch on. ``loader`` picks one by the order in which
    the script iterates them, from 1. ``inference`` measures that loader although no optimizer steps.
    ``apply`` is seconds left for measuring the remedy after that, 0 where none is asked for; ``climbed`` says that the
    ladder is known from earlier passes, so that this is all there is to do.
    ``horizon`` is how many batches the loop draws before it leaves an epoch early, where that is known.
    """

    budget: float = 120.0
    attempt: int = 1
    loader: int | None = None
    inference: bool = False
    apply: float = 0.0
    climbed: bool = False
    horizon: int | None = None
    rungs: list[str] = field(default_factory=lambda: [*RUNGS, *CONTROLS])
    excluded: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

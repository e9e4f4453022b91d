"""The checklist of an audit: what is well with a script's input pipeline, what is not, and what cannot be told.

An item fails where the run's own numbers say that it costs something, not because a rule of thumb is broken: a copy
that the loop waits for is well where it costs nothing. What to do about it are the recommendations of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..diagnosis import Diagnosis
from ..thresholds import GATE
from . import device, pipeline
from .item import FAILED, PASSED, UNMEASURABLE, Check, Item

__all__ = ["FAILED", "PASSED", "UNMEASURABLE", "Audit", "Item", "audit"]

CHECKS: tuple[Callable[[Check], Item], ...] = (
    pipeline.starvation,
    pipeline.supply,
    pipeline.startup,
    pipeline.cores,
    pipeline.knobs,
    device.transfer,
    device.syncs,
    device.light,
    device.unread,
)


@dataclass(frozen=True)
class Audit:
    """Made by :func:`audit`; ``gate`` is the share of a step that the input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float
    items: list[Item]

    def count(self, status: str) -> int:
        """How many items have this status."""
        return sum(item.status == status for item in self.items)

    def to_dict(self) -> dict[str, Any]:
        """The published form: that of the diagnosis, and ``audit`` beside it."""
        checklist = {"gate": self.gate, "items": [item.to_dict() for item in self.items]}
        return {**self.diagnosis.to_dict(), "audit": checklist}


def audit(diagnosis: Diagnosis, gate: float = GATE) -> Audit:
    """Go through the checklist with the numbers of one run."""
    check = Check(diagnosis, gate)
    return Audit(diagnosis, gate, [made(check) for made in CHECKS])

"""Audit a script's input pipeline: a checklist of items that pass, fail or cannot be measured.

An item fails if the run's own numbers show that it costs something, not if it breaks a rule of thumb: a copy that the
loop waits for passes if it costs nothing. The run's recommendations say what to do about failures.
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
    """The result of :func:`audit`; ``gate`` is the share of a step that the input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float
    items: list[Item]

    def count(self, status: str) -> int:
        """Return how many items have this status."""
        return sum(item.status == status for item in self.items)

    def to_dict(self) -> dict[str, Any]:
        """Return the published form: that of the diagnosis, with ``audit`` added."""
        checklist = {"gate": self.gate, "items": [item.to_dict() for item in self.items]}
        return {**self.diagnosis.to_dict(), "audit": checklist}


def audit(diagnosis: Diagnosis, gate: float = GATE) -> Audit:
    """Run the checklist on the numbers of one run."""
    check = Check(diagnosis, gate)
    return Audit(diagnosis, gate, [made(check) for made in CHECKS])

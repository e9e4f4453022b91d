"""Audit a script's input pipeline: a checklist of items that pass, fail, stay open, or do not apply.

An item fails if the run's own numbers show that mending it gains enough, not if it breaks a rule of thumb: a copy that
the loop waits for passes if it costs nothing. The run's recommendations say what to do about failures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..diagnosis import Diagnosis
from ..sentences import percent
from ..thresholds import GATE
from . import device, pipeline
from .item import DOES_NOT_APPLY, FAILED, NOT_MEASURED, OPEN, PASSED, STATUSES, Check, Item, Result, Unanswered

__all__ = ["DOES_NOT_APPLY", "FAILED", "NOT_MEASURED", "OPEN", "PASSED", "STATUSES", "Audit", "Item", "audit"]

#: Each check's id and title, and the function that makes it. Functions raise :class:`~.item.Unanswered`.
CHECKS: tuple[tuple[str, str, Callable[[Check], Result]], ...] = (
    ("starvation", "data costs at most {gate} of a step", pipeline.starvation),
    ("supply", "the loader alone is faster than the training", pipeline.supply),
    ("startup", "epochs begin without a long wait", pipeline.startup),
    ("cores", "workers and threads have the cores they need", pipeline.cores),
    ("knobs", "no other setting of the loader would gain much", pipeline.knobs),
    ("transfer", "copies to the device cost at most {bound} of a step", device.transfer),
    ("syncs", "no call waits for the device in every step", device.syncs),
    ("bytes", "batches carry few redundant bytes to the device", device.light),
    ("unread", "what is copied to the device is read there", device.unread),
)


@dataclass(frozen=True)
class Audit:
    """The result of :func:`audit`; ``gate`` is the share of a step that the input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float
    items: list[Item]

    @property
    def failed(self) -> list[Item]:
        """The items that fail; the audit fails if there are any."""
        return [item for item in self.items if item.status == FAILED]

    @property
    def conclusive(self) -> bool:
        """True if the audit failed, or passed: it is known whether input costs more than the gate."""
        return bool(self.failed) or any(item.id == "starvation" and item.status == PASSED for item in self.items)

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
    items = []
    for id, title, made in CHECKS:
        try:
            result = made(check)
        except Unanswered as why:
            result = Result(why.status, str(why))
        items.append(Item(**vars(result), id=id, title=title.format(gate=percent(gate), bound=percent(check.bound))))
    return Audit(diagnosis, gate, items)

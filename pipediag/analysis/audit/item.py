"""Define an item of an audit's checklist, and the inputs of the checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ...session import Loader, Session
from ..diagnosis import Diagnosis, Recommendation
from ..intervals import Interval
from ..ladder import LadderView

PASSED, FAILED, UNMEASURABLE = "passed", "failed", "unmeasurable"


@dataclass(frozen=True)
class Item:
    """The result of one check.

    Attributes:
        id: the same in every audit.
        title: the condition that holds if the check passes.
        status: ``passed``, ``failed`` or ``unmeasurable``.
        told: the numbers, or why it could not be measured.
        advice: the run's recommendations that would fix it.
        todo: other remedies.
    """

    id: str
    title: str
    status: str
    told: str
    advice: list[Recommendation] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "told": self.told,
            "recommendations": [one.id for one in self.advice],
            "todo": self.todo,
        }


@dataclass(frozen=True)
class Check:
    """The audited run; ``gate`` is the share of a step that its input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float

    @property
    def session(self) -> Session:
        return self.diagnosis.session

    @property
    def ladder(self) -> LadderView:
        return self.diagnosis.ladder

    @property
    def loader(self) -> Loader:
        return self.session.loader or Loader()

    @property
    def device(self) -> str:
        return str(self.session.device.get("type", "cpu"))

    def advice(self, ids: Collection[str]) -> list[Recommendation]:
        """Return the run's recommendations with one of these ids."""
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def lacking(self, *rungs: str) -> str:
        """Return why the first of these rungs without a window has none; empty if all were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                why = found.why_not if found is not None else ""
                return f"{rung} was not measured: {why or 'not reached; give a longer --budget'}"
        return ""


def against(interval: Interval, bound: float) -> str:
    """Return the status of a cost against a bound: passed or failed only if its whole interval says so."""
    return FAILED if interval.low > bound else PASSED if interval.high <= bound else UNMEASURABLE


def share_of_step(ladder: LadderView, slow: str, fast: str) -> Interval:
    """Return the cost of one rung over the other, as a share of the baseline step."""
    cost, base = ladder.cost(slow, fast), ladder.ms("baseline").value
    return Interval(cost.value / base, cost.low / base, cost.high / base)


def margin(ladder: LadderView) -> Interval:
    """Return the batch rate of the loader alone divided by the rate of the loop with batches ready."""
    return ladder.ratio(ladder.ceiling, "supply")


#: Message for an interval that contains the bound.
OPEN = "too uncertain to tell, a longer --budget narrows the interval"

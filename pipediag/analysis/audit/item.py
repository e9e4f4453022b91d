"""One line of an audit's checklist, and what the checks that fill it look at."""

from __future__ import annotations

import math
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
    """One check.

    Attributes:
        id: the same in every audit.
        title: what holds where the check is passed.
        status: ``passed``, ``failed`` or ``unmeasurable``.
        told: the numbers, or why it could not be measured.
        advice: recommendations of the run that would mend it.
        todo: what else would.
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
    """The run that is audited; ``gate`` is the share of a step that its input pipeline may cost."""

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
        """The recommendations of the run that have one of these ids."""
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def lacking(self, *rungs: str) -> str:
        """Why the first of these rungs without a window has none; empty where all were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                why = found.why_not if found is not None else ""
                return f"{rung} was not measured: {why or 'not reached; give a longer --budget'}"
        return ""


def against(interval: Interval, bound: float) -> str:
    """Whether a cost lies within a bound: passed or failed where all of its interval says so."""
    if math.isinf(interval.low) or math.isinf(interval.high):
        return UNMEASURABLE
    return FAILED if interval.low > bound else PASSED if interval.high <= bound else UNMEASURABLE


def share_of_step(ladder: LadderView, slow: str, fast: str) -> Interval:
    """What the one rung costs more than the other, as a share of the baseline step."""
    cost, base = ladder.cost(slow, fast), ladder.ms("baseline").value
    return Interval(cost.value / base, cost.low / base, cost.high / base)


def margin(ladder: LadderView) -> Interval:
    """How many times as many batches the loader makes by itself as the loop takes when they lie ready."""
    return ladder.ratio(ladder.ceiling, "supply")


#: Said of an interval that holds the bound.
OPEN = "too uncertain to tell, a longer --budget narrows the interval"

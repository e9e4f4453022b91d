"""Define an item of an audit's checklist, and the inputs of the checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ...session import Loader, Session
from ..diagnosis import Diagnosis, Recommendation
from ..intervals import Interval, exceeds
from ..ladder import LadderView

PASSED, FAILED, UNMEASURABLE = "passed", "failed", "unmeasurable"
#: Why an item is unmeasurable if an interval contains the bound.
OPEN = "too uncertain to tell; a longer --budget narrows the interval"
#: Largest number of recommendations in one item; the report has them all.
_NAMED = 3


class Unmeasurable(Exception):
    """A check lacks a measurement, or its numbers leave the answer open; the message says why."""


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        status: ``passed``, ``failed`` or ``unmeasurable``.
        figures: the numbers, or why it could not be measured.
        advice: the run's recommendations that would fix it.
        todo: other remedies.
    """

    status: str
    figures: str
    advice: list[Recommendation] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Item(Result):
    """A result with its ``id``, the same in every audit, and its ``title``: the condition that holds if it passes."""

    id: str
    title: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "told": self.figures,
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
        return self.session.device_type

    def advice(self, ids: Collection[str]) -> list[Recommendation]:
        """Return the run's recommendations with one of these ids."""
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def needs(self, *rungs: str) -> None:
        """Raise :class:`Unmeasurable` unless these rungs were measured."""
        if why := self.lacking(*rungs):
            raise Unmeasurable(why)

    def needs_a_device(self) -> None:
        """Raise :class:`Unmeasurable` if training runs on the CPU."""
        if self.device == "cpu":
            raise Unmeasurable("training runs on the CPU: there is no transfer")

    def lacking(self, *rungs: str) -> str:
        """Return why the first of these rungs without a window has none; empty if all were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                why = found.why_not if found is not None else ""
                return f"{rung} was not measured: {why or 'not reached; give a longer --budget'}"
        return ""


def at_most(interval: Interval, bound: float, figures: str, advice: list[Recommendation], otherwise: str) -> Result:
    """Return the result for a cost that must not exceed a bound; ``advice`` and ``otherwise`` are for :func:`failed`.

    Raises:
        Unmeasurable: its interval contains the bound.
    """
    exceeded = exceeds(interval, bound)
    if exceeded is None:
        raise Unmeasurable(f"{figures}; {OPEN}")
    return failed(figures, advice, otherwise) if exceeded else Result(PASSED, figures)


def failed(figures: str, advice: list[Recommendation], otherwise: str) -> Result:
    """Return a failed result with the first of the recommendations, or if there are none, with another remedy."""
    return Result(FAILED, figures, advice[:_NAMED], [] if advice else [otherwise])


def share_of_step(ladder: LadderView, slow: str, fast: str) -> Interval:
    """Return the cost of one rung over the other, as a share of the baseline step."""
    return ladder.cost(slow, fast).times(1 / ladder.ms("baseline").value)


def margin(ladder: LadderView) -> Interval:
    """Return the batch rate of the loader alone, divided by that of the loop with batches ready."""
    return ladder.ratio(ladder.ceiling, "supply")

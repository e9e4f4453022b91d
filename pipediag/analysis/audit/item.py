"""Define an item of an audit's checklist, and the inputs of the checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ...session import Loader, Session
from ..diagnosis import Diagnosis, Recommendation
from ..numbers.intervals import Interval, exceeds
from ..numbers.ladder import LadderView
from ..sentences import times
from ..thresholds import GATE

#: Results of a check, in the order in which a reader needs them.
STATUSES = FAILED, OPEN, NOT_MEASURED, PASSED, DOES_NOT_APPLY = (
    "failed", "open", "not measured", "passed", "does not apply"
)  # fmt: skip
#: Why an item is open if an interval contains the bound.
_TOO_WIDE = "too uncertain to tell; a longer --budget narrows the interval"
#: Largest number of recommendations in one item; the report has them all.
_NAMED = 3


class Unanswered(Exception):
    """A check neither passes nor fails; the message says why."""

    status = ""


class Undecided(Unanswered):
    """The item was measured, but its numbers leave the answer open."""

    status = OPEN

    def __init__(self, figures: str) -> None:
        super().__init__(f"{figures}; {_TOO_WIDE}")


class NotMeasured(Unanswered):
    """A measurement is missing: time ran out, or it could not be made."""

    status = NOT_MEASURED


class DoesNotApply(Unanswered):
    """This script has nothing that the item could be about."""

    status = DOES_NOT_APPLY


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        status: one of :data:`STATUSES`.
        figures: the numbers, or why there are none.
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

    @property
    def bound(self) -> float:
        """Share of a step that a single cost may take: no change is worth it for less."""
        return least_worth(self.gate)

    @property
    def input_is_cheap(self) -> bool:
        """True if all input together certainly costs less than :attr:`bound`, so that no part of it costs more."""
        starved = self.diagnosis.verdict.starved
        return starved is not None and starved.high <= self.bound

    def judged(self, figures: str, ids: Collection[str]) -> Result:
        """Return the result of a check that fails if one of these recommendations certainly gains :attr:`bound`.

        Smaller gains are among the figures.

        Raises:
            Undecided: one of them probably gains enough, but that is not certain.
        """
        found, least = self.advice(ids), 1 / (1 - self.bound)
        enough = [one for one in found if one.gain is not None and one.gain.value >= least]
        if certain := [one for one in enough if one.gain is not None and one.gain.low >= least]:
            return Result(FAILED, figures, certain[:_NAMED])
        if enough:
            raise Undecided(f"{figures}; {_gain(enough[0])}")
        return Result(PASSED, "; ".join([figures, *map(_gain, found)]))

    def advice(self, ids: Collection[str]) -> list[Recommendation]:
        """Return the run's recommendations with one of these ids."""
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def needs(self, *rungs: str) -> None:
        """Raise :class:`Unanswered` unless these rungs were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                if found is not None and not found.exists:
                    raise DoesNotApply(found.why_not)
                why = found.why_not if found is not None else ""
                raise NotMeasured(f"{rung} was not measured: {why or 'not reached; give a longer --budget'}")

    def needs_a_device(self) -> None:
        """Raise :class:`DoesNotApply` if training runs on the CPU."""
        if self.device == "cpu":
            raise DoesNotApply("training runs on the CPU: there is no transfer")

    def needs_workers(self) -> None:
        """Raise :class:`DoesNotApply` if the training process makes the batches itself."""
        if not self.loader.num_workers:
            raise DoesNotApply("num_workers=0: the training process makes the batches between its steps")


def _gain(one: Recommendation) -> str:
    """Return a recommendation with its gain."""
    if one.gain is None:
        return one.title
    return f"{one.title}: {times(one.gain)} {'measured' if one.measured else 'predicted'}"


def least_worth(gate: float) -> float:
    """Return the share of a step below which nothing is worth a change, if input may cost ``gate`` of it."""
    return max(gate, GATE)


def at_most(interval: Interval, bound: float, figures: str, advice: list[Recommendation], otherwise: str) -> Result:
    """Return the result for a cost that must not exceed a bound; ``advice`` and ``otherwise`` are for :func:`failed`.

    Raises:
        Undecided: its interval contains the bound.
    """
    exceeded = exceeds(interval, bound)
    if exceeded is None:
        raise Undecided(figures)
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

"""Find what the loop pays for other loaders that it starts between its steps, as for a validation within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from ..session import OtherStart
from .numbers.intervals import Interval
from .numbers.ladder import LadderView
from .sentences import counted, number
from .startup import typical, undisturbed


@dataclass(frozen=True)
class OtherLoader:
    """A loader that the loop starts again and again between its steps.

    Attributes:
        where: the line that iterates it.
        seconds: what the loop's thread spends on it each time, on waiting for its batches too.
        kept: the part of it that workers kept from the last time would not take.
        every: steps of the training loop from one time to the next, on average.
        hidden: milliseconds a step that the loop would wait for its own workers meanwhile.
        workers: number of its workers.
        persistent: true if it keeps them.
    """

    where: str
    seconds: Interval
    kept: float
    every: float
    hidden: float
    workers: int
    persistent: bool

    @property
    def per_step(self) -> Interval:
        """The cost in milliseconds a step."""
        return self.spent.shifted(-self.hidden).not_negative()

    @property
    def spent(self) -> Interval:
        """The milliseconds a step that the loop's thread spends on it."""
        return self.seconds.times(1000.0 / self.every)

    @property
    def sentence(self) -> str:
        """What the loop does, and what would help."""
        told = (
            f"The loop starts another loader every {counted(self.every, 'step')}, at {self.where}, and waits "
            f"{number(self.seconds.value)} s for it and its batches each time: {number(self.per_step.value)} ms a step."
        )
        if self.workers and not self.persistent:
            return f"{told} persistent_workers=True there starts its workers only once."
        return f"{told} Using it less often would help."


def other_loaders(ladder: LadderView) -> list[OtherLoader]:
    """Return the other loaders whose cost is known: those used at least twice with training steps in between.

    The first use in a process is left out of the cost: it also pays what is done only once.
    """
    return [*filter(None, (_loader(ladder, starts) for starts in _by_place(ladder.session.other_starts)))]


def _by_place(starts: list[OtherStart]) -> Iterator[list[OtherStart]]:
    ordered = sorted(starts, key=lambda one: (one.where, one.attempt, one.step))
    for _, group in groupby(ordered, key=lambda one: one.where):
        yield list(group)


def _loader(ladder: LadderView, starts: list[OtherStart]) -> OtherLoader | None:
    again = [(one, one.step - before.step) for before, one in pairwise(starts) if one.attempt == before.attempt]
    steps = sum(between for _, between in again)
    if not steps:
        return None
    seconds = typical(undisturbed([max(0.0, one.seconds) for one, _ in again]))
    kept = sorted(max(0.0, min(one.kept, one.seconds)) for one, _ in again)[len(again) // 2]
    one = starts[-1]
    return OtherLoader(
        one.where,
        seconds,
        min(kept, seconds.value),
        steps / len(again),
        _hidden(ladder),
        one.num_workers,
        one.persistent_workers,
    )


def _hidden(ladder: LadderView) -> float:
    """Return the milliseconds a step in which the workers make batches while the loop uses other loaders.

    Without these, a step would take at least a worker's time for a batch divided by their number.
    """
    workers = ladder.session.workers
    if not workers or not ladder.has("baseline"):
        return 0.0
    return max(0.0, ladder.evidence("baseline").get("worker_ms", 0.0) / workers - ladder.ms("baseline").value)

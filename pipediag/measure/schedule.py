"""Which rung is measured next: interleaved rounds, so that drift of the machine falls on every rung alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..session import Session

#: Rounds every rung gets before the stopping rule is asked.
MIN_ROUNDS = 3
#: A rung given up this often without a complete window is withdrawn.
MAX_FAILURES = 4


class Schedule:
    """Picks rungs in rounds of varied order until the session is settled.

    The position is derived from the windows the session already holds, so a later pass of the script goes on where
    the one before ended.
    """

    def __init__(
        self,
        rungs: Sequence[str],
        session: Session,
        settled: Callable[[Session], bool],
        min_rounds: int = MIN_ROUNDS,
    ) -> None:
        self.session = session
        self.min_rounds = min_rounds
        self._rungs = list(rungs)
        self._settled = settled
        self._failures: dict[str, int] = {}

    @property
    def rungs(self) -> list[str]:
        """The rungs still in the schedule."""
        return list(self._rungs)

    def round_of(self, rung: str) -> int:
        """The round the rung's next window belongs to."""
        return len(self.session.windows_of(rung))

    def next_rung(self) -> str | None:
        """The rung to measure now; None when every rung has its windows and the answer would not change."""
        if not self._rungs:
            return None
        current = min(self.round_of(name) for name in self._rungs)
        order = self.order(current)
        round_begins = all(self.round_of(name) == current for name in order)
        if current >= self.min_rounds and round_begins and self._settled(self.session):
            return None
        return next(name for name in order if self.round_of(name) == current)

    def order(self, round_: int) -> list[str]:
        """The baseline first in the first round, so that an early end leaves the most useful window; then shuffled."""
        names = list(reversed(self._rungs))
        if round_ > 0:
            random.Random(round_).shuffle(names)
        elif "baseline" in names:
            names.remove("baseline")
            names.insert(0, "baseline")
        return names

    def withdraw(self, rung: str) -> None:
        """Take a rung out: it cannot be measured on this loader."""
        if rung in self._rungs:
            self._rungs.remove(rung)

    def failed(self, rung: str) -> bool:
        """Note an attempt that gave no window; True when that was one too many and the rung is withdrawn."""
        self._failures[rung] = self._failures.get(rung, 0) + 1
        if self._failures[rung] < MAX_FAILURES:
            return False
        self.withdraw(rung)
        return True

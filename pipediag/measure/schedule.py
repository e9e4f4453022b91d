"""Which rung is measured next: interleaved rounds, so that drift of the machine falls on every rung alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..session import Session, cut_of

#: Whether the loop starves, then which of the two sides holds it up, then where on that side.
_FIRST = ("device", "worker", "baseline", "host", "sample", "raw", "warm", "supply")
#: A rung given up this often without a complete window is withdrawn.
MAX_FAILURES = 4


class Schedule:
    """Picks rungs in rounds until there is nothing left that is worth a round.

    ``choose`` names the rungs of each round, given what was measured in the rounds before: some of ``rungs``, and cuts
    of the transform chain that were not there from the beginning. The position follows from the windows that the
    session holds, so a later pass of the script goes on where the one before ended.
    """

    def __init__(
        self,
        rungs: Sequence[str],
        session: Session,
        choose: Callable[[Session], list[str]],
    ) -> None:
        self.session = session
        self.round = max((w.round for w in session.windows), default=0)
        self._rungs = list(rungs)
        self._withdrawn: set[str] = set()
        self._choose = choose
        self._chosen: tuple[int, list[str]] = (-1, [])
        self._failures: dict[str, int] = {}

    @property
    def rungs(self) -> list[str]:
        """The rungs of the first round, as far as they have not been withdrawn."""
        return [name for name in self._rungs if name not in self._withdrawn]

    def allows(self, rung: str) -> bool:
        """Whether the rung is to be measured at all."""
        return rung not in self._withdrawn and (rung in self._rungs or cut_of(rung) is not None)

    def next_rung(self) -> str | None:
        """The rung to measure now; None when the answer would not change any more."""
        while members := self._members(self.round):
            measured = {w.rung for w in self.session.windows if w.round == self.round}
            left = [name for name in self._order(self.round, members) if name not in measured]
            if left:
                return left[0]
            self.round += 1
        return None

    def _members(self, round_: int) -> list[str]:
        if self._chosen[0] != round_:
            before = replace(self.session, windows=[w for w in self.session.windows if w.round < round_])
            self._chosen = round_, self._choose(before)
        return [name for name in self._chosen[1] if self.allows(name)]

    def _order(self, round_: int, members: list[str]) -> list[str]:
        """What answers most first: an early end then leaves the most useful windows.

        Every second round goes the other way, so that a drift of the machine falls on neighbours alike.
        """
        order = sorted(members, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
        return order[::-1] if round_ % 2 else order

    def withdraw(self, rung: str) -> None:
        """Take a rung out: it cannot be measured on this loader."""
        self._withdrawn.add(rung)

    def failed(self, rung: str) -> bool:
        """Note an attempt that gave no window; True when that was one too many and the rung is withdrawn."""
        self._failures[rung] = self._failures.get(rung, 0) + 1
        if self._failures[rung] < MAX_FAILURES:
            return False
        self.withdraw(rung)
        return True

"""Define what one pass measures, and schedule its rungs in interleaved rounds: drift then affects each equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..session import CONTROLS, RUNGS, Session, is_found_later

#: Order of rungs: whether the loop starves, then which side limits it, then where on that side.
_FIRST = ("device", "worker", "baseline", "host", "sample", "raw", "warm", "supply")
#: The loop as it is, and its ceiling: whether it starves.
_WHETHER_STARVED = ("device", "baseline")
#: Number of failed attempts after which a rung is withdrawn.
MAX_FAILURES = 4
#: Maximum share of the budget for trying other settings of the loader after the ladder.
KNOBS_SHARE = 1 / 3


@dataclass
class Plan:
    """What one pass measures: plain data, which goes from the parent to the child as JSON."""

    budget: float = 120.0  # seconds left for measuring, from the first batch on
    attempt: int = 1  # number of the pass, from 1
    why: str = ""  # why the script runs again, in words; empty for the first pass
    #: Number of the loader to measure, in the order in which the script iterates them, from 1; None: the one that
    #: trains.
    loader: int | None = None
    own_loops: bool = False  # look for a loop that draws its batches from something else than a DataLoader
    inference: bool = False  # measure that loader although no optimizer steps
    apply: float = 0.0  # seconds left for measuring the remedy afterwards; 0: no remedy
    approximate: bool = False  # the remedy may decode JPEGs on the device
    climbed: bool = False  # earlier passes have measured the ladder: do only what follows it
    knobs: float = 0.0  # seconds of the budget for trying other settings of the loader; 0: none
    #: Share of a step that the input may cost, or None for no audit. An audit always watches single steps, to see how
    #: the loop copies its batches and which calls wait for the device.
    audit: float | None = None
    profile: str = ""  # file for a trace of some steps fed from the device; empty: none
    horizon: int | None = None  # number of batches after which the loop leaves an epoch early, or None if unknown
    rungs: list[str] = field(default_factory=lambda: [*RUNGS, *CONTROLS])  # what is measured
    #: Rungs that an earlier pass could not measure, with the reasons.
    excluded: dict[str, str] = field(default_factory=dict)


class Schedule:
    """A selector of rungs in rounds, until no rung is worth another round.

    ``choose`` returns the rungs of each round from the windows of earlier rounds: some of ``rungs``, and cuts of the
    transform chain found later. The position follows from the session's windows, so a later pass of the script
    continues where the previous one ended; with ``begins``, a new round begins instead.
    """

    def __init__(
        self, rungs: Sequence[str], session: Session, choose: Callable[[Session], list[str]], begins: bool = False
    ) -> None:
        self.session = session
        self.round = max((w.round for w in session.windows), default=0) + begins
        self._rungs = list(rungs)
        self._withdrawn: set[str] = set()
        self._choose = choose
        self._chosen: tuple[int, list[str]] = (-1, [])
        self._failures: dict[str, int] = {}

    @property
    def rungs(self) -> list[str]:
        """The rungs of the first round that have not been withdrawn."""
        return [name for name in self._rungs if name not in self._withdrawn]

    def allows(self, rung: str) -> bool:
        return rung not in self._withdrawn and (rung in self._rungs or is_found_later(rung))

    def next_rung(self) -> str | None:
        """Return the rung to measure now, or None if more windows would not change the answer."""
        while members := self._members():
            measured = {w.rung for w in self.session.windows if w.round == self.round}
            left = [name for name in self._order(members) if name not in measured]
            if left:
                return left[0]
            self.round += 1
        return None

    def _members(self) -> list[str]:
        if self._chosen[0] != self.round:
            before = replace(self.session, windows=[w for w in self.session.windows if w.round < self.round])
            self._chosen = self.round, self._choose(before)
        return [name for name in self._chosen[1] if self.allows(name)]

    def _order(self, members: list[str]) -> list[str]:
        """Return the most informative rungs first, so that an early end leaves the most useful windows.

        Every second round is reversed, so that machine drift affects neighbours equally. In the second round one other
        rung comes first: then the loop and its ceiling are known from two separate times.
        """
        order = sorted(members, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
        order = order[::-1] if self.round % 2 else order
        if self.round == 1 and set(_WHETHER_STARVED) <= {*order}:
            first = next((name for name in order if name not in _WHETHER_STARVED), None)
            order.sort(key=lambda name: 0 if name == first else 1 if name in _WHETHER_STARVED else 2)
        return order

    def withdraw(self, rung: str) -> None:
        """Remove a rung that cannot be measured on this loader."""
        self._withdrawn.add(rung)

    def failed(self, rung: str) -> bool:
        """Record an attempt without a window; return True if the rung is now withdrawn."""
        self._failures[rung] = self._failures.get(rung, 0) + 1
        if self._failures[rung] < MAX_FAILURES:
            return False
        self.withdraw(rung)
        return True

"""Compare ways to treat the ranks of a distributed job, and name the next trial that a comparison needs.

Trials of the two ways alternate. Neighbours in time make a pair, and their order is reversed from pair to pair, so that
linear drift affects both alike. A comparison is looked at after each pair, and its first decision stands: the trials of
a session always lead to the same answers, and a new trial only adds to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...session import RankTrial, Session
from ..numbers.intervals import Interval
from ..numbers.paired_windows import Noise, ratio_of_pairs

#: Largest number of pairs in a comparison.
MOST_PAIRS = 6


@dataclass(frozen=True)
class Change:
    """How ranks are treated in a trial: ranks in ``fed`` get batches from a cache on their device, the others train
    unchanged; each step of the ranks in ``delayed`` is made longer by ``delay_ms``."""

    fed: tuple[int, ...] = ()
    delayed: tuple[int, ...] = ()
    delay_ms: float = 0.0


class Needed(Exception):
    """The answer needs another trial: one of ``change``."""

    def __init__(self, change: Change) -> None:
        super().__init__(change)
        self.change = change


@dataclass(frozen=True)
class Result:
    """Ratio of a plain step to a changed one; ``above`` says whether it exceeds the bound, None if uncertain."""

    ratio: Interval
    above: bool | None


class Trials:
    """The trials of a session, in order; ``closed`` if no more will come."""

    def __init__(self, session: Session, closed: bool = False) -> None:
        made = sorted(session.rank_trials, key=lambda trial: (trial.attempt, trial.round))
        self._made = [
            (Change(tuple(sorted(one.fed)), tuple(sorted(one.delayed)), one.delay_ms if one.delayed else 0.0), one)
            for one in made
        ]
        self.closed = closed

    def compare(
        self, plain: Change, changed: Change, bound: float, noise: Noise, least: int, most: int = MOST_PAIRS
    ) -> Result:
        """Compare the ratio of plain to changed steps with ``bound``, after ``least`` to ``most`` pairs.

        Raises:
            Needed: more pairs would decide; if no more trials will come, only if there is no pair at all.
        """
        pairs, open_ = self._pairs(plain, changed)
        pairs = pairs[:most]
        for count in range(1, len(pairs) + 1):
            ratio = ratio_of_pairs(pairs[:count], noise)
            if count >= least and not ratio.low <= bound <= ratio.high:
                return Result(ratio, ratio.low > bound)
        if len(pairs) < (1 if self.closed else most):
            raise Needed(self._following(plain, changed, open_))
        return Result(ratio_of_pairs(pairs, noise), None)

    def ratio(self, plain: Change, changed: Change, noise: Noise) -> Interval | None:
        """Return the ratio of plain to changed steps, as far as it was tried; None if it was not."""
        pairs, _ = self._pairs(plain, changed)
        return ratio_of_pairs(pairs, noise) if pairs else None

    def fed(self) -> list[tuple[int, ...]]:
        """Return the sets of ranks that were fed while others trained unchanged, in the order of their first trials."""
        return list(dict.fromkeys(change.fed for change, _ in self._made if change.fed and not change.delayed))

    def delay_ms(self) -> float | None:
        """Return the delay of the last trial that had one, or None."""
        return next((change.delay_ms for change, _ in reversed(self._made) if change.delayed), None)

    def _pairs(self, plain: Change, changed: Change) -> tuple[list[tuple[float, float]], bool]:
        """Return the milliseconds per step of neighbouring trials, and whether the very last trial is unpaired.

        Each trial is in at most one pair.
        """
        found, before = [], None
        for change, trial in self._made:
            if before is not None and {change, before[0]} == {plain, changed} and trial.attempt == before[1].attempt:
                one, other = _ms(trial), _ms(before[1])
                found.append((one, other) if change == plain else (other, one))
                before = None
            else:
                before = (change, trial)
        return found, before is not None

    def _following(self, plain: Change, changed: Change, open_: bool) -> Change:
        """Return the treatment to try next: the other one of an open pair, else the last again, to begin a new pair.

        A plain trial of an earlier comparison opens the first pair of this one.
        """
        last = self._made[-1][0] if self._made else None
        if last not in (plain, changed):
            return plain
        return (changed if last == plain else plain) if open_ else last


def _ms(trial: RankTrial) -> float:
    return 1000.0 * trial.seconds / trial.steps

"""Say figures, stages and names in the words that all reports use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..session import LADDER, Link, Place, Rank, Session
from ..session.remedies import listed
from .numbers.intervals import Interval
from .numbers.ladder import LadderView

#: Each stage in few words: its name for readers.
STAGES = {
    **{kind.stage: kind.short or kind.stage for kind in LADDER},
    "contention": "workers taking CPU time",
    "sampler": "the sampler",
    "startup": "starting the workers",
    "other loaders": "starting another loader",
}
#: Modules that are named one by one.
_FEW = 3


def shown(stage: str) -> str:
    """Return the name of a stage, or of a verdict without one, for readers."""
    return STAGES.get(stage, stage)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Return three significant digits, without an exponent; "0" below a thousandth of the unit."""
    if abs(value) < 0.001:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ends(interval: Interval, shown: Callable[[float], str] = number) -> str:
    """Return the ends of an interval as text: 1.7 to 2.2; empty if both round to its value."""
    low, high = shown(interval.low), "more" if math.isinf(interval.high) else shown(interval.high)
    return "" if low == high == shown(interval.value) else f"{low} to {high}"


def span(share: Interval) -> str:
    """Return the interval of a share as text: 87 to 91 %; empty if both ends round to its value."""
    bounded = Interval(*(min(1.0, max(0.0, end)) for end in (share.value, share.low, share.high)))
    told = ends(bounded, lambda end: f"{100 * end:.0f}")
    return told and f"{told} %"


def percent_of(whole: str, share: Interval) -> str:
    """Return a share of something with its interval as text: 89 % of a step (87 to 91 %)."""
    between = span(share)
    return f"{percent(max(0.0, share.value))}{whole and f' of {whole}'}{between and f' ({between})'}"


def times(gain: Interval) -> str:
    """Return a speedup with its interval as text: 1.9x (1.7 to 2.2)."""
    between = ends(gain)
    return f"{number(gain.value)}x{between and f' ({between})'}"


def few(names: Sequence[str]) -> str:
    """Return modules in a row; of many, only the first and the last."""
    return f"{names[0]} to {names[-1]} ({len(names)} modules)" if len(names) > _FEW else listed(names)


def few_of(names: Sequence[str]) -> str:
    """Return names in a row; of many, the first two and how many more there are."""
    return listed(names) if len(names) <= _FEW else first_of(names, 2)


def together(reasons: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return names with their reasons, those of one reason together."""
    found: dict[str, list[str]] = {}
    for name, why in reasons:
        found.setdefault(why, []).append(name)
    return [(few_of(names), why) for why, names in found.items()]


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names in a row, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def numbered(ranks: Sequence[int]) -> str:
    """Return ranks in words: rank 3, ranks 1 and 2; of many, the first two and how many more there are."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_of([*map(str, ranks)])}"


def counted(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: 1 file, 3 files."""
    return f"{number(count)} {noun if count == 1 else plural or f'{noun}s'}"


def named(one: Link | Place) -> str:
    """Return a piece of code with its line as text: Blur (aug.py:3)."""
    return f"{one.name} ({one.where})" if one.where else one.name


def job(ranks: Sequence[Rank]) -> str:
    """Return the size of a distributed job in words; empty for one process."""
    if len(ranks) < 2:
        return ""
    size, hosts = ranks[0].world_size, len({rank.host for rank in ranks})
    seen = f"{len(ranks)} of " if len(ranks) < size else ""
    return f"{seen}{counted(size, 'rank')} on {counted(hosts, 'host')}"


def loop_of(session: Session) -> str:
    """Return what the loop does, in a word."""
    return "evaluation" if session.evaluates else "training"


def whose(session: Session) -> str:
    """Return whom data costs time."""
    return f"the job of {counted(len(session.ranks), 'rank')}" if len(session.ranks) > 1 else f"your {loop_of(session)}"


def unfed(session: Session) -> str:
    """Return why the loop was not fed from a cache, as a clause."""
    if session.watched is not None:
        return "from outside it cannot be fed from a cache"
    what = "the time was over" if session.ended == "budget" else "the loop ended"
    return f"{what} before it could be fed from a cache"


def waiting(ladder: LadderView) -> str:
    """Return how long the loop waits in ``next()``; empty if that is unknown."""
    share = ladder.waited("baseline") if ladder.has("baseline") else None
    of = "a step in next()" if ladder.session.counts_steps else "its time for data"
    return f"the loop waits {percent(share.value)} of {of}" if share is not None else ""

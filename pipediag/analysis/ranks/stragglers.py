"""Find the rank that holds up a distributed job, by what its input supplies, and by treating single ranks differently.

All ranks take the same time for a step, since they wait for each other in the all-reduce. So no rank's own step says
which rank the others wait for. What their workers supply does if they differ by more than noise: that is *observed*,
without any trial (:func:`late_by_pace`). Two kinds of trials *prove* it, by timing the whole job:

- An *input* straggler: some ranks are fed from a cache on their device, the others train unchanged. If the job gains
  much of what it gains with all ranks fed, the input of those ranks holds it up, unless feeding as many other ranks
  helps as well: then the ranks compete for something they share, such as cores. The ranks' input paces (a worker's time
  for a batch, divided by the number of workers) say which ranks to feed first. They do not decide, and what trials
  refute is not observed.
- A straggler of the *step*, such as a slower GPU: all ranks are fed, and the steps of some are made longer. If the job
  becomes slower by as much, one of them is among the slowest; if it does not, they all have slack. In a job of equal
  ranks, none has slack. Sets of ranks are delayed together and halved, as in group testing. There are no such trials
  if the job certainly waits for its input and that of most ranks takes the whole step: no faster step would help.

Nothing here measures: :func:`next_trial` names the next trial, :func:`straggler_of` reads the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...session import CACHED, Rank, Session
from ..numbers.intervals import Interval
from ..numbers.ladder import LadderView
from ..numbers.paired_windows import PACE, WORKERS, Noise, around
from ..thresholds import GATE, WORTH
from ..verdict import OBSERVED, PROVEN, decided
from ..words import number, numbered, percent, shown, times
from .trials import MOST_PAIRS, Change, Needed, Result, Trials

#: Ranks that the others wait for wait for their own data at least this many times as long.
_LONGER = 2.0
#: Shortest time to supply a batch, as a share of the step: clocks tell no more.
_LEAST = 1e-3
__all__ = ["Change", "Straggler", "next_trial", "straggler_of", "straggler_or_why_none"]
_UNKNOWN = "It is not known whether one rank holds up the others"
#: Feeding an input straggler alone brings at least this share of what feeding all ranks brings.
HALF = 0.5
#: Feeding as many other ranks helps as well from this share of the logarithm of the straggler's gain on.
AS_WELL = 0.5
#: Length of a delay as a share of the step with all ranks fed, and the shortest in milliseconds that a sleeping process
#: can keep. Slack shorter than half of the delay is not found.
DELAY, LEAST_DELAY_MS = 0.2, 2.0
#: Once this many ranks, delayed one by one, delay the whole job, all count as equally fast.
_EQUAL = 2


@dataclass(frozen=True)
class Late:
    """The ranks that supply batches late, the slowest first, and the others, likewise."""

    ranks: list[Rank]
    others: list[Rank]
    gain: Interval  # the job's speedup if the late ones were as fast as the others


def input_pace(rank: Rank) -> float | None:
    """Return the milliseconds in which the rank's input gives one batch, or None if unknown.

    Without workers this is the time in which its loop waits for the batch.
    """
    if not rank.workers:
        return rank.wait_ms
    return rank.worker_ms / rank.workers if rank.worker_ms else None


def by_pace(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks, slowest input first; those with an unknown pace lead."""
    return sorted(ranks, key=lambda rank: (-(math.inf if (pace := input_pace(rank)) is None else pace), rank.rank))


def late_by_pace(ladder: LadderView, ranks: Sequence[Rank]) -> Late | None:
    """Return the ranks whose supply explains the job's step while that of all others certainly does not, or None.

    They are at most half of the ranks. Certainly means: by more than two workers' times for a batch, or the loop's pace
    and its workers' time, differ by chance on recorded runs.
    """
    waits = [rank.wait_ms for rank in ranks if rank.wait_ms is not None]
    if not ladder.has("baseline") or len(waits) < len(ranks) or len(ranks) < 2:
        return None
    step = ladder.ms("baseline").value
    own = ladder.best.value if ladder.intervened else step - min(step, max(waits))
    supplies: dict[int, float] = {}
    for rank in ranks:
        pace = input_pace(rank)
        if pace is None:
            return None
        supplies[rank.rank] = pace if rank.workers else own + pace  # one after the other
    ordered = sorted(ranks, key=lambda rank: -supplies[rank.rank])
    late = [rank for rank in ordered if around(supplies[rank.rank] / step, PACE).high >= 1]
    others = ordered[len(late) :]
    if not late or len(late) > len(ranks) // 2:
        return None
    if around(supplies[late[-1].rank] / max(supplies[others[0].rank], _LEAST * step), WORKERS).low <= 1:
        return None
    if min(rank.wait_ms or 0.0 for rank in late) < _LONGER * max(rank.wait_ms or 0.0 for rank in others):
        return None
    gain = around(step / max(own, supplies[others[0].rank], _LEAST * step), WORKERS)
    return Late(late, others, gain) if gain.low > WORTH else None


@dataclass(frozen=True)
class Straggler:
    """The ranks that hold up a job."""

    ranks: tuple[int, ...]
    kind: Literal["input", "step"]  # ``input`` if their batches come late, ``step`` if their own steps take longer
    #: Speedup of the job without that: measured with the ranks fed, predicted if only observed; for a step, a bound.
    gain: Interval
    sentence: str
    level: str = PROVEN  # or ``observed``

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "ranks": list(self.ranks), "gain": self.gain.to_dict()}


def next_trial(session: Session, ranks: Sequence[Rank]) -> Change | None:
    """Return how to treat the ranks in the next trial, or None if the answer is known or no trial can give it.

    ``session`` is the leading rank's own, with the windows of the ladder and the trials so far. ``ranks`` need at least
    ``workers``, and ``worker_ms`` or ``wait_ms``.
    """
    try:
        _search(session, ranks, Trials(session))
    except Needed as needed:
        return needed.change
    return None


def straggler_of(session: Session) -> Straggler | None:
    """Return the ranks that hold up the job, as proven by trials or observed; None if none do or if that is unknown."""
    return straggler_or_why_none(session)[0]


def straggler_or_why_none(session: Session) -> tuple[Straggler | None, str]:
    """Return the straggler, or a sentence that says why none is named; it is empty for a single process."""
    if len(session.ranks) < 2:
        return None, ""
    trials = Trials(session, closed=True)
    try:
        return _search(session, session.ranks, trials)
    except Needed:
        tried = "the trials ended before it was clear" if session.rank_trials else "no trials were made"
        seen = _observed(LadderView(session), trials, session.ranks)
        return seen, "" if seen else f"{_UNKNOWN}: {tried}."


def _search(session: Session, ranks: Sequence[Rank], trials: Trials) -> tuple[Straggler | None, str]:
    """Return the straggler, or why there is none.

    Raises:
        Needed: a trial is lacking.
    """
    ladder = LadderView(session)
    if len(ranks) < 2 or not ladder.has("baseline") or not any(map(ladder.has, CACHED)):
        seen = _observed(ladder, trials, ranks)
        return seen, "" if seen else f"{_UNKNOWN}: the job was not fed from a cache."
    loses = decided(ladder.share("baseline", ladder.ceiling))
    late, on_time = _of_input(ladder, trials, ranks, loses)
    if late:
        return late, ""
    step = ladder.ms("baseline").value
    paces = [pace for rank in ranks if rank.workers and (pace := input_pace(rank)) is not None]
    bound = sum(around(pace / step, WORKERS).high >= 1 for pace in paces)
    if loses and 2 * bound > len(ranks):  # most ranks take the whole step to supply a batch
        return None, f"No rank holds up the others: {on_time}."
    slow, alike = _of_step(ladder, trials, ranks)
    return slow, "" if slow else f"No rank holds up the others: {on_time}, and {alike}."


def _observed(ladder: LadderView, trials: Trials, ranks: Sequence[Rank]) -> Straggler | None:
    """Return the ranks whose input holds up the job by what it supplies, unless a trial speaks against that."""
    late = late_by_pace(ladder, ranks)
    if late is None:
        return None
    fed = trials.ratio(Change(), Change(fed=_numbers(late.ranks)), PACE)
    if fed is not None and math.log(fed.high) < HALF * math.log(late.gain.value):
        return None
    return Straggler(_numbers(late.ranks), "input", late.gain, _supplies(late), OBSERVED)


def _supplies(late: Late) -> str:
    """Return how often each side supplies a batch, as a sentence."""
    one, other = late.ranks[0], late.others[0]
    whose = "its" if len(late.ranks) == 1 else "their"
    theirs = f"rank {other.rank}'s" if len(late.others) == 1 else "those of the others"
    pace, least = (number(input_pace(rank) or 0.0) for rank in (late.ranks[-1], other))
    often = f"every {pace} ms" if len(late.ranks) == 1 else f"every {pace} ms at best"
    sooner = f"every {least} ms" if len(late.others) == 1 else f"every {least} ms or sooner"
    if one.workers and other.workers:
        seen = f"{whose} workers give a batch {often}, {theirs} {sooner}"
    else:
        seen = f"{whose} data takes {pace} ms a batch, that of {_those(late.others)} {least} ms"
    return f"{_holds(late.ranks)} (observed: {seen}){_mostly(one, len(late.ranks) == 1)}."


def _holds(ranks: Sequence[Rank]) -> str:
    return f"{_those(ranks).capitalize()} {'holds' if len(ranks) == 1 else 'hold'} up the job"


def _mostly(rank: Rank, alone: bool) -> str:
    """Return what the rank spends most of its time for a batch on, as a clause; empty if unknown."""
    stage, share = max(rank.shares.items(), key=lambda item: item[1], default=("", 0.0))
    if not stage:
        return ""
    if rank.workers:
        who = "its workers spend" if alone else f"the workers of rank {rank.rank} spend"
        return f"; {who} {percent(share)} in {shown(stage)}"
    return f"; {'it' if alone else f'rank {rank.rank}'} spends {percent(share)} in {shown(stage)}"


def _of_input(
    ladder: LadderView, trials: Trials, ranks: Sequence[Rank], loses: bool | None
) -> tuple[Straggler | None, str]:
    """Return the ranks whose input holds up the job, or why there are none; ``loses`` says whether it waits at all."""
    if not loses:
        return None, "data costs the job no time" if loses is False else "it is open whether data costs the job time"
    ranks, most = _suspects(ranks, trials), len(ranks) // 2
    paces = [input_pace(rank) for rank in ranks]
    if paces[most] is None:
        return None, "the paces of their inputs are not known"
    step = ladder.ms("baseline").value
    worth = max(HALF * (step - ladder.ms(ladder.ceiling).value), GATE * step)
    bound = step / (step - worth)

    def fed(some: Sequence[Rank], likely: bool) -> tuple[bool, Interval]:
        """Return whether the job certainly gains enough with these ranks fed, and how much.

        Unless their paces make that ``likely``, only one or two pairs are spent on it.
        """
        change = Change(fed=_numbers(some))
        least, most_pairs = (2, MOST_PAIRS) if likely else (1, 2)
        found = trials.compare(Change(), change, bound, PACE, least, most_pairs)
        return found.above is True, found.ratio

    tried = [some for some in trials.fed() if len(some) <= most]
    # The job is as slow as the slowest input; if several must be fed, the paces say which.
    predicted = (count for count in range(1, most) if _saved(paces, count, step) >= worth)
    count, too_few = len(tried[0]) if tried else next(predicted, most), 0
    enough, gain = fed(ranks[:count], _saved(paces, count, step) >= worth)
    if not enough and count < most:
        count, too_few = most, count
        enough, gain = fed(ranks[:count], False)
    if not enough:
        return None, f"with {_those(ranks[:most])} fed from a cache, the job runs {number(gain.value)}x as fast"
    while count - too_few > 1 and not _saved(paces, count, step) >= worth > _saved(paces, count - 1, step):
        middle = (count + too_few) // 2
        if trials.closed and _numbers(ranks[:middle]) not in tried:
            break
        enough, other = fed(ranks[:middle], True)
        count, too_few, gain = (middle, too_few, other) if enough else (count, middle, gain)
    late = ranks[:count]
    if math.log(fed(ranks[-count:], False)[1].value) > AS_WELL * math.log(gain.value):
        instead = f"feeding {_those(ranks[-count:])} instead of {_those(late)} helps as well"
        return None, f"{instead}, so they share what limits them"
    caches = "its cache" if count == 1 else "their caches"
    sentence = f"{_holds(late)}: fed from {caches}, the job runs {times(gain)} as fast{_mostly(late[0], count == 1)}."
    return Straggler(_numbers(late), "input", gain, sentence), ""


def _suspects(ranks: Sequence[Rank], trials: Trials) -> list[Rank]:
    """Return the ranks, slowest input first, in an order that agrees with the trials so far.

    Paces change as more is measured, but sets that were fed must stay the first ranks, and sets fed instead of them the
    last.
    """
    suspected, instead = dict[int, int](), set[int]()
    for some in trials.fed():
        if len(some) > len(ranks) // 2:
            continue
        if not suspected or not suspected.keys().isdisjoint(some):
            for rank in some:
                suspected[rank] = min(len(some), suspected.get(rank, len(some)))
        else:
            instead |= {*some}
    return sorted(by_pace(ranks), key=lambda one: (suspected.get(one.rank, len(ranks)), one.rank in instead))


def _saved(paces: Sequence[float | None], count: int, step: float) -> float:
    """Return the milliseconds of a step that the job saves, by the paces, if its ``count`` slowest inputs are fed."""
    slowest, left = paces[0], paces[count]
    return step * (1 - left / slowest) if slowest and left is not None else 0.0


def _of_step(ladder: LadderView, trials: Trials, ranks: Sequence[Rank]) -> tuple[Straggler | None, str]:
    """Return the few ranks whose own step holds up the job, or why there are none."""
    step = ladder.ms(ladder.ceiling).value
    delay = trials.delay_ms() or max(DELAY * step, LEAST_DELAY_MS)
    noise = Noise(math.sqrt(2) * ladder.quiet, PACE.degrees)
    everyone = _numbers(ranks)
    grown: dict[tuple[int, ...], Result] = {}

    def slack(numbers: Sequence[int]) -> bool | None:
        """Return whether delaying these ranks delays the job by less than half of that; None if uncertain."""
        group = tuple(sorted(numbers))
        change = Change(everyone, group, delay)
        grown[group] = trials.compare(Change(everyone), change, step / (step + delay / 2), noise, 2)
        return grown[group].above

    first, *others = sorted(ranks, key=lambda rank: rank.rank)
    # The second is as unlike the first as possible, on another host or device.
    others.sort(key=lambda rank: (rank.host != first.host, rank.device != first.device, rank.rank), reverse=True)
    unlike, *others = others
    in_order = [first, unlike, *sorted(others, key=lambda rank: rank.rank)]
    critical, why = without_slack([rank.rank for rank in in_order], slack)
    if why:
        return None, why
    least = min((grown[group].ratio for group in grown if grown[group].above), key=lambda ratio: ratio.value)

    def speedup(plain: float) -> float:
        """Return the job's speedup if its slowest ranks were as fast as the others: at least the others' slack.

        ``plain`` is the plain step divided by the step with others delayed. Their slack is at least the part of the
        delay that the job did not show.
        """
        shown = max(0.0, step / plain - step)
        return step / max(step - max(0.0, delay - shown), step / 2)

    gain = Interval(speedup(least.value), speedup(least.low), math.inf)
    alone = len(critical) == 1
    verb, their, them, they = ("holds", "its", "it", "it") if alone else ("hold", "their", "them", "they")
    sentence = (
        f"{numbered(critical).capitalize()} {verb} up the job: {their} own step takes longest. Delaying {them} by "
        f"{number(delay)} ms delays the job, delaying the other ranks does not; if {they} were as fast as those, the "
        f"job would run at least {number(gain.value)}x as fast."
    )
    return Straggler(tuple(critical), "step", gain, sentence), ""


def without_slack(ranks: Sequence[int], slack: Callable[[Sequence[int]], bool | None]) -> tuple[list[int], str]:
    """Return the few ranks without slack, if all others certainly have it, or why there are none.

    ``slack`` says whether all ranks of a set have slack, None if uncertain. A set in which at least one has none is
    halved. A rank counts as one without slack only if that is certain for the rank alone.
    """
    critical: list[int] = []
    free: list[int] = []
    unknown, most = [*ranks], max(1, (len(ranks) - 1) // 2)
    while unknown and len(critical) <= most and (free or len(critical) < _EQUAL):
        size = 1 if not free else len(unknown) if critical else (len(unknown) + 1) // 2
        group = unknown[:size]
        if slack(group):
            free += group
        else:
            while len(group) > 1:
                half, rest = group[: len(group) // 2], group[len(group) // 2 :]
                if slack(half):
                    free, half = free + half, rest
                group = half
            if free and slack(group) is not False:
                return [], f"it is not certain whether {numbered(group)} has slack"
            critical += group
        unknown = [rank for rank in unknown if rank not in {*critical, *free}]
    if not free:
        return [], f"delaying {numbered(sorted(critical))} delays the whole job"
    if not critical:
        return [], "delaying any rank delays the job by less"
    return ([], "many ranks have no slack") if unknown or len(critical) > most else (sorted(critical), "")


def _numbers(ranks: Sequence[Rank]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks))


def _those(ranks: Sequence[Rank]) -> str:
    return numbered(_numbers(ranks))

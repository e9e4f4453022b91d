"""Compare how fast the input of each rank of a job supplies batches, as the unmodified loop shows it.

The ranks of a job wait for each other in each step. If the workers of one rank need a whole step to supply a batch, and
those of the others supply theirs much sooner, the others wait for that rank: in communication, not for data. That is
observed, not proven: feeding the rank from a cache proves it, see :mod:`.stragglers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...session import Rank
from ..numbers.estimate import PACE, WORKERS, around
from ..numbers.intervals import Interval
from ..numbers.ladder import LadderView
from ..thresholds import WORTH

#: Ranks that the others wait for wait for their own data at least this many times as long.
_LONGER = 2.0
#: Shortest time to supply a batch, as a share of the step: clocks tell no more.
_LEAST = 1e-3


@dataclass(frozen=True)
class Late:
    """The ranks that supply batches late, the slowest first, and the ``others``, likewise.

    ``gain`` is the job's speedup if the late ones were as fast as the others.
    """

    ranks: list[Rank]
    others: list[Rank]
    gain: Interval


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


def all_bound(ladder: LadderView, ranks: Sequence[Rank]) -> bool:
    """Return whether the step of the job is as long as most of its ranks take to supply a batch."""
    step = ladder.ms("baseline").value
    paces = [pace for rank in ranks if rank.workers and (pace := input_pace(rank)) is not None]
    return 2 * sum(around(pace / step, WORKERS).high >= 1 for pace in paces) > len(ranks)

"""Express a speedup as training time and money, and find how many workers still keep up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .numbers.estimate import WORKERS, mean_rate
from .numbers.intervals import Interval
from .numbers.ladder import LadderView
from .thresholds import AGREE, GATE
from .trials.remedy import FEWEST, outcome

_HOUR = 3600.0  # seconds


@dataclass(frozen=True)
class Savings:
    """What a change brings, for the steps of one epoch or for an hour of today's training.

    Attributes:
        batches: batches in the epoch; None for an hour of today's training.
        now: seconds that this training takes today.
        then: seconds that it takes with the change.
        workers: fewest workers that keep up with the change; None if unknown or if no worker can be spared.
        with_start: True if the seconds include the start of the epoch.
        same_machine: False if the change needs another machine, whose price is unknown.
    """

    batches: int | None
    now: float
    then: Interval
    workers: int | None = None
    with_start: bool = False
    same_machine: bool = True

    def costs(self, price: float | None) -> tuple[float, Interval] | None:
        """Return the cost of this training now and then, at ``price`` an hour; None if no price is known."""
        if price is None or not self.same_machine:
            return None
        return self.now / _HOUR * price, self.then.times(price / _HOUR)

    def to_dict(self, price: float | None) -> dict[str, Any]:
        """Return the published form, with times in seconds and costs at ``price`` an hour."""
        costs = self.costs(price)
        return {
            "epoch_batches": self.batches,
            "with_start": self.with_start,
            "seconds_now": round(self.now, 6),
            "seconds_then": self.then.to_dict(),
            "cost_now": round(costs[0], 6) if costs else None,
            "cost_then": costs[1].to_dict() if costs else None,
            "workers": self.workers,
        }


def savings(
    gain: Interval,
    step_ms: float | None,
    length: int | None,
    *,
    startup_ms: float = 0.0,
    workers: int | None = None,
    same_machine: bool = True,
) -> Savings:
    """Return what a speedup brings.

    ``gain`` is the speedup of a step of ``step_ms`` milliseconds and its part of an epoch's start, ``startup_ms``,
    together. ``length`` is the number of batches in an epoch. For ``workers`` and ``same_machine`` see
    :class:`Savings`.
    """
    if step_ms is None or not length:
        length, now = None, _HOUR
    else:
        now = length * (step_ms + startup_ms) / 1000
    return Savings(length, now, gain.inverse(now), workers, startup_ms > 0, same_machine)


def of_remedy(ladder: LadderView, rung: str) -> Savings | None:
    """Return what the remedy that was measured under ``rung`` brings, or None if it does not pay."""
    came = outcome(ladder.session, rung)
    if came is None or not came.applied or came.speedup is None:
        return None
    step_ms, loader = ladder.ms("baseline").value if ladder.has("baseline") else None, ladder.session.loader
    return savings(came.speedup, step_ms, loader.epoch if loader else None, workers=workers_needed(ladder, rung))


def workers_needed(ladder: LadderView, rung: str) -> int | None:
    """Return the fewest workers that keep up with the loop under a remedy; None if unknown or if all are needed.

    This is the number of workers that are busy at a time: the cores that they use under the remedy, plus a worker's
    blocked time for a batch divided by the step. The blocked time is today's, since the remedy does not change how data
    is read. The upper end of each interval counts, times :data:`AGREE`. The number is unknown if the loop still waits
    for batches.
    """
    loader, windows = ladder.session.loader, ladder.session.windows_of(rung)
    today = ladder.evidence("baseline")
    if loader is None or not {"worker_ms", "worker_blocked"} <= today.keys():
        return None
    if not all({"cores_used", "process_cpu", "wait_ms"} <= window.evidence.keys() for window in windows):
        return None
    cores = [window.evidence["cores_used"] - window.evidence["process_cpu"] for window in windows]
    steps = [window.ms_per_step for window in windows]
    waits = sum(window.evidence["wait_ms"] for window in windows) > GATE * sum(steps)
    if len(windows) < FEWEST or waits or min(cores) <= 0:  # 0: below the resolution of the processes' clocks
        return None
    blocked = today["worker_ms"] * today["worker_blocked"]
    needed = math.ceil(AGREE * (mean_rate(cores, WORKERS).high + blocked / mean_rate(steps).low))
    return needed if needed < loader.num_workers else None

"""Read the times that belong to a script's code, with the uncertainty from one analysis of it to the next.

These are a worker's own milliseconds for a sample, by stage, and the training process's for a step with batches ready.
How many milliseconds of a *step* a stage costs is no such time: it depends on which side limits the loop, and changes
when another stage does.

Two analyses of one script differ by more than the windows of one: the host is faster or slower, and other samples are
probed. :data:`RUN` and :data:`DEVICE` say by how much.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...session import CACHED, RUNGS, STAGE_OF_RUNG, Cost, Inside
from ..thresholds import GATE
from .chain import why_unsplit
from .intervals import Interval, by_logarithms, exactly, log_ratio
from .ladder import LadderView
from .loop_and_workers import Work, work_of
from .paired_windows import PACE, Noise, student_t

#: Standard deviation, from one analysis of a script to the next, of the logarithm of a worker's own time for a sample:
#: 15 analyses within an hour, on two cores beside up to eight other processes, had 4.4 to 7.5 ms of CPU time. A loop
#: that waits for its workers, or that trains on the CPU, differs as much.
RUN = Noise(0.15, 14)
#: The same for steps on another device that wait for nothing: those of one analysis differ by 1 or 2 %.
DEVICE = Noise(0.03, 14)
#: Two-sided error probability of an interval between analyses: a comparison looks at several, and may err in few. That
#: of a part of a worker's time is as usual, since its share must have changed as well.
ERROR, _OF_PART = 0.01, 0.05
#: Half-width of the interval of a share of a worker's time: shares of one script differ by 2 to 4 points.
_SHARE = 0.05
#: Factor from the half-width of a 95 % interval of the ladder to one with :data:`ERROR`.
_WIDER = student_t(PACE.degrees, ERROR) / student_t(PACE.degrees)


@dataclass(frozen=True)
class OwnTime:
    """A worker's own milliseconds for a sample in a stage, and their share of the sample's time."""

    stage: str
    ms: Interval
    share: Interval
    name: str = ""  # of a transform, else empty
    where: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What is the same in another analysis. Lines are not: code added above moves them."""
        return self.stage, self.name, os.path.basename(self.where.rpartition(":")[0])


@dataclass(frozen=True)
class OwnTimes:
    """A worker's own time for a sample."""

    whole: Interval  # has :data:`ERROR`
    parts: list[OwnTime]  # whose intervals are narrower
    split: bool  # each transform is a part
    counted: bool  # false if the time in which workers waited for a core is not known: it is part of the figures then

    def joined(self) -> list[OwnTime]:
        """Return the parts with all transforms as one."""
        transforms = [part for part in self.parts if part.stage == "transform"]
        others = [part for part in self.parts if part.stage != "transform"]
        if not transforms:
            return others
        value = sum(part.share.value for part in transforms)
        arm = math.hypot(*(part.share.arm for part in transforms))
        share = Interval(value, max(0.0, value - arm), value + arm)
        return [*others, OwnTime("transform", _part(self.whole.value, share), share)]


def own_times(ladder: LadderView) -> OwnTimes | None:
    """Return a worker's own time for a sample, without its waiting for a core; None if unknown."""
    session = ladder.session
    work, inside = work_of(ladder), session.inside
    if work is None or session.loader is None or not session.loader.batch_size:
        return None
    whole = _widened(exactly(work.run / session.loader.batch_size), RUN)
    counted = "worker_queued" in ladder.evidence("baseline")
    if inside is None or not inside.timed:
        return OwnTimes(whole, [], False, counted)
    shares = {("collate", "", ""): work.collate / work.run, **_shares(work, inside)}
    parts = []
    for (stage, name, where), value in shares.items():
        # At worst a transform takes all the time of some samples and none of the others'.
        arm = max(_SHARE, 2 * math.sqrt(value * max(0.0, 1 - value) / inside.samples))
        share = Interval(value, max(0.0, value - arm), value + arm)
        parts.append(OwnTime(stage, _part(whole.value, share), share, name, where))
    return OwnTimes(whole, parts, not (inside.unsplit or why_unsplit(session)), counted)


def _shares(work: Work, inside: Inside) -> dict[tuple[str, str, str], float]:
    """Return the shares of a worker's time for loading and each transform, by stage, name and place.

    CPU time is divided by CPU time, and time in which workers are blocked by the rest of the wall time: on a busy
    machine, wall time is mostly waiting for a core. A transform at several lines of one file is one part.
    """
    costs = [(("load", "", ""), inside.load), (("load", "", ""), inside.between)]
    costs += [(("transform", link.name, link.where), link.cost) for link in inside.links]
    on_cpu = min(work.cpu, work.run) / work.run
    computed = _divided(costs, lambda cost: cost.cpu_ms)
    blocked = _divided(costs, lambda cost: max(0.0, cost.wall_ms - cost.cpu_ms))
    whole, found = work.samples / work.run, dict[tuple[str, str, str], float]()
    first = dict[tuple[str, str], str]()
    for ((stage, name, where), _), of_cpu, of_rest in zip(costs, computed, blocked, strict=True):
        where = first.setdefault((name, where.rpartition(":")[0]), where)
        share = whole * (on_cpu * of_cpu + (1 - on_cpu) * of_rest)
        found[stage, name, where] = found.get((stage, name, where), 0.0) + share
    return found


def _divided(costs: Iterable[tuple[object, Cost]], ms: Callable[[Cost], float]) -> list[float]:
    """Return the shares of each cost in their sum: by ``ms``, or by wall time if that is nothing."""
    for of in (ms, lambda cost: cost.wall_ms):
        values = [of(cost) for _, cost in costs]
        if sum(values) > 0:
            return [value / sum(values) for value in values]
    return [1 / len(values)] * len(values)


def loop_times(ladder: LadderView) -> dict[str, tuple[Interval, int]]:
    """Return the training process's own milliseconds of a step by stage, as far as rungs measured them.

    With each comes the least number of windows of a rung that it is from.
    """
    if not ladder.intervened or (top := ladder.ceiling) not in CACHED:
        return {}
    found = {"compute": (pace(ladder, top), ladder.windows(top))}
    for rung in RUNGS[1 : RUNGS.index("worker") + 1]:
        below = ladder.below(rung) if ladder.has(rung) else None
        if below is not None and ladder.covered(rung) == [STAGE_OF_RUNG[rung]]:
            cost = ladder.cost(rung, below)
            arm = math.hypot(_WIDER * cost.arm, student_t(RUN.degrees, ERROR) * RUN.sd * abs(cost.value))
            windows = min(map(ladder.windows, (rung, below)))
            found[STAGE_OF_RUNG[rung]] = Interval(cost.value, cost.value - arm, cost.value + arm), windows
    return found


def pace(ladder: LadderView, rung: str) -> Interval:
    """Return milliseconds per step under a rung, as uncertain as from one analysis to the next.

    A loop is as fast as the slower of its own side and its workers' supply. On a faster or slower host the supply
    changes, and so does the step if the supply limits it then. Without workers the two follow each other. On the CPU
    the host is as fast for both.
    """
    session, step = ladder.session, ladder.ms(rung)
    on_cpu, waited = session.device_type == "cpu", ladder.waited(rung) if rung not in CACHED else None
    found, arm = _widened(step, RUN if on_cpu else DEVICE), student_t(RUN.degrees, ERROR) * RUN.sd
    if on_cpu or waited is None:
        return found
    own, wait = (1 - waited.value) * step.value, waited.value * step.value
    if not session.workers:
        below, above = own + wait * math.exp(-arm), own + wait * math.exp(arm)
    else:
        supply = step.value if waited.value > GATE else (ladder.making(rung) or 0.0) / session.workers
        below, above = max(own, supply * math.exp(-arm)), max(own, supply * math.exp(arm))
    low = step.value - math.hypot(step.value - found.low, max(0.0, step.value - below))
    high = step.value + math.hypot(found.high - step.value, max(0.0, above - step.value))
    return Interval(step.value, max(0.0, low), high)


def _widened(ms: Interval, noise: Noise) -> Interval:
    """Return the interval with the noise between analyses added to its own; half-widths of logarithms add up."""
    arm = student_t(noise.degrees, ERROR) * noise.sd
    below, above = (
        math.hypot(_WIDER * end, arm) for end in (log_ratio(ms.value, ms.low), log_ratio(ms.high, ms.value))
    )
    return by_logarithms(ms.value, below, above)


def _part(whole: float, share: Interval) -> Interval:
    """Return the milliseconds of a part of a worker's time; half-widths of logarithms add in quadrature."""
    ms, arm = whole * share.value, student_t(RUN.degrees, _OF_PART) * RUN.sd
    if ms <= 0:
        return Interval(0.0, 0.0, whole * share.high)
    ends = log_ratio(share.value, share.low), log_ratio(share.high, share.value)
    return by_logarithms(ms, *(math.hypot(arm, end) for end in ends))

"""Choose other loader settings to try on the running loop, from the ladder's results.

This is no grid search: a setting is tried only if this run gives a reason for it. The reasons are those of the
recommendation rules; :mod:`pipediag.analysis.trials.halving` evaluates the trial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...session import Loader, LoaderSettings, Session
from ..numbers.ladder import LadderView
from ..recommend.workers import irregular
from ..thresholds import GATE, QUEUED
from ..verdict import judge
from ..waterfall import waterfall
from ..whatif import Change, WhatIf, transfer_matters, what_if

#: Maximum number of settings to try: more would leave few windows for each.
MOST = 6
#: Share of the machine's free memory that the workers of all settings together may take.
MEMORY_SHARE = 0.5
#: prefetch_factor for a loader that has no workers yet; torch's default.
AHEAD = 2


@dataclass(frozen=True)
class Candidates:
    """Settings to try, the most promising first."""

    settings: tuple[LoaderSettings, ...] = ()  # empty if the run gives no reason for any
    base: float = 0.0  # milliseconds per step with the loader's own settings
    steps: tuple[float, ...] = ()  # milliseconds per step under each, as the model predicts
    why_not: str = ""  # why there are none although the loop starves; empty if it does not starve or if there are some


@dataclass(frozen=True)
class Memory:
    """Bounds on the number of workers, in bytes."""

    worker: int  # memory of one worker that it does not share with others
    batch: int  # one queued batch
    free: int  # memory that the process may still take
    shared: int | None = None  # free shared memory for the batches that workers hand over; None if unknown


def candidates(session: Session) -> Candidates:
    """Return the settings that this run gives a reason to try, if the ladder shows that the loop certainly starves."""
    ladder, loader = LadderView(session), session.loader
    numbers = what_if(ladder)
    if numbers is None or loader is None:
        return Candidates()
    verdict = judge(ladder, waterfall(ladder))
    if verdict.starved is None or verdict.starved.low <= GATE or loader.plain_iterable:
        return Candidates()
    if loader.iterable:
        return Candidates(why_not="an iterable dataset's own code divides its data among the workers")
    if loader.nests:
        return Candidates(
            why_not="its batches come from another loader's workers, which no worker of its own can start"
        )
    workers = _workers(ladder, numbers, verdict.bottleneck)
    deeper = not workers and loader.num_workers and irregular(ladder, numbers)  # batches arrive irregularly
    ahead = [factor * (loader.prefetch_factor or AHEAD) for factor in (2, 4)] if deeper else []
    pins = session.device_type != "cpu" and not loader.pin_memory and transfer_matters(session, GATE / 2)
    pinned = [True] if pins else []
    now = current(loader)
    made = [
        LoaderSettings(count, (deep or AHEAD) if count else None, pin)
        for count, deep, pin in itertools.product(
            [*workers, now.num_workers], [*ahead, now.prefetch_factor], [*pinned, now.pin_memory]
        )
    ]
    found = [one for one in made if one != now][:MOST]
    if not found:
        return Candidates(why_not="no measurement suggests other settings")
    return Candidates(tuple(found), numbers.base, tuple(_step(numbers, one) for one in found))


def current(loader: Loader) -> LoaderSettings:
    return LoaderSettings(loader.num_workers, loader.prefetch_factor, loader.pin_memory)


def _workers(ladder: LadderView, numbers: WhatIf, bottleneck: str) -> list[int]:
    """Return other numbers of workers to try, the most promising first."""
    now, work, handoff = numbers.workers, numbers.work, numbers.handoff
    if now and work is not None and handoff is not None and handoff.value - work.run > GATE * numbers.base:
        return [0]  # the training process makes a batch faster than it takes one over
    if numbers.waits:
        # The model's choice, the middle up to it, and one worker per core. The model reserves the cores that the
        # training process would need at full speed. Only a trial can tell what more workers do on those not used yet.
        cores, wanted = int(ladder.session.cores or 0), numbers.workers_wanted() or 0
        most = wanted if wanted > now else cores
        middle = round(math.sqrt(max(1, now) * max(1, most)))
        return [*dict.fromkeys(count for count in (most, middle, cores) if count > now)]
    in_the_way = bottleneck == "contention" or numbers.lost.low > GATE * numbers.base
    if not in_the_way and ladder.evidence("baseline").get("worker_queued", 0.0) <= QUEUED:
        return []
    # What suffices for the loop, and half of the present number.
    return [*dict.fromkeys(count for count in (numbers.workers_enough(), now // 2) if 0 < count < now)]


def _step(numbers: WhatIf, one: LoaderSettings) -> float:
    """Return the predicted milliseconds per step; the model knows only the number of workers."""
    if numbers.workers and not one.num_workers and numbers.work is not None and numbers.handoff is not None:
        return numbers.loop - max(0.0, numbers.handoff.value) + numbers.work.run
    change = Change() if one.num_workers == numbers.workers else Change(workers=one.num_workers)
    return min(numbers.base, numbers.step(change).value)


def left_out(settings: Sequence[LoaderSettings], memory: Memory) -> dict[int, str]:
    """Return the positions of settings that do not fit into memory next to those before them, with the reason."""
    taken, queued, found = 0.0, 0.0, {}
    for position, one in enumerate(settings):
        in_flight = one.num_workers * (one.prefetch_factor or 1) * memory.batch
        whole = one.num_workers * memory.worker + in_flight * (2 if one.pin_memory else 1)
        if taken + whole > MEMORY_SHARE * memory.free:
            found[position] = f"its workers may take {_text(whole)}, and {_text(memory.free)} of memory are free"
        elif memory.shared is not None and queued + in_flight > MEMORY_SHARE * memory.shared:
            found[position] = (
                f"{_text(in_flight)} of batches would be queued, and {_text(memory.shared)} of shared memory are free"
            )
        else:
            taken, queued = taken + whole, queued + in_flight
    return found


def _text(nbytes: float) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"

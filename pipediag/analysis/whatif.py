"""Predict what a change to the input pipeline gains in steps, time and money, from the numbers of one run.

A loop with worker processes is as fast as the slower of two sides, the loop itself with a batch always ready, and the
workers' supply. A loop without workers runs them one after the other:

    step = max(loop, supply)     with workers
    step = loop + supply         without

This is the bound of a two-stage pipeline, and the reason why the ladder's stages do not add up: the slower side hides
the work of the other. The ladder measures both sides:

``loop``    the rung ``worker`` (or ``host``, or the fastest measured): compute, transfer, hand-off; plus the time of
            the sampler, and what the loop loses to running workers, if that is certain (:class:`.sides.Sides`)
``supply``  the baseline step if the loop waits for batches, since the supply alone decides it then; otherwise the
            loader alone (the rung ``supply``)

The supply scales with the time in which the machine can make a batch beside the step that uses it:

    pace = max(run / workers, (own + cpu) / cores)

Each worker makes one batch at a time, in ``run`` milliseconds (:class:`.sides.Work`); and the cores have to do what the
workers (``cpu``) and the training process (``own``) do for a step. So on full cores, less work for the workers gains
less than its share of their time: the training process needs its cores as before. All times are milliseconds per batch
or step.

The interval of a prediction includes the uncertainty of the change, of the model (:data:`.sides.SAVED`,
:data:`SCALING`, :data:`RECORDING`, :data:`LAUNCHING`) and of the ladder. Unless the change affects the model's own
step, a prediction never exceeds the ladder's ceiling, batches cached on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..session import Session
from .numbers.intervals import Interval, by_logarithms, exactly, largest, least, log_ratio, total
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import Sides, Work, saving, sides, work_of
from .thresholds import RESOLUTION

#: Minimum fraction of the ideal gain from more workers or cores: they share caches and memory.
SCALING = 0.7
#: Worker milliseconds per sample and moved transform to record the transform instead of executing it: 13 us on one
#: machine, 40 to 50 us with seven other busy workers on another (benchmarks/results/remedies_*-h200.json).
RECORDING = Interval(0.04, 0.013, 0.08)
#: Milliseconds that replaying a batch adds to the step, apart from the device's passes over memory: launch overhead
#: that competes with the loop's own Python, and the work in ``next()``. The lower end is with fused kernels, the upper
#: end without (benchmarks/results/offload-h200.json, streams_next-h200.json).
LAUNCHING = Interval(1.0, 0.3, 4.3)
#: Time to write a batch into a reused memory slot, as a fraction of the time to write it into new shared memory
#: (benchmarks/results/ring-h200.json: 3.4 to 3.8 times as many batches received).
IN_A_SLOT = 0.3

#: Maximum number of workers to ask for, in all and for each core: those that are blocked for most of their time share
#: cores, but each takes memory.
MOST_WORKERS, PER_CORE = 64, 2
#: Resolutions by which a step must be longer than its known parts until the loop is taken to wait for its workers.
_UNSURE = 3
#: Minimum number of cores assumed free for the workers.
_LEAST_FREE = 0.5

NOTHING, ALL = exactly(0.0), exactly(1.0)
_HOUR = 3600.0  # seconds


@dataclass(frozen=True)
class Change:
    """The effect of a remedy on the pipeline."""

    work: Interval = NOTHING  # removed from a worker's running time for a batch; negative if added
    loop: Interval = NOTHING  # removed from the loop
    compute: Interval = NOTHING  # removed from the model's own step, which is a lower bound of the loop
    device: Interval = NOTHING  # added on the device: at worst it lengthens the step, at best it overlaps the step
    supply: Interval = ALL  # factor on the supply time, for effects outside the workers' work
    workers: int | None = None  # new number of workers; None if unchanged
    cores: float | None = None  # new number of cores; None if unchanged


@dataclass(frozen=True)
class WhatIf:
    """The numbers that predictions use; :func:`what_if` makes them."""

    base: float  # the baseline step
    compute: float  # the step without input cost (:attr:`.LadderView.best`)
    ceiling: Interval  # speedup of the latter over the former
    loop: float  # one side of the pipeline at present
    supply: float  # the other
    transfer: Interval | None  # cost of copying to the loop; None if not measured
    handoff: Interval | None  # the same of handing over
    lost: Interval  # the loop's additional slowdown by running workers, as far as the baseline shows it
    waits: bool  # true if the loop waits because the workers are late
    workers: int
    work: Work | None  # a worker's time for a batch; None if unknown
    own: float  # CPU milliseconds that the training process needs for a step
    #: Cores that the training process uses while it waits: some processes wait for their device or their threads
    #: without sleeping.
    spins: float
    cores: float  # cores of the machine that the script may use; infinite if unknown
    others: float  # cores that other processes use
    batch: int | None  # samples in a batch; None if unknown

    @property
    def taken(self) -> float:
        """Cores that the training process at full speed and other processes use."""
        return self.own / self.loop + self.others

    @property
    def free(self) -> float:
        """Cores left for the workers of a loop at full speed; infinite if unknown."""
        return max(_LEAST_FREE, self.cores - self.taken)

    def step(self, change: Change) -> Interval:
        """Return milliseconds per step under a change, with the uncertainty of the change and the model.

        ``max(loop', supply')`` with workers, ``loop' + supply'`` without, where

            loop'   = loop + lost * left * workers' / workers - change.loop - change.compute,
                      but at least compute - change.compute; then + change.device
            supply' = supply * pace' / pace * change.supply
            left    = (work - change.work) / work
        """
        loop, supply = self._loop_left(change), self._supply_left(change)
        alone = not (self.workers if change.workers is None else change.workers)
        return total([loop, supply]) if alone else largest(loop, supply)

    def faster(self, change: Change) -> Interval:
        """Return the predicted speedup of a change: the model's present step divided by its step under the change."""
        return self.speedup(self.step(Change()).value, self.step(change), capped=change.compute == NOTHING)

    def speedup(self, now: float, then: Interval, capped: bool = True) -> Interval:
        """Return the speedup from steps of ``now`` milliseconds to steps of ``then``.

        The ladder's uncertainty is added: none for no gain, the ceiling's for a gain that reaches the ceiling, and in
        between in proportion to the logarithms. If ``capped``, the result is limited to the ceiling.
        """
        gain = now / then.value
        top = math.log(self.ceiling.value) if self.ceiling.value > 1 else 0.0
        reached = min(1.0, max(0.0, math.log(gain)) / top) if top else 0.0
        below = math.hypot(log_ratio(then.high, then.value), reached * log_ratio(self.ceiling.value, self.ceiling.low))
        above = math.hypot(log_ratio(then.value, then.low), reached * log_ratio(self.ceiling.high, self.ceiling.value))
        found = by_logarithms(gain, below, above)
        return least(found, self.ceiling) if capped else found

    def moved(
        self,
        links: Iterable[int],
        sure: Iterable[int],
        device_copy_ms: float | None,
        sent: float = 1.0,
        recorded: float | None = None,
    ) -> Change:
        """Return the change that moves the transforms ``links`` to the device; at least those in ``sure`` will move.

        ``sent`` is the number of bytes that the workers then send per sample, relative to the present number. Collating
        moves each of these bytes, into reused memory (:data:`IN_A_SLOT`). A ratio above 1 counts as 1, because only the
        part of its input that a crop keeps is sent. The code between the transforms moves with them.

        The workers pay for recording (:data:`RECORDING`) ``recorded`` transforms, by default as many as move. The
        device makes between one pass over the batch in all and two passes per transform. A pass takes as long as a
        device-to-device copy of the batch; launching kernels comes on top (:data:`LAUNCHING`).

        A thread fetches batches and copies them on a stream of their own. This hides hand-off and transfer, unless the
        loop leaves the thread no time or the device's memory is busy. If the hand-off limited the supply, batches then
        come as fast as the workers make them.
        """
        assert self.work is not None
        links, sure = set(links), set(sure)
        saved = saving(sum(self.work.links[n] for n in links), sum(self.work.links[n] for n in sure))
        samples, count = float(self.batch or 1), len(links)
        recording = RECORDING.times(samples * (count if recorded is None else recorded))
        passes = device_copy_ms or 0.0
        on_device = total([LAUNCHING, Interval(passes * count, passes, 2 * passes * count)])
        lighter = (1 - IN_A_SLOT * min(1.0, sent)) * self.work.collate
        between = self.work.between * count / max(1, len(self.work.links))
        besides = Interval(lighter + between, 0.0, lighter + between)
        hidden = total([cost.not_negative() for cost in (self.transfer, self.handoff) if cost is not None])
        made = self._pace(1.0, self.workers, self.cores) if self.workers else self.supply
        unhindered = min(1.0, made / self.supply) if self.supply > 0 else 1.0
        return Change(
            work=total([saved.minus(recording), besides]),
            loop=Interval(hidden.value, 0.0, hidden.high),
            device=on_device,
            supply=Interval(unhindered, unhindered, 1.0),
        )

    def lighter(self, share: float) -> Change:
        """Return the change that removes ``share`` of a batch's bytes.

        Copying to the device gets cheaper by that share of its cost to the loop. Hand-off and collating do so only at
        best: they also move every byte, but do other work too.
        """
        transfer = self.transfer.not_negative() if self.transfer is not None else NOTHING
        handoff = max(0.0, self.handoff.high) if self.handoff is not None else 0.0
        collate = self.work.collate if self.work is not None else 0.0
        return Change(
            loop=Interval(share * transfer.value, share * transfer.low, share * (transfer.high + handoff)),
            work=Interval(0.0, 0.0, share * collate),
        )

    def workers_wanted(self) -> int | None:
        """Return the fewest workers whose supply keeps up with the loop, or that fill the cores.

        At most :data:`PER_CORE` for each core. None if the workers' work or the number of cores is unknown.
        """
        if self.work is None or math.isinf(self.cores):
            return None
        most = max(self.workers, 1, min(MOST_WORKERS, int(PER_CORE * self.cores)))
        for workers in range(max(1, self.workers), most):
            if self._supply_left(Change(workers=workers)).value <= self.loop + self.lost.value:
                return workers
            if self.work.run / workers <= self._by_cores(1.0, self.cores) * (1 + 1e-9):
                return workers
        return most

    def workers_enough(self) -> int:
        """Return the fewest of the present workers that keep up with the loop."""
        return math.ceil(self.workers * self.supply / self.loop)

    def workers_needed(self, change: Change) -> int | None:
        """Return the fewest workers whose supply certainly keeps up with the step under a change.

        None if all are needed, or if the change does not certainly reduce the workers' work.
        """
        if self.work is None or change.work.low <= 0:
            return None
        step = self.step(change).low
        return next(
            (n for n in range(1, self.workers) if self._supply_left(replace(change, workers=n)).high <= step), None
        )

    def cores_wanted(self) -> float | None:
        """Return the cores with which the workers keep up with the loop, or None if the workers' work is unknown.

        These are the CPU time of the workers and of the training process per loop step, and what others use.
        """
        return None if self.work is None else (self.work.cpu + self.own) / self.loop + self.others

    def _work_left(self, taken: Interval) -> Interval:
        if taken == NOTHING or self.work is None:
            return ALL
        run = self.work.run
        return Interval(1 - taken.value / run, 1 - taken.high / run, 1 - taken.low / run).not_negative()

    def _supply_left(self, change: Change) -> Interval:
        """Return the supply under a change; a gain from more workers or cores is at worst :data:`SCALING` of it."""
        left, workers = self._work_left(change.work), self.workers if change.workers is None else change.workers
        if self.work is None or not workers:
            return left.scaled(change.supply).times(self.supply)
        cores = self.cores if change.cores is None else change.cores
        now = self._pace(1.0, self.workers, self.cores) if self.workers else 0.0
        each = self.supply / now if now else 1.0  # without workers, none of their supply was measured
        best, value, worst = (each * self._pace(part, workers, cores) for part in (left.low, left.value, left.high))
        alone = self._pace(1.0, workers, cores)
        gain = now / alone if now else math.inf
        if not now:
            worst /= SCALING
        elif gain > 1:
            worst *= gain / (1 + SCALING * (gain - 1))
        return Interval(value, best, worst).scaled(change.supply)

    def _pace(self, left: float, workers: int, cores: float) -> float:
        """Return the milliseconds in which ``workers`` on ``cores`` make a batch with ``left`` of the present work."""
        assert self.work is not None
        return max(left * self.work.run / workers, self._by_cores(left, cores))

    def _by_cores(self, left: float, cores: float) -> float:
        """Return the milliseconds of a step that keeps ``cores`` busy: what both sides compute for it, and spinning.

        With ``w`` the step, ``w * (cores - others) = own + left * cpu + spins * (w - loop)``.
        """
        assert self.work is not None
        free = max(_LEAST_FREE, cores - self.others - self.spins)
        return max(0.0, self.own + left * self.work.cpu - self.spins * self.loop) / free

    def _loop_left(self, change: Change) -> Interval:
        left = self._work_left(change.work)
        workers = 1.0 if change.workers is None or not self.workers else change.workers / self.workers
        # Contention scales with the workers' work.
        loop = self.loop + self.lost.value * left.value * workers
        taken = total([change.loop, change.compute])
        loop_left = largest(exactly(loop).minus(taken), exactly(self.compute).minus(change.compute))
        if change.device == NOTHING:
            return loop_left
        # At best the added device work runs while the device would be idle.
        return Interval(
            loop_left.value + change.device.value,
            max(loop_left.low, change.device.low),
            loop_left.high + change.device.high,
        )


def what_if(ladder: LadderView) -> WhatIf | None:
    """Return the model of the measured pipeline, or None if too little was measured."""
    rungs, session = ladder.rungs, ladder.session
    if "baseline" not in rungs or len(rungs) < 2:
        return None
    loader, workers = session.loader, session.workers
    loop_rung = next((r for r in ("worker", "host") if r in rungs), rungs[0])
    base = ladder.ms("baseline").value
    found, besides = sides(ladder), 0.0
    if workers:
        loop = ladder.beside(loop_rung).value
        besides = min(found.handed + found.locked, max(0.0, base - loop))  # hand-off beyond that of the rung
        loop += besides + (found.sampler if loop_rung != "worker" else 0.0)
    else:
        loop = max(found.ready, ladder.best.value)
    waiting = base - loop
    # Paired round by round, unless the waiting alone shows more.
    paired, ceiling = ladder.ratio("baseline", ladder.ceiling), ladder.best.inverse(base)
    # If certain, and at most what the baseline shows.
    lost = least(found.lost, exactly(max(0.0, waiting))) if workers and found.lost.low > 0 else NOTHING
    waits = _waits(ladder, found, loop, lost.value)
    work, seen = work_of(ladder), ladder.evidence("baseline")
    if not workers:  # the time that making a batch adds to a step
        supply = max(0.0, waiting)
    elif waits:
        supply = base
    elif ladder.has("supply"):
        supply = min(base, ladder.ms("supply").value)
    else:  # they are on time
        supply = min(base, work.run / workers) if work is not None else 0.0
    below = ladder.below("worker") if "worker" in rungs else None
    own = loop * (ladder.evidence(loop_rung).get("process_cpu", seen.get("process_cpu", 0.0)) or 1.0)
    idle = waiting - lost.value if workers else 0.0
    spins = max(0.0, seen.get("process_cpu", 0.0) * base - own) / idle if waits and idle > 0 else 0.0
    return WhatIf(
        base=base,
        compute=ladder.best.value,
        ceiling=ceiling if ceiling.value > max(1.0, paired.value) else paired,
        loop=loop,
        supply=supply,
        transfer=ladder.cost("host", "device") if {"host", "device"} <= {*rungs} else None,
        handoff=ladder.cost("worker", below).shifted(besides - found.sampler) if below is not None else None,
        lost=lost,
        waits=waits,
        workers=workers,
        work=work,
        own=own,
        spins=min(spins, seen.get("process_cpu", 0.0)),
        cores=session.cores or math.inf,
        # Under a cgroup quota other processes do not reduce the cores that this one may use.
        others=0.0
        if session.environment.get("cgroup_quota")
        else max(0.0, seen.get("cores_busy", 0.0) - seen.get("cores_used", math.inf)),
        batch=loader.batch_size if loader else None,
    )


def _waits(ladder: LadderView, found: Sides, loop: float, lost: float) -> bool:
    """Return whether the loop waits because the workers are late, not because of contention or occasional delays.

    Workers that alone are faster than the loop are in time on average, and so are those whose batches lie ready while
    the loop waits for them. What rungs show as waiting may be contention; small differences are noise.
    """
    base = found.step.value
    early = ladder.has("supply") and ladder.ms("supply").value < loop + lost
    if ladder.session.workers and (found.handed or early):
        return False
    certain = found.waits.low > 0 and found.waits.value > RESOLUTION * base
    return certain or base - loop - lost > _UNSURE * RESOLUTION * base


def transfer_matters(session: Session, gate: float) -> bool:
    """Return whether copying to the device costs more than ``gate`` times the baseline step; False if unknown."""
    ladder = LadderView(session)
    if not {"device", "host", "baseline"} <= {*ladder.rungs}:
        return False
    return ladder.cost("host", "device").value > gate * ladder.ms("baseline").value


@dataclass(frozen=True)
class Savings:
    """What a change brings, for the steps of one epoch or for an hour of today's training."""

    batches: int | None  # batches in the epoch; None for an hour of today's training
    now: float  # seconds that this training takes today
    then: Interval  # seconds that it takes with the change
    #: Fewest workers that keep up with the change; None if unknown or if no worker can be spared.
    workers: int | None = None
    with_start: bool = False  # True if the seconds include the start of the epoch
    same_machine: bool = True  # False if the change needs another machine, whose price is unknown

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
    now = length * (step_ms + startup_ms) / 1000 if length and step_ms is not None else _HOUR
    batches = length if length and step_ms is not None else None
    return Savings(batches, now, gain.inverse(now), workers, startup_ms > 0, same_machine)

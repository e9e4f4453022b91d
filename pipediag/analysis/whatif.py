"""What a change to the input pipeline would do to the training step: a model on the numbers of one run.

A loop fed by worker processes is as fast as the slower of two, the loop itself with a batch always at hand, and the
workers' supply; a loop without workers does one after the other:

    step = max(loop, supply)     with workers
    step = loop + supply         without

This is the bound of a pipeline of two stages, and the reason why the ladder's stages do not add up: time that the
slower side takes hides what the other does. The ladder measures both sides:

``loop``    the rung ``worker`` (or ``host``, or the fastest there is): compute, transfer, hand-off; on top of it what
            the loop loses to the workers' mere presence, where that is certain (:class:`.waterfall.Sides`)
``supply``  the baseline step where the loop waits for batches, for then nothing else decides; the loader alone (the
            rung ``supply``) where it does not, or where that is fast enough

What the workers do for a batch (:class:`Work`) scales the supply: with a part of it taken away the supply takes as
many times less. The number of workers and of cores scale it by the :func:`capacity` of a machine. The rest of this
module states where each number comes from. All times are milliseconds for each batch or step.

A prediction's interval holds the uncertainty of what is changed, the model's own (:data:`SAVED`, :data:`SCALING`,
:data:`RECORDING`, :data:`LAUNCHING`), and that of the ladder. It never exceeds the ladder's ceiling, batches cached on
the device, unless the model's own step is changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..session import Session
from .intervals import Interval, total
from .ladder import LadderView
from .thresholds import RESOLUTION
from .waterfall import sides

#: What a change really takes off the workers, in parts of what the removed code took: the rest may become dearer, since
#: it finds other caches and other memory. Where the caching article's transforms were replaced by cheaper ones on one
#: machine, the loading beside them took 1.7 times what it did before, which left 0.58 of the saving
#: (benchmarks/results/caching_article-h200.json).
SAVED = Interval(1.0, 0.55, 1.1)
#: Part of the ideal gain that more workers or cores bring at least: they share caches and memory.
SCALING = 0.7
#: What a rung counts for that has one window only: the uncertainty of a whole run on a shared machine.
ONE_WINDOW = 0.1
#: Milliseconds of a worker for each sample and moved transform: recording it in place of executing it. 13 us on one
#: machine's cores, 40 to 50 us beside seven busy workers on another's (benchmarks/results/remedies_*-h200.json).
RECORDING = Interval(0.04, 0.013, 0.08)
#: Milliseconds of the step for each batch that is replayed, apart from the device's passes over memory: launching it
#: beside the loop's own Python, with fused kernels at the lower end and without at the upper, and what ``next()`` does
#: (benchmarks/results/offload-h200.json, streams_next-h200.json).
LAUNCHING = Interval(1.0, 0.3, 4.3)
#: Part of the time that a batch takes to be written into new shared memory, if it goes into a slot that is used again
#: (benchmarks/results/ring-h200.json: 3.4 to 3.8 times as many received).
IN_A_SLOT = 0.3

#: Workers that are asked for at most, and the cores that are left to them at least.
MOST_WORKERS, _LEAST_FREE = 64, 0.5

NOTHING = Interval(0.0, 0.0, 0.0)
ALL = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Work:
    """What one worker does for one batch: the baseline's own figures, divided by what was seen inside a worker.

    ``run`` is wall time without waiting for a core, ``cpu`` the part of it on a CPU (more than ``run`` where a worker
    uses threads). ``run`` is the sum of ``collate``, ``load``, ``between`` and the ``links``.
    """

    run: float
    cpu: float
    collate: float = 0.0
    load: float = 0.0
    between: float = 0.0
    links: tuple[float, ...] = ()

    @property
    def samples(self) -> float:
        """The part that makes the samples."""
        return self.run - self.collate


@dataclass(frozen=True)
class Change:
    """What a remedy changes.

    Attributes:
        work: taken off the workers, of the time that they run for a batch; below nothing where it is added.
        loop: taken off the loop.
        compute: taken off the model's own step, which limits the loop from below.
        device: added on the device, in the way of the step at worst, beside it at best.
        supply: how many times as long the supply takes, for what the workers' work does not tell.
        workers: how many there are then; None for as many as now.
        cores: how many cores there are then; None for as many as now.
    """

    work: Interval = NOTHING
    loop: Interval = NOTHING
    compute: Interval = NOTHING
    device: Interval = NOTHING
    supply: Interval = ALL
    workers: int | None = None
    cores: float | None = None


@dataclass(frozen=True)
class WhatIf:
    """The numbers that predictions are made from; made by :func:`what_if`.

    Attributes:
        base, compute: the baseline step, and that with batches cached as near to the device as was measured.
        ceiling: how many times as fast the latter is, paired round by round.
        loop, supply: the two sides of the pipeline, as they are now.
        loop_rung: the rung that gave ``loop``.
        transfer, handoff: what copying and handing over add to the loop; None where that was not measured.
        lost: what the loop loses to the workers' presence beside that, as far as it shows in the baseline.
        waits: whether the loop waits because the workers are late.
        workers: how many there are.
        work: what a worker does for a batch; None where that is not known.
        taken: cores that the training process and others on the machine use.
        free: cores left for the workers; infinite where the number of cores is not known.
        batch: samples in a batch; None where that is not known.
    """

    base: float
    compute: float
    ceiling: Interval
    loop: float
    supply: float
    loop_rung: str
    transfer: Interval | None
    handoff: Interval | None
    lost: Interval
    waits: bool
    workers: int
    work: Work | None
    taken: float
    free: float
    batch: int | None

    def step(self, change: Change) -> Interval:
        """Milliseconds of a step under a change, as uncertain as the change and the model are.

        ``max(loop', supply')`` with workers, ``loop' + supply'`` without, where

            loop'   = loop + lost * left * workers' / workers - change.loop - change.compute,
                      no less than compute - change.compute, + change.device
            supply' = supply * left * capacity / capacity' * change.supply
            left    = (work - change.work) / work
        """
        left = self._work_left(change.work)
        loop = self._loop_left(change, left)
        supply = product(self.supply_with(change), product(left, change.supply))
        alone = not (self.workers if change.workers is None else change.workers)
        return total([loop, supply]) if alone else largest(loop, supply)

    def faster(self, change: Change) -> Interval:
        """How many times as many steps a second there are under a change: the model's step now by its step then."""
        return self.speedup(self.step(Change()).value, self.step(change), capped=change.compute == NOTHING)

    def speedup(self, now: float, then: Interval, capped: bool = True) -> Interval:
        """How many times as many steps a second there are with steps of ``then`` in place of ``now``.

        The ladder's own uncertainty comes on top: none where nothing is gained, that of the ceiling where all of it is,
        and in between in proportion of the logarithms. Not more than the ceiling if ``capped``.
        """
        gain = now / then.value
        top = math.log(self.ceiling.value) if self.ceiling.value > 1 else 0.0
        reached = min(1.0, max(0.0, math.log(gain)) / top) if top else 0.0
        below = math.hypot(_log(then.high, then.value), reached * _log(self.ceiling.value, self.ceiling.low))
        above = math.hypot(_log(then.value, then.low), reached * _log(self.ceiling.high, self.ceiling.value))
        found = Interval(gain, gain * math.exp(-below), math.inf if math.isinf(above) else gain * math.exp(above))
        return least(found, self.ceiling) if capped else found

    def moved(
        self,
        links: Iterable[int],
        sure: Iterable[int],
        device_copy_ms: float | None,
        sent: float = 1.0,
        recorded: float | None = None,
    ) -> Change:
        """The transforms ``links`` of the chain moved to the device, of which at least those of ``sure`` will move.

        ``sent`` is how many bytes the workers send of a sample then, in parts of what they send now. Collating moves
        each of them, into memory that is used again (:data:`IN_A_SLOT`); more than now are not counted, for of what a
        cut is given only the part that it keeps is sent. What lies between the transforms goes with them. The workers
        keep what recording costs them (:data:`RECORDING`), ``recorded`` being how many transforms that is; by default
        as many as are moved. The device makes one pass over the batch at least, and two for each transform at most, a
        pass taking as long as a copy of the batch on the device, and launches kernels (:data:`LAUNCHING`). Batches are
        fetched by a thread and copied on a stream of their own: hand-off and transfer are hidden, unless the loop
        leaves the thread no time, or the device's memory is busy. Batches that the hand-off held back come as fast as
        they are made then.
        """
        assert self.work is not None
        links, sure = set(links), set(sure)
        saved = saving(sum(self.work.links[n] for n in links), sum(self.work.links[n] for n in sure))
        samples, count = float(self.batch or 1), len(links)
        recording = product(RECORDING, exactly(samples * (count if recorded is None else recorded)))
        passes = device_copy_ms or 0.0
        on_device = total([LAUNCHING, Interval(passes * count, passes, 2 * passes * count)])
        lighter = (1 - IN_A_SLOT * min(1.0, sent)) * self.work.collate
        between = self.work.between * count / max(1, len(self.work.links))
        besides = Interval(lighter + between, 0.0, lighter + between)
        hidden = total([_cost(self.transfer), _cost(self.handoff)])
        made = 1 / capacity(self.work, self.workers, self.free) if self.workers else self.supply
        unhindered = min(1.0, made / self.supply) if self.supply > 0 else 1.0
        return Change(
            work=total([minus(saved, recording), besides]),
            loop=Interval(hidden.value, 0.0, hidden.high),
            device=on_device,
            supply=Interval(unhindered, unhindered, 1.0),
        )

    def lighter(self, share: float) -> Change:
        """Batches with that part of their bytes taken away.

        Copying to the device takes that much less, as far as it costs the loop anything. Handing over and collating
        do so at best: they move every byte too, but not only that.
        """
        transfer = _cost(self.transfer)
        handoff = max(0.0, self.handoff.high) if self.handoff is not None else 0.0
        collate = self.work.collate if self.work is not None else 0.0
        return Change(
            loop=Interval(share * transfer.value, share * transfer.low, share * (transfer.high + handoff)),
            work=Interval(0.0, 0.0, share * collate),
        )

    def workers_wanted(self) -> int | None:
        """The fewest workers with which the supply would keep up with the loop, or that fill the cores.

        From ``supply * capacity / capacity' <= loop``. None where the workers' work or the cores are not known.
        """
        if self.work is None or math.isinf(self.free):
            return None
        most = MOST_WORKERS
        if self.work.cpu > 0:  # more of them would take turns
            most = min(most, max(1, int(self.free * self.work.run / self.work.cpu + 1e-9)))
        for workers in range(max(1, self.workers), most):
            if self.supply_with(Change(workers=workers)).value <= self.loop + self.lost.value:
                return workers
        return most

    def cores_wanted(self) -> float | None:
        """Cores with which the workers would keep up with the loop: the CPU time they need for each step of it, and
        what the training process uses itself. None where the workers' work is not known.
        """
        return None if self.work is None else self.work.cpu / self.loop + self.taken

    def _work_left(self, taken: Interval) -> Interval:
        if taken == NOTHING or self.work is None:
            return ALL
        run = self.work.run
        return largest(Interval(1 - taken.value / run, 1 - taken.high / run, 1 - taken.low / run), exactly(0.0))

    def _loop_left(self, change: Change, left: Interval) -> Interval:
        workers = 1.0 if change.workers is None or not self.workers else change.workers / self.workers
        # The workers are in the way by what they do.
        loop = self.loop + self.lost.value * left.value * workers
        taken = total([change.loop, change.compute])
        loop_left = largest(minus(exactly(loop), taken), minus(exactly(self.compute), change.compute))
        if change.device == NOTHING:
            return loop_left
        # At best the device does it while it would otherwise idle.
        return Interval(
            loop_left.value + change.device.value,
            max(loop_left.low, change.device.low),
            loop_left.high + change.device.high,
        )

    def supply_with(self, change: Change) -> Interval:
        """The supply with other workers or cores."""
        workers = self.workers if change.workers is None else change.workers
        if self.work is None or not workers or (change.workers is None and change.cores is None):
            return exactly(self.supply)
        free = self.free if change.cores is None else max(_LEAST_FREE, change.cores - self.taken)
        then = capacity(self.work, workers, free)
        if not self.workers:  # no supply of workers was measured: by their time for a batch
            return Interval(1 / then, 1 / then, 1 / (SCALING * then))
        gain = then / capacity(self.work, self.workers, self.free)
        slowest = 1 + SCALING * (gain - 1) if gain > 1 else gain
        return Interval(self.supply / gain, self.supply / gain, self.supply / slowest)


def capacity(work: Work, workers: int, free: float) -> float:
    """Batches per millisecond that workers can make: ``min(workers / run, free / cpu)``.

    Each worker runs one batch at a time, and all of them together have ``free`` cores.
    """
    by_workers = workers / work.run
    return by_workers if work.cpu <= 0 or math.isinf(free) else min(by_workers, free / work.cpu)


def what_if(ladder: LadderView) -> WhatIf | None:
    """The model of the measured pipeline; None where too little was measured for one."""
    rungs, session = ladder.rungs, ladder.session
    if "baseline" not in rungs or len(rungs) < 2:
        return None
    base, compute = ladder.ms("baseline"), ladder.ms(ladder.ceiling)
    if math.isinf(base.high) or math.isinf(compute.high):
        return None
    loader = session.loader
    workers = loader.num_workers if loader else 0
    loop_rung = next((r for r in ("worker", "host") if r in rungs), rungs[0])
    waiting = ladder.cost("baseline", loop_rung).value
    lost = _lost(ladder, waiting) if workers else NOTHING
    waits = _waits(ladder, loop_rung, waiting, lost.value, workers)
    work, taken = work_of(ladder), _cores_taken(ladder, loop_rung)
    cores = session.environment.get("cores")
    return WhatIf(
        base=base.value,
        compute=compute.value,
        ceiling=ladder.ratio("baseline", ladder.ceiling),
        loop=ladder.ms(loop_rung).value,
        supply=_supply(ladder, waiting, waits, workers, work),
        loop_rung=loop_rung,
        transfer=_known(ladder.cost("host", "device")) if {"host", "device"} <= {*rungs} else None,
        handoff=_handoff(ladder),
        lost=lost,
        waits=waits,
        workers=workers,
        work=work,
        taken=taken,
        free=max(_LEAST_FREE, cores - taken) if cores else math.inf,
        batch=loader.batch_size if loader else None,
    )


def _waits(ladder: LadderView, loop_rung: str, waiting: float, lost: float, workers: int) -> bool:
    """Whether the loop waits because the workers are late: not because they slow it down, or are late now and then.

    Workers that alone are faster than the loop are in time on average.
    """
    if workers and ladder.has("supply") and ladder.ms("supply").value < ladder.ms(loop_rung).value + lost:
        return False
    return waiting - lost > RESOLUTION * ladder.ms("baseline").value


def _supply(ladder: LadderView, waiting: float, waits: bool, workers: int, work: Work | None) -> float:
    """Milliseconds from batch to batch as the workers give them; without workers what making one adds to a step."""
    base = ladder.ms("baseline").value
    if not workers:
        return max(0.0, waiting)
    if waits:
        return base
    if ladder.has("supply"):
        return min(base, ladder.ms("supply").value)
    return min(base, work.run / workers) if work is not None else base


def _handoff(ladder: LadderView) -> Interval | None:
    below = ladder.below("worker") if "worker" in ladder.rungs else None
    return _known(ladder.cost("worker", below)) if below is not None else None


def _lost(ladder: LadderView, waiting: float) -> Interval:
    """What the loop loses to the workers' presence, where that is certain, but no more than the baseline shows."""
    found = sides(ladder).lost
    if found.low <= 0:
        return NOTHING
    return least(found, exactly(max(0.0, waiting)))


def _cores_taken(ladder: LadderView, loop_rung: str) -> float:
    """Cores that the training process uses when nothing holds it up, with those that others on the machine use.

    Under a quota the others take nothing from what the process may use.
    """
    seen = ladder.evidence("baseline")
    process = max(seen.get("process_cpu", 0.0), ladder.evidence(loop_rung).get("process_cpu", 0.0))
    others = max(0.0, seen.get("cores_busy", 0.0) - seen.get("cores_used", math.inf))
    return (process or 1.0) + (0.0 if ladder.session.environment.get("cgroup_quota") else others)


def work_of(ladder: LadderView) -> Work | None:
    """What a worker does for a batch; None where nothing is known of it.

    The whole is the worker's own time for a batch under the baseline, less what it waited for a core; without that
    figure, the time for a sample times the batch. Collating is what it takes under the rung ``sample``, where samples
    lie ready. The rest is divided by the shares that loading and each transform took of a probed sample.
    """
    inside, loader = ladder.session.inside, ladder.session.loader
    known = inside is not None and inside.samples > 0 and inside.whole.wall_ms > 0
    seen = ladder.evidence("baseline")
    if seen.get("worker_ms", 0.0) > 0:
        run = seen["worker_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
        cpu = seen["worker_ms"] * seen.get("worker_cpu", 1.0)
    elif known and inside is not None and loader is not None and loader.batch_size:
        run, cpu = inside.whole.wall_ms * loader.batch_size, inside.whole.cpu_ms * loader.batch_size
    else:
        return None
    if run <= 0:
        return None
    collate = min(_collating(ladder), run)
    if not known or inside is None:
        return Work(run, cpu, collate, run - collate)
    share = (run - collate) / inside.whole.wall_ms
    links = tuple(link.cost.wall_ms * share for link in inside.links)
    between = inside.between.wall_ms * share
    return Work(run, cpu, collate, max(0.0, run - collate - between - sum(links)), between, links)


def _collating(ladder: LadderView) -> float:
    """Milliseconds of ``run`` that collating takes: as workers told, or the time that they need for ready samples."""
    seen = ladder.evidence("baseline")
    if "collate_ms" in seen:
        return seen["collate_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
    if not ladder.has("sample"):
        return 0.0
    seen = ladder.evidence("sample")
    busy = seen.get("worker_ms", 0.0) * max(0.0, 1 - seen.get("worker_queued", 0.0))
    return max(0.0, busy - seen.get("copy_ms", 0.0))


def transfer_matters(session: Session, gate: float) -> bool:
    """Whether copying to the device costs at least that part of the baseline step, as far as is known."""
    ladder = LadderView(session)
    if not {"device", "host", "baseline"} <= {*ladder.rungs}:
        return False
    return ladder.cost("host", "device").value > gate * ladder.ms("baseline").value


def saving(ms: float, sure: float | None = None) -> Interval:
    """Work of ``ms`` taken away, as uncertain as :data:`SAVED` says; ``sure`` is the part that certainly goes."""
    return Interval(ms * SAVED.value, (ms if sure is None else sure) * SAVED.low, ms * SAVED.high)


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def largest(one: Interval, other: Interval) -> Interval:
    return Interval(max(one.value, other.value), max(one.low, other.low), max(one.high, other.high))


def least(one: Interval, other: Interval) -> Interval:
    return Interval(min(one.value, other.value), min(one.low, other.low), min(one.high, other.high))


def minus(one: Interval, other: Interval) -> Interval:
    """The difference of independent quantities."""
    return total([one, Interval(-other.value, -other.high, -other.low)])


def product(one: Interval, other: Interval) -> Interval:
    """The product of quantities that are not negative at their value."""
    ends = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return Interval(one.value * other.value, min(ends), max(ends))


def _cost(cost: Interval | None) -> Interval:
    """What a stage costs, as far as it was measured; never less than nothing."""
    return NOTHING if cost is None else largest(cost, NOTHING)


def _log(large: float, small: float) -> float:
    return math.log(large / small) if small > 0 and not math.isinf(large) else math.inf


def _known(interval: Interval) -> Interval:
    """The interval of a rung with one window only is closed by :data:`ONE_WINDOW`."""
    if not (math.isinf(interval.low) or math.isinf(interval.high)):
        return interval
    arm = ONE_WINDOW * abs(interval.value)
    return Interval(interval.value, interval.value - arm, interval.value + arm)

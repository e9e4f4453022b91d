"""Separate the training process's own time in a baseline step from its waiting for the workers.

Rungs measure the time that the training process needs for a step with batches ready: ``device`` (compute), ``host``
(transfer), ``worker`` (hand-off). The rest of the step that is not waiting is what the training process loses while
workers run. Two bounds hold for it, whatever the rungs say:

-   The account of a step (:class:`pipediag.session.Account`) shows it: CPU time that grows for the same work, waiting
    for a core, and blocking. If a thread pins batches, that blocking is the hand-off's: the thread holds the
    interpreter's lock.
-   Without it the loop is at best as fast as the loader alone: the rest would be waiting for the workers.

The other side, one worker's time for a batch, is divided by what was seen inside a worker (:func:`work_of`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...session import RUNGS, STAGE_OF_RUNG, Inside, Session
from ..thresholds import GATE, RESOLUTION
from .intervals import Interval, exactly, least
from .ladder import OWN_SIDE, LadderView

#: Stages that the workers run.
OF_THE_WORKERS = tuple(STAGE_OF_RUNG[rung] for rung in RUNGS if rung not in OWN_SIDE)
#: Worker time that a change saves, as a fraction of the removed code's time. It can be below 1: the remaining code may
#: become slower, since it finds other cache and memory contents. With cheaper transforms in the caching article,
#: loading took 1.7 times as long, which left 0.58 of the saving (benchmarks/results/caching_article-h200.json).
SAVED = Interval(1.0, 0.55, 1.1)
#: Share of a worker's time for a batch that waiting for a core does not explain beside its samples' time.
_MOST = 0.98
#: Share of a usual sample's CPU time below which one that is made again was kept by the dataset.
_KEPT = 0.25


@dataclass(frozen=True)
class Sides:
    """The two sides of the baseline step, in milliseconds."""

    step: Interval
    #: The step without input cost (:attr:`.LadderView.best`), at most ``ready``; if no cache was measured, the step
    #: without waiting.
    compute: float
    ready: float  # the step with batches ready for the training process, hand-off and sampler included
    waits: Interval  # waiting for the workers, beyond the hand-off and the sampler
    lost: Interval  # additional time that the training process needs per step while workers run: contention
    handed: float = 0.0  # additional waiting for batches that are already made, compared with the rung ``worker``
    #: Additional blocking of the training process by the thread that pins batches, compared with the rungs.
    locked: float = 0.0
    #: Part of ``ready`` in which the training process chooses the indices of a batch; 0 if it hardly does.
    sampler: float = 0.0


def sides(ladder: LadderView) -> Sides:
    step = ladder.ms("baseline")
    own = [rung for rung in reversed(OWN_SIDE) if ladder.has(rung)]
    share = ladder.waited("baseline")
    spent = ladder.evidence("baseline").get("sampler_ms", 0.0)  # while the loop waits for its sampler
    sampler = min(spent, share.value * step.value) if share is not None and spent > RESOLUTION * step.value else 0.0
    if not own:  # no rung excludes the workers' work
        fastest = ladder.ms(ladder.rungs[0]).value
        if share is not None:
            waits = share.times(step.value).shifted(-sampler).not_negative()
            ready = step.value - waits.value
        else:
            ready, waits = min(step.value, fastest), ladder.cost("baseline", ladder.rungs[0]).not_negative()
        return Sides(step, min(ready - sampler, fastest), ready, waits, exactly(0.0), sampler=sampler)
    slowest = max(own, key=lambda rung: ladder.beside(rung).value)
    measured = ladder.beside(slowest).value
    loader = ladder.session.loader
    if share is None or (loader is not None and not loader.num_workers):  # no workers, no contention
        beyond = ladder.cost("baseline", slowest).not_negative()
        part = beyond if share is None else share.times(step.value)
        waits = max(beyond, part, key=lambda cost: cost.value)
        waits = waits.shifted(-sampler).not_negative()
        ready = step.value - waits.value
        return Sides(step, min(ready - sampler, ladder.best.value), ready, waits, exactly(0.0), sampler=sampler)
    sends, made, late = ladder.waited(own[0]), ladder.making("baseline"), 0.0
    waits, unmeasured = share.times(step.value), 0.0
    if sends is not None:  # under this rung the sampler works as in training
        waits = waits.minus(sends.times(ladder.beside(own[0]).value)).not_negative()
    else:
        waits, unmeasured = waits.shifted(-sampler).not_negative(), sampler
    if made is not None and "worker" in own:
        # Workers begin a batch before the loop asks for it, so a wait beyond the time to make it is for its delivery.
        late = max(0.0, waits.value - made)
        waits = least(waits, exactly(made))
    # The training process cannot need more than the step took, even if a rung measured on a busier machine says so.
    ready = min(measured + unmeasured + late, step.value - waits.value)
    longer, locked = step.value - waits.value - ready, 0.0
    if (grown := ladder.grown(slowest)) is not None:
        locked = min(longer, grown.blocked) if pins(ladder.session) else 0.0
        longer = min(longer - locked, grown.cpu + grown.queued + (grown.blocked - locked))
    # The wait is the noisiest term; the part beyond the rungs is known as precisely as they are.
    arm = math.hypot(2 * RESOLUTION * step.value, measured - min(measured, ladder.beside(slowest).low), waits.arm)
    lost = Interval(longer, longer - arm, longer + arm)
    if ladder.has("supply"):
        lost = least(lost, ladder.cost("baseline", "supply").not_negative())
        waits = waits.shifted(longer - lost.value).blurred(longer - lost.value)
    compute = min(max(0.0, ready - sampler), ladder.best.value)
    return Sides(step, compute, ready + locked, waits, lost, late, locked, sampler)


def pins(session: Session) -> bool:
    """Return whether a thread of the training process copies each batch into page-locked memory."""
    loader = session.loader
    return loader is not None and loader.pin_memory and session.device_type != "cpu"


@dataclass(frozen=True)
class Work:
    """One worker's time for one batch: the baseline's figures, divided by the shares seen inside a worker."""

    run: float  # wall time without waiting for a core: the sum of ``collate``, ``load``, ``between`` and the ``links``
    cpu: float  # CPU time in it: more than ``run`` if a worker uses threads
    collate: float = 0.0
    load: float = 0.0
    between: float = 0.0
    links: tuple[float, ...] = ()

    @property
    def samples(self) -> float:
        """Milliseconds that make the samples: all but collating."""
        return self.run - self.collate


def work_of(ladder: LadderView) -> Work | None:
    """Return a worker's time for a batch, or None if unknown.

    The total is the worker's own time for a batch under the baseline, less its waiting for a core; without that figure,
    the time per sample times the batch size. The collate time comes from the workers, or else from the rung ``sample``,
    where samples are ready. The rest is divided by the shares that loading and each transform took of a probed sample.
    """
    inside, loader = ladder.session.inside, ladder.session.loader
    seen = ladder.evidence("baseline")
    if seen.get("worker_ms", 0.0) > 0:
        run = seen["worker_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
        cpu = seen["worker_ms"] * seen.get("worker_cpu", 1.0)
    elif inside is not None and inside.timed and loader is not None and loader.batch_size:
        run, cpu = inside.whole.wall_ms * loader.batch_size, inside.whole.cpu_ms * loader.batch_size
    else:
        return None
    if run <= 0:
        return None
    if "collate_ms" in seen:
        collate = seen["collate_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
    else:
        collate = collating_apart(ladder) or collating_left(ladder, run) or 0.0
    return divided(run, cpu, collate, inside)


def divided(run: float, cpu: float, collate: float, inside: Inside | None) -> Work:
    """Return ``run`` milliseconds divided: ``collate`` of them, the rest by the shares of a probed sample's time."""
    collate = min(collate, run)
    if inside is None or not inside.timed:
        return Work(run, cpu, collate, run - collate)
    each = (run - collate) / inside.whole.wall_ms
    links = tuple(each * link.cost.wall_ms for link in inside.links)
    between = each * inside.between.wall_ms
    return Work(run, cpu, collate, max(0.0, run - collate - between - sum(links)), between, links)


def collating_apart(ladder: LadderView) -> float | None:
    """Return a worker's milliseconds for a batch of ready samples under the rung ``sample``, or None if unknown.

    It replaces the collate time if the workers did not report that.
    """
    seen = ladder.evidence("sample") if ladder.has("sample") else {}
    if "worker_ms" not in seen:
        return None
    return max(0.0, seen["worker_ms"] * (1 - seen.get("worker_queued", 0.0)) - seen.get("copy_ms", 0.0))


def collating_left(ladder: LadderView, batch: float) -> float | None:
    """Return all of a worker's time for a batch if its samples take hardly any of it, or None if they do.

    It replaces the collate time of a worker that did not live to report it, if a collate function of the user's ran.
    """
    inside, loader = ladder.session.inside, ladder.session.loader
    if inside is None or not inside.timed or loader is None or not loader.batch_size:
        return None
    if not any(line.stage == "collate" for line in inside.lines):
        return None
    left = batch - loader.batch_size * inside.whole.wall_ms
    return left if left > _MOST * batch else None


def made_again(ladder: LadderView) -> tuple[float, float] | None:
    """Return milliseconds of a core for a usual sample, and for one that was made before, if that is far less.

    Then the dataset keeps what it has made. A sample of which the file is in the page cache by now takes no less CPU
    time than at first, so the samples' median is compared with the mean of those that the rung ``warm`` makes again.
    """
    session, loader = ladder.session, ladder.session.loader
    plain, warm = ladder.evidence("baseline"), ladder.evidence("warm")
    timed = "worker_ms" in plain and "worker_ms" in warm
    if session.tail is None or loader is None or not loader.batch_size or not timed:
        return None
    unqueued = max(0.01, 1 - plain.get("worker_queued", 0.0))  # as the time of a single sample is
    first = session.tail.p50_ms * min(1.0, plain.get("worker_cpu", 1.0) / unqueued)
    again = warm["worker_ms"] * warm.get("worker_cpu", 1.0) / loader.batch_size
    share = (first - again) * loader.batch_size / max(1, session.workers) / ladder.ms("baseline").value
    return (first, again) if again < _KEPT * first and share > GATE else None


def saving(ms: float, sure: float | None = None) -> Interval:
    """Return the saving if work of ``ms`` is removed, as uncertain as :data:`SAVED`; ``sure`` is the certain part."""
    return Interval(ms * SAVED.value, (ms if sure is None else sure) * SAVED.low, ms * SAVED.high)

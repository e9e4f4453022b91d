"""Separate the training process's own time in a baseline step from its waiting for the workers.

Rungs measure the time that the training process needs for a step with batches ready: ``device`` (compute), ``host``
(transfer), ``worker`` (hand-off). The rest of the step that is not waiting is what the training process loses while
workers run. Two bounds hold for it, whatever the rungs say:

-   The account of a step (:class:`pipediag.session.Account`) shows it: CPU time that grows for the same work, waiting
    for a core, and blocking. If a thread pins batches, that blocking is the hand-off's: the thread holds the
    interpreter's lock.
-   Without it the loop is at best as fast as the loader alone: the rest would be waiting for the workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...session import RUNGS, STAGE_OF_RUNG, Session
from ..thresholds import RESOLUTION
from .intervals import Interval, exactly, least
from .ladder import OWN_SIDE, LadderView

#: Stages that the workers run.
OF_THE_WORKERS = tuple(STAGE_OF_RUNG[rung] for rung in RUNGS if rung not in OWN_SIDE)


@dataclass(frozen=True)
class Sides:
    """The two sides of the baseline step, in milliseconds.

    Attributes:
        step: the whole step.
        compute: the step without input cost (:attr:`.LadderView.best`), at most ``ready``; if no cache was measured,
            the step without waiting.
        ready: the step with batches ready for the training process, hand-off and sampler included.
        waits: waiting for the workers, beyond the hand-off and the sampler.
        lost: additional time that the training process needs per step while workers run: contention.
        handed: additional waiting for batches that are already made, compared with the rung ``worker``.
        locked: additional blocking of the training process by the thread that pins batches, compared with the rungs.
        sampler: part of ``ready`` in which the training process chooses the indices of a batch; 0 if it hardly does.
    """

    step: Interval
    compute: float
    ready: float
    waits: Interval
    lost: Interval
    handed: float = 0.0
    locked: float = 0.0
    sampler: float = 0.0


def sides(ladder: LadderView) -> Sides:
    """Return the two sides of the baseline step."""
    step = ladder.ms("baseline")
    own = [rung for rung in reversed(OWN_SIDE) if ladder.has(rung)]
    share = ladder.waited("baseline")
    sampler = _sampler(ladder, share)
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
        waits = part if ladder.serial else max(beyond, part, key=lambda cost: cost.value)
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


def _sampler(ladder: LadderView, waited: Interval | None) -> float:
    """Return the milliseconds of a step in which the loop waits for its sampler; 0 if they hardly matter."""
    spent, step = ladder.evidence("baseline").get("sampler_ms", 0.0), ladder.ms("baseline").value
    return min(spent, waited.value * step) if waited is not None and spent > RESOLUTION * step else 0.0


def pins(session: Session) -> bool:
    """Return whether a thread of the training process copies each batch into page-locked memory."""
    loader = session.loader
    return loader is not None and loader.pin_memory and session.device_type != "cpu"

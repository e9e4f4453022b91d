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
        ready: the step with batches ready for the training process, hand-off included.
        waits: waiting for the workers, beyond the hand-off.
        lost: additional time that the training process needs per step while workers run: contention.
        handed: additional waiting for batches that are already made, compared with the rung ``worker``.
        locked: additional blocking of the training process by the thread that pins batches, compared with the rungs.
    """

    step: Interval
    compute: float
    ready: float
    waits: Interval
    lost: Interval
    handed: float = 0.0
    locked: float = 0.0


def sides(ladder: LadderView) -> Sides:
    """Return the two sides of the baseline step."""
    step = ladder.ms("baseline")
    own = [rung for rung in reversed(OWN_SIDE) if ladder.has(rung)]
    share = ladder.waited("baseline")
    if not own:  # no rung excludes the workers' work
        fastest = ladder.ms(ladder.rungs[0]).value
        if share is not None:
            ready, waits = step.value * (1 - share.value), share.times(step.value)
        else:
            ready, waits = min(step.value, fastest), ladder.cost("baseline", ladder.rungs[0]).not_negative()
        return Sides(step, min(ready, fastest), ready, waits, exactly(0.0))
    slowest = max(own, key=lambda rung: ladder.beside(rung).value)
    measured = ladder.beside(slowest).value
    loader = ladder.session.loader
    if share is None or (loader is not None and not loader.num_workers):  # no workers, no contention
        beyond = ladder.cost("baseline", slowest).not_negative()
        part = beyond if share is None else share.times(step.value)
        waits = part if ladder.serial else max(beyond, part, key=lambda cost: cost.value)
        ready = step.value - waits.value
        return Sides(step, min(ready, ladder.best.value), ready, waits, exactly(0.0))
    sends, made, late = ladder.waited(own[0]), ladder.making("baseline"), 0.0
    waits = share.times(step.value)
    if sends is not None:
        waits = waits.minus(sends.times(ladder.beside(own[0]).value)).not_negative()
    if made is not None and "worker" in own:
        # Workers begin a batch before the loop asks for it, so a wait beyond the time to make it is for its delivery.
        late = max(0.0, waits.value - made)
        waits = least(waits, exactly(made))
    # The training process cannot need more than the step took, even if a rung measured on a busier machine says so.
    ready = min(measured + late, step.value - waits.value)
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
    compute = min(ready, ladder.best.value)
    return Sides(step, compute, ready + locked, waits, lost, late, locked)


def pins(session: Session) -> bool:
    """Return whether a thread of the training process copies each batch into page-locked memory."""
    loader = session.loader
    return loader is not None and loader.pin_memory and session.device_type != "cpu"

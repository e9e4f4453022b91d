"""Start the loader's workers again, as each epoch of the script does, to learn what an epoch's start costs.

The first launch of a process also imports modules and reads what later ones find ready, and long epochs show no other
one. Here the data ends early: the loop takes the batches requested so far, the workers end, and new ones start. All
this happens as at the end of an epoch, except that the loop's own epoch goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..analysis.amortised import wants_start
from ..session import Session
from .deadline import OutOfTime
from .loop_side import LoopSide, Turn

#: Smallest and largest share of the budget for launches. It is the share of an epoch that a start seems to take.
_LEAST, _MOST = 0.1, 0.5


def launch_again(loop_side: LoopSide, session: Session, budget: float, send: Callable[[], None]) -> Turn[None]:
    """Start the workers until the cost is known or not worth more of the ``budget``; ``send`` sends what was found.

    The loop is fed as it is. The ranks of a job restart their workers together at the ends of epochs instead.
    """
    feed, clock, spent = loop_side.feed, loop_side.clock, 0.0
    startups = feed.findings.startups
    with suppress(OutOfTime):
        while startups and not loop_side.lockstep.in_job:
            send()
            allowed = budget * min(_MOST, max(_LEAST, share)) if (share := wants_start(session)) else 0.0
            if spent + startups[-1].seconds + startups[-1].shutdown > allowed or not feed.end_data():
                return
            began, seen = clock.now(), len(startups)
            with feed.rung_switch.undisturbed():
                while len(startups) == seen:
                    delivery = yield from loop_side.take("baseline")
                    if delivery is not None:
                        yield from loop_side.hand(delivery.batch)
            spent += clock.now() - began
    send()

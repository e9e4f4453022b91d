"""Decide what an audit measures next. It says what is wrong, not where, so it needs less than a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from ...session import Session, fed_apart, ordered
from ..numbers.intervals import Interval, exceeds
from ..numbers.ladder import LadderView
from ..verdict import measured_share
from .item import least_worth, margin, share_of_step

#: Minimum number of windows per rung.
_ENOUGH = 2


def next_round(session: Session, gate: float) -> list[str]:
    """Return the rungs that need another window each; empty if every item is decided or never will be.

    Every rung gets a few windows, controls included. Then the whole pipeline's cost is compared with ``gate``, a share
    of the step, and copying and the loader alone with :func:`.item.least_worth`. The transform chain is not cut.
    """
    ladder = LadderView(session)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    wanted = {name for name in session.rungs if not fed_apart(name) and ladder.windows(name) < _ENOUGH}
    if "baseline" in ladder.rungs and len(ladder.rungs) > 1:
        for pair, interval, bound in _compared(ladder, gate):
            if not pair & refused and exceeds(interval, bound) is None:
                wanted |= pair
    return ordered(wanted - refused)


def _compared(ladder: LadderView, gate: float) -> Iterator[tuple[set[str], Interval, float]]:
    """Yield pairs of rungs, the interval that they give, and the bound that it is compared with."""
    top, bound = ladder.rungs[0], least_worth(gate)
    starved = measured_share(ladder)
    if starved is not None:
        yield {"baseline", top}, starved, gate
    if {"device", "host"} <= {*ladder.rungs}:
        yield {"device", "host"}, share_of_step(ladder, "host", "device"), bound
    if ladder.has("supply") and ladder.has("worker"):
        yield {"supply", top}, margin(ladder).inverse(), 1 / (1 - bound)

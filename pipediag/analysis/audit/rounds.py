"""What an audit measures next: it tells what is wrong, not where, and has enough sooner than a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from ...session import Session, fed_apart, ordered
from ..intervals import Interval
from ..ladder import LadderView
from ..thresholds import GATE
from ..verdict import starved_share
from .item import UNMEASURABLE, against, margin, share_of_step

#: Windows that each rung gets in any case.
_ENOUGH = 2


def next_round(session: Session, gate: float) -> list[str]:
    """The rungs that deserve another window each; none when every item of the checklist can be told, or never will be.

    Every rung gets a few windows, those beside the ladder too. Then the cost of the whole pipeline is measured against
    ``gate``, a share of the step, that of copying against :data:`GATE`, and the loader alone against what the loop
    takes. No chain of transforms is cut.
    """
    ladder = LadderView(session)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    wanted = {name for name in session.rungs if not fed_apart(name) and ladder.windows(name) < _ENOUGH}
    if "baseline" in ladder.rungs and len(ladder.rungs) > 1:
        for pair, interval, bound in _compared(ladder, gate):
            if not pair & refused and against(interval, bound) == UNMEASURABLE:
                wanted |= pair
    return ordered(wanted - refused)


def _compared(ladder: LadderView, gate: float) -> Iterator[tuple[set[str], Interval, float]]:
    """Pairs of rungs, what is told of them, and the bound that it is held against."""
    top = ladder.rungs[0]
    starved = starved_share(ladder)
    if starved is not None:
        yield {"baseline", top}, starved, gate
    if {"device", "host"} <= {*ladder.rungs}:
        yield {"device", "host"}, share_of_step(ladder, "host", "device"), GATE
    if ladder.has("supply") and ladder.has("worker"):
        yield {"supply", top}, margin(ladder).inverse(), 1.0

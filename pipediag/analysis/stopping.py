"""When enough has been measured."""

from __future__ import annotations

from ..session import Session
from .ladder import ENOUGH_WINDOWS, LadderView
from .thresholds import GATE


def settled(session: Session) -> bool:
    """Whether more windows would not change what a reader does.

    A stage's cost is decided when its whole interval lies on one side of ``GATE`` times the baseline step, or is no
    wider than half of that: a cost of 4.5 to 6.5 % is known well enough. Shares of the baseline step are compared
    rather than ratios of neighbouring rungs, because 20 % of a rung ten times as fast as the baseline changes
    nothing for the training.
    """
    ladder = LadderView(session)
    rungs = ladder.rungs
    if "baseline" not in rungs or len(rungs) < 2:
        return False
    if any(ladder.windows(name) < ENOUGH_WINDOWS for name in rungs):
        return False
    gate = GATE * ladder.ms("baseline").value
    pairs = [*zip(rungs[1:], rungs, strict=False), ("baseline", rungs[0])]
    for slow, fast in pairs:
        cost = ladder.cost(slow, fast)
        if cost.low <= gate <= cost.high and cost.high - cost.low > gate / 2:
            return False
    return True

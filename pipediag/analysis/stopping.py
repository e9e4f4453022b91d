"""When enough has been measured."""

from __future__ import annotations

from ..session import Session
from .ladder import ENOUGH_WINDOWS, LadderView
from .thresholds import GATE


def settled(session: Session) -> bool:
    """Whether every stage's cost is decided against the gate, and so would not change the verdict.

    A cost is decided when its whole interval lies on one side of ``GATE`` times the baseline step. Shares of the
    baseline step are compared rather than ratios of neighbouring rungs, because 20 % of a rung ten times as fast as
    the baseline changes nothing for the training.
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
        if cost.low <= gate <= cost.high:
            return False
    return True

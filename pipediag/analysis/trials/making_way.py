"""Tell when the ladder leaves the rest of its time to the trials that follow it.

More windows would then only narrow the costs of smaller stages.
"""

from __future__ import annotations

from ...session import Session
from ..checks import missing
from ..numbers.ladder import LadderView
from ..thresholds import GATE
from ..verdict import judge
from ..waterfall import waterfall
from .settings import candidates


def for_settings(session: Session) -> bool:
    """Return whether the verdict is known, each rung has a window, and there are settings to try."""
    ladder = LadderView(session)
    if missing(ladder) or judge(ladder, waterfall(ladder)).bottleneck == "inconclusive":
        return False
    return bool(candidates(session).settings)


def for_remedies(session: Session) -> bool:
    """Return whether it is certain that the loop starves, and each rung has a window."""
    ladder = LadderView(session)
    if missing(ladder):
        return False
    verdict = judge(ladder, waterfall(ladder))
    return verdict.certain and verdict.starved is not None and verdict.starved.low > GATE

"""Tell when the ladder leaves the rest of its time to the trials that follow it.

More windows would then only narrow the costs of smaller stages.
"""

from __future__ import annotations

from ...session import Session
from ..checks import missing
from ..diagnosis import Verdict
from ..numbers.ladder import LadderView
from ..thresholds import GATE
from ..verdict import judge
from ..waterfall import waterfall
from .settings import candidates


def for_settings(session: Session) -> bool:
    """Return whether the verdict is known, each rung has a window, and there are settings to try."""
    verdict = _verdict(session)
    return verdict is not None and verdict.bottleneck != "inconclusive" and bool(candidates(session).settings)


def for_remedies(session: Session) -> bool:
    """Return whether it is certain that the loop starves, and each rung has a window."""
    verdict = _verdict(session)
    return verdict is not None and verdict.certain and verdict.starved is not None and verdict.starved.low > GATE


def _verdict(session: Session) -> Verdict | None:
    """Return the verdict; None while a rung lacks a window."""
    ladder = LadderView(session)
    return None if missing(ladder) else judge(ladder, waterfall(ladder))

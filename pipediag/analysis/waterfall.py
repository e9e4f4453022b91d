"""Where a baseline step's milliseconds go: compute, then what each stage adds, then what is left over."""

from __future__ import annotations

from ..session import Place, Session
from .diagnosis import Stage
from .intervals import Interval
from .ladder import LadderView


def waterfall(ladder: LadderView) -> list[Stage]:
    """Pieces of the baseline step in ladder order. Their ``ms`` sum to the baseline's, by way of ``residual``.

    Empty when the baseline was not measured. The residual exists because every piece is a median of its own; a
    residual that is large beside the pieces says that the rungs drifted while they were measured.
    """
    if not ladder.has("baseline"):
        return []
    rungs = ladder.rungs
    base = ladder.ms("baseline")
    first = ladder.ms(rungs[0])
    pieces = [Stage("compute", first, first.value / base.value, covers=ladder.covered(rungs[0]))]
    for slow, fast in zip(rungs[1:], rungs, strict=False):
        cost = ladder.cost(slow, fast)
        stage = ladder.stage(slow)
        pieces.append(Stage(stage, cost, cost.value / base.value, culprit(ladder.session, stage), ladder.covered(slow)))
    left = base.value - sum(piece.ms.value for piece in pieces)
    pieces.append(Stage("residual", Interval(left, left, left), left / base.value))
    return pieces


def culprit(session: Session, stage: str) -> Place | None:
    """The user's code behind a stage, where there is one."""
    loader = session.loader
    if loader is None:
        return None
    if stage == "transform":
        return loader.transform
    if stage in ("load", "storage"):
        return loader.dataset_code
    if stage == "collate":
        return loader.collate
    if stage in ("startup", "ipc", "transfer", "contention"):
        return Place("DataLoader", loader.where)
    return None

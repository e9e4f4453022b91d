"""Decide from the ladder whether handing batches over another way, without moving transforms, can pay."""

from __future__ import annotations

from ..session import Session
from .intervals import total
from .ladder import LadderView
from .sentences import number
from .thresholds import RESOLUTION
from .whatif import what_if


def why_no_handoff(session: Session) -> str:
    """Return why the hand-off alone certainly does not pay in the measured loop; empty if it may.

    At best it hides the hand-off and the copy. If the loop waits for workers, it may also make their collating faster.
    """
    leaves = session.batch.leaves if session.batch is not None else []
    if leaves and all(leaf.copied is False for leaf in leaves):
        return "the loop copies nothing of its batches to the device"
    model = what_if(LadderView(session))
    if model is None or model.transfer is None or model.handoff is None:
        return ""
    most = total([model.transfer.not_negative(), model.handoff.not_negative()]).high
    collating = model.work.collate / model.work.run if model.waits and model.work is not None else 0.0
    if most / model.base + collating > RESOLUTION:
        return ""
    return f"handing a batch over and copying it cost at most {number(most)} ms of a {number(model.base)} ms step"

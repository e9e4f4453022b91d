"""Decide from the ladder whether handing batches over another way, without moving transforms, can pay."""

from __future__ import annotations

from ..session import Session
from .estimate import LEAST
from .ladder import LadderView
from .sentences import number
from .whatif import what_if


def why_no_handoff(session: Session) -> str:
    """Return why the hand-off alone certainly does not pay in the measured loop; empty if it may."""
    leaves = session.batch.leaves if session.batch is not None else []
    if leaves and all(leaf.copied is False for leaf in leaves):
        return "the loop copies nothing of its batches to the device"
    model = what_if(LadderView(session))
    if model is None or model.transfer is None or model.handoff is None:
        return ""
    if model.faster(model.handed_over()).high > LEAST:
        return ""
    costs = f"{number(model.handoff.value)} ms and {number(model.transfer.value)} ms of a {number(model.base)} ms step"
    return f"handing a batch over and copying it cost only {costs}"

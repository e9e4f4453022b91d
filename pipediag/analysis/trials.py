"""Decide which remedies are tried, one after the other."""

from __future__ import annotations

from ..session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, Session
from .estimate import LEAST
from .ladder import LadderView
from .remedy import outcomes, remedy_of
from .sentences import number
from .whatif import Change, what_if
from .work import saving


def following(session: Session, rung: str, approximate: bool) -> str | None:
    """Return the rung of the remedy to try after that of ``rung``, or None; ``approximate`` allows decoding."""
    later = in_any_case(session, rung, approximate)
    if not later and rung != HANDED_OVER and not any(result.applied for result in outcomes(session)):
        later = [HANDED_OVER]
    return later[0] if later else None


def in_any_case(session: Session, rung: str, approximate: bool) -> list[str]:
    """Return the rungs of the remedies that are tried after that of ``rung``, whatever comes of it."""
    order, offload = [REMEDIED, DECODED, LOADED_ONCE], remedy_of(session, REMEDIED)
    later = order[order.index(rung) + 1 :] if rung in order else []
    left_out = {
        DECODED: not approximate or offload is None or bool(offload.why_not),
        LOADED_ONCE: bool(why_not_load_once(session)),
    }
    return [one for one in later if not left_out[one]]


def why_not_load_once(session: Session) -> str:
    """Return why making the deterministic part of a sample once does not pay; empty if it may.

    It saves a worker at least what loading takes.
    """
    model = what_if(LadderView(session))
    if model is None or model.work is None:
        return ""
    if model.faster(Change(work=saving(model.work.load))).high > LEAST:
        return ""
    return f"loading takes {number(model.work.load)} ms of a worker's time for a batch, which the loop hardly feels"

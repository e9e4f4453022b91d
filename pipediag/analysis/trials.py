"""Decide which remedies are tried, one after the other."""

from __future__ import annotations

from ..session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, Session
from .estimate import LEAST
from .ladder import LadderView
from .remedy import outcomes, remedy_of
from .thresholds import GATE
from .whatif import Change, what_if
from .work import saving

#: Milliseconds to read a kept sample, as measured for images of 224 x 224 to 500 x 375 (docs/cache.md).
READ_BACK_MS = 0.1


def following(session: Session, rung: str, approximate: bool) -> str | None:
    """Return the rung of the remedy to try after that of ``rung``, or None; ``approximate`` allows decoding."""
    later = in_any_case(session, rung, approximate)
    if later:
        return later[0]
    has_ladder = "device" in session.measured()  # without one, a gain of the hand-off could pass for the cache's
    if rung in (REMEDIED, DECODED) and has_ladder and loading_matters(session) is not False:
        return LOADED_ONCE
    return HANDED_OVER if rung != HANDED_OVER and not any(result.applied for result in outcomes(session)) else None


def in_any_case(session: Session, rung: str, approximate: bool) -> list[str]:
    """Return the rungs of the remedies after that of ``rung`` for which time is reserved, whatever comes of it."""
    order, offload = [REMEDIED, DECODED, LOADED_ONCE], remedy_of(session, REMEDIED)
    reserved = {
        DECODED: approximate and offload is not None and not offload.why_not,
        LOADED_ONCE: loading_matters(session) is True,
    }
    return [one for one in order[order.index(rung) + 1 :] if reserved[one]] if rung in order else []


def loading_matters(session: Session) -> bool | None:
    """Return whether the loop gains if samples are loaded only once, or None if that is open.

    It saves a worker at least what loading takes, but reading a kept sample takes time, too.
    """
    inside, model = session.inside, what_if(LadderView(session))
    least = READ_BACK_MS if inside is None else max(READ_BACK_MS, GATE * inside.whole.wall_ms)
    if inside is not None and inside.samples and inside.load.wall_ms < least:
        return False
    if model is None or model.work is None:
        return None
    gain = model.faster(Change(work=saving(model.work.load)))
    return None if gain.low <= LEAST < gain.high else gain.low > LEAST

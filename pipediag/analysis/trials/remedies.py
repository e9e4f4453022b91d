"""Decide which remedies are tried, one after the other, and which cannot pay."""

from __future__ import annotations

from statistics import median

from ...session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, Session
from ..forecast.whatif import Change, what_if
from ..numbers.estimate import LEAST
from ..numbers.intervals import exceeds, total
from ..numbers.ladder import LadderView
from ..numbers.work import saving
from ..sentences import number
from ..thresholds import GATE, RESOLUTION
from .remedy import can_be_judged, outcomes, remedy_of, speedup, sure

#: Milliseconds to read a kept sample, as measured for images of 224 x 224 to 500 x 375 (docs/cache.md).
READ_BACK_MS = 0.1
#: Remedies in the order in which they are tried. The one that can bring most is first, since time may run out.
ORDER = (DECODED, REMEDIED, LOADED_ONCE, HANDED_OVER)


def first(approximate: bool) -> str:
    """Return the rung of the remedy to try first; ``approximate`` allows decoding."""
    return DECODED if approximate else REMEDIED


def under_way(session: Session) -> str | None:
    """Return the rung of the remedy that is being tried, or None before the first."""
    return next((rung for rung in reversed(ORDER) if remedy_of(session, rung) is not None), None)


def next_trial(session: Session) -> list[str]:
    """Return the rungs of another round of the trial under way; empty once it is decided."""
    pair = ["baseline", under_way(session) or REMEDIED]
    if any(found.name in pair and not found.available for found in session.rungs.values()):
        return []
    return [] if sure(session, pair[1]) is not None else pair


def following(session: Session, rung: str) -> str | None:
    """Return the rung of the remedy to try after that of ``rung``, or None."""
    if rung == DECODED:
        return REMEDIED
    has_ladder = "device" in session.measured()  # without one, a gain of the hand-off could pass for the cache's
    if rung == REMEDIED and has_ladder and not at_ceiling(session) and loading_matters(session) is not False:
        return LOADED_ONCE
    return HANDED_OVER if rung != HANDED_OVER and not any(result.applied for result in outcomes(session)) else None


def reserved(session: Session, rung: str) -> list[str]:
    """Return the rungs of later remedies for which time is reserved while that of ``rung`` is tried."""
    if rung == DECODED:
        return [REMEDIED]
    return [LOADED_ONCE] if rung == REMEDIED and not at_ceiling(session) and loading_matters(session) is True else []


def leaves_rest(session: Session, rung: str) -> bool:
    """Return whether a trial that has had its share of the time leaves the rest to later ones.

    It does not before its first look, nor while the loop seems faster under it: a gain that a few more rounds would
    prove is worth more than the first rounds of another remedy.
    """
    gain = speedup(session, rung) if can_be_judged(session, rung) else None
    return gain is not None and gain.value <= LEAST


def at_ceiling(session: Session) -> bool:
    """Return whether the loop is within the gate of its ceiling under a remedy that pays: no other can gain much."""
    model = LadderView(session)
    if not model.has("device"):
        return False
    least = model.ms("device").value / (1 - GATE)
    kept = [result.rung for result in outcomes(session) if result.applied]
    return any(median(window.ms_per_step for window in session.windows_of(rung)) <= least for rung in kept)


def loading_matters(session: Session) -> bool | None:
    """Return whether the loop gains if samples are loaded only once, or None if that is open.

    That saves a worker at least the time for loading, but reading a kept sample takes time too.
    """
    inside, model = session.inside, what_if(LadderView(session))
    least = READ_BACK_MS if inside is None else max(READ_BACK_MS, GATE * inside.whole.wall_ms)
    if inside is not None and inside.samples and inside.load.wall_ms < least:
        return False
    if model is None or model.work is None:
        return None
    return exceeds(model.faster(Change(work=saving(model.work.load))), LEAST)


def why_no_handoff(session: Session) -> str:
    """Return why the hand-off alone certainly does not pay in the measured loop; empty if it may.

    At best it hides the hand-off and the copy. If the loop waits for workers, it may also make their collating faster.
    """
    leaves = session.batch.leaves if session.batch is not None else []
    if leaves and all(leaf.copied is False for leaf in leaves):
        return "the loop copies no part of its batches to the device"
    model = what_if(LadderView(session))
    if model is None or model.transfer is None or model.handoff is None:
        return ""
    most = total([model.transfer.not_negative(), model.handoff.not_negative()]).high
    collating = model.work.collate / model.work.run if model.waits and model.work is not None else 0.0
    if most / model.base + collating > RESOLUTION:
        return ""
    return f"handing a batch over and copying it cost at most {number(most)} ms of a {number(model.base)} ms step"

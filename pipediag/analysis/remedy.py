"""Decide whether the remedy pays: compare the loop under it with the unmodified loop, in rounds of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..session import REMEDIED, Session
from .estimate import FIRST_LOOKS, paired_ratio, sure_gain
from .intervals import Interval, plain

PAIR = ("baseline", REMEDIED)
#: Number of rounds before the first look at a trial, and the fewest that allow a judgement.
FIRST_LOOK = FEWEST = FIRST_LOOKS[0]


@dataclass(frozen=True)
class Outcome:
    """The result of ``--apply``.

    Attributes:
        applied: true if the loop is certainly faster under the remedy, by more than the instrument's resolution.
        speedup: measured speedup; None if no round has both rungs.
        reverted: why the remedy was taken back; empty if it was not.
        why_not: why it was not tried; empty if it was.
    """

    applied: bool
    speedup: Interval | None = None
    reverted: str = ""
    why_not: str = ""


def outcome(session: Session) -> Outcome | None:
    """Return the result of the remedy, or None if none was requested."""
    remedy = session.remedy
    if remedy is None:
        return None
    if remedy.why_not:
        return Outcome(False, why_not=remedy.why_not)
    measured = speedup(session)
    found = session.rungs.get(REMEDIED)
    if found is not None and not found.available:
        return Outcome(False, measured, reverted=found.why_not)
    if measured is None or _rounds(session) < FEWEST:
        return Outcome(False, measured, reverted="there was no time for enough windows; give a longer --apply-budget")
    gains = _sure(session, last=True)
    if gains:
        return Outcome(True, measured)
    if gains is None:
        why = "it is open whether the loop is faster under it; a longer --apply-budget may decide it"
    else:
        why = "the loop is slower under it" if measured.high < 1 else "the loop is not faster by what is worth a change"
    return Outcome(False, measured, reverted=why)


def next_trial(session: Session) -> list[str]:
    """Return the rungs of another round of the trial; empty once it is decided."""
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    if refused & {*PAIR}:
        return []
    return [] if _sure(session) is not None else [*PAIR]


def speedup(session: Session) -> Interval | None:
    """Return the loop's speedup under the remedy, paired round by round, or None without pairs."""
    unmodified, remedied = paired(session, *PAIR)
    return paired_ratio(unmodified, remedied) if unmodified else None


def _sure(session: Session, last: bool = False) -> bool | None:
    """Return whether the remedy pays, or None while that is open; ``last`` if there will be no more rounds."""
    return sure_gain(*paired(session, *PAIR), last=last)


def _rounds(session: Session) -> int:
    return len(paired(session, *PAIR)[0])


def paired(
    session: Session, before: str, after: str, rounds: Sequence[int] | None = None
) -> tuple[list[float], list[float]]:
    """Return the milliseconds per batch under two rungs in each round that has both, only of ``rounds`` if given."""
    one, other = ({w.round: w.ms_per_batch for w in session.windows_of(rung)} for rung in (before, after))
    both = [round_ for round_ in sorted(one.keys() & other.keys()) if rounds is None or round_ in rounds]
    return [one[round_] for round_ in both], [other[round_] for round_ in both]


def to_dict(session: Session) -> dict[str, Any] | None:
    """Return the published form; see :meth:`pipediag.analysis.Diagnosis.to_dict`."""
    came, remedy = outcome(session), session.to_dict()["remedy"]
    if came is None:
        return None
    return {
        "applied": came.applied,
        "why_not": came.why_not or None,
        "device": remedy["device"],
        "moved": remedy["moved"],
        "stayed": remedy["stayed"],
        "certificate": remedy["proof"],
        "measured_speedup": plain(came.speedup),
        "rounds": _rounds(session),
        "memory_bytes": remedy["memory_bytes"],
        "reverted": came.reverted or None,
        "how": {"diff": remedy["edit"]["diff"] or None, "why_no_diff": remedy["edit"]["why_not"] or None},
    }

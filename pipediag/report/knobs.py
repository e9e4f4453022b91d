"""Report the loop under other loader settings: its rate under each, and the recommended one."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.recommend.tried import IDS
from ..analysis.trials.halving import Arm, arms, best, rate
from ..analysis.trials.settings import current
from ..analysis.words import number, times
from .document import Listing, Section, Table


def section(diagnosis: Diagnosis) -> Section:
    table = Table(
        ("settings", "steps/s", "times the baseline", "first batch", ""), "lrlrl", _rows(diagnosis), ruled=False
    )
    return Section("other loader settings, measured on the loop", [table, Listing(_notes(diagnosis))], page=2)


def _rows(diagnosis: Diagnosis) -> list[list[str]]:
    """Return a row for the present loader, then one for each measured setting, most promising first."""
    session, chosen = diagnosis.session, best(diagnosis.session)
    measured = [(arm, arm.speedup) for arm in arms(session) if arm.speedup is not None]
    plain = rate(session, "baseline")
    if not measured or plain is None or session.loader is None:
        return []
    rows = [[f"{current(session.loader).written} (current)", number(plain.value), "", "", ""]]
    for arm, speedup in measured:
        steps, startup = rate(session, arm.rung), arm.settings.startup
        first = f"{number(startup)} s" if startup is not None else ""
        judged = "best" if chosen is not None and arm.rung == chosen.rung else arm.verdict
        rows.append([arm.settings.written, number(steps.value) if steps else "", times(speedup), first, judged])
    return rows


def _notes(diagnosis: Diagnosis) -> list[str]:
    """Return why settings were not tried or not finished.

    The reason for trying none is included only if an unmeasured recommendation depends on a trial.
    """
    session = diagnosis.session
    notes = [f"{arm.settings.written}: {_why(arm)}" for arm in arms(session) if arm.why_not or arm.speedup is None]
    predicted = any(one.id in IDS and one.measured is None for one in diagnosis.recommendations)
    if session.knobs is not None and session.knobs.why_not and predicted:
        notes.append(f"none: {session.knobs.why_not}; their gains are predicted")
    return notes


def _why(arm: Arm) -> str:
    return f"not tried: {arm.why_not}" if arm.speedup is None and arm.why_not else arm.why_not or "there was no time"

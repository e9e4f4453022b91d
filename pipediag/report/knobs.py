"""Render the trials of loader settings: the loop's rate under each, and the recommended one."""

from __future__ import annotations

import textwrap

from tabulate import tabulate

from ..analysis import Diagnosis
from ..analysis.halving import Arm, arms, best, rate
from ..analysis.knobs import current
from ..analysis.recommend.tried import IDS
from ..analysis.sentences import number, times
from .text import bullet

_TITLE = "other loader settings, tried on the loop"
_HEADERS = ("settings", "steps/s", "times the baseline", "first batch", "")


def terminal(diagnosis: Diagnosis) -> list[str]:
    """Return lines for the terminal; empty if nothing was to be tried."""
    rows, notes = _rows(diagnosis), _notes(diagnosis)
    lines = ["", f"{_TITLE}:"] if rows or notes else []
    if rows:
        align = ("left", "right", "left", "right", "left")
        text = tabulate(rows, headers=_HEADERS, tablefmt="plain", disable_numparse=True, colalign=align)
        lines.append(textwrap.indent(text, "  "))
    return lines + [bullet(note) for note in notes]


def markdown(diagnosis: Diagnosis) -> list[str]:
    """Return the same as Markdown."""
    rows, notes = _rows(diagnosis), _notes(diagnosis)
    lines = ["", f"## {_TITLE.capitalize()}"] if rows or notes else []
    if rows:
        lines += ["", f"| {' | '.join(_HEADERS)} |", "|---|--:|---|--:|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return lines + (["", *(f"- {note}" for note in notes)] if notes else [])


def _rows(diagnosis: Diagnosis) -> list[list[str]]:
    """Return a row for the present loader, then one for each measured setting, most promising first."""
    session, chosen = diagnosis.session, best(diagnosis.session)
    measured = [arm for arm in arms(session) if arm.speedup is not None]
    plain = rate(session, "baseline")
    if not measured or plain is None or session.loader is None:
        return []
    as_it_is = current(session.loader).written
    rows = [[f"{as_it_is} (as it is)", number(plain.value), "", "", ""]]
    for arm in measured:
        steps, startup = rate(session, arm.rung), arm.settings.startup
        rows.append(
            [
                arm.settings.written,
                number(steps.value) if steps is not None else "",
                times(arm.speedup) if arm.speedup is not None else "",
                f"{number(startup)} s" if startup is not None else "",
                "best" if chosen is not None and arm.rung == chosen.rung else arm.verdict,
            ]
        )
    return rows


def _notes(diagnosis: Diagnosis) -> list[str]:
    """Return why settings were not tried or not finished.

    The reason for trying none is included only if an unmeasured recommendation depends on a trial.
    """
    session = diagnosis.session
    notes = [f"{arm.settings.written}: {_why(arm)}" for arm in arms(session) if arm.why_not or arm.speedup is None]
    predicted = any(one.id in IDS and one.measured is None for one in diagnosis.recommendations)
    if session.knobs is not None and session.knobs.why_not and predicted:
        notes.append(f"none: {session.knobs.why_not}; what they would gain is predicted")
    return notes


def _why(arm: Arm) -> str:
    return f"not tried: {arm.why_not}" if arm.speedup is None and arm.why_not else arm.why_not or "there was no time"

"""Render the recommendations: the first few with instructions, the rest with one line each."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.diagnosis import Recommendation
from ..analysis.sentences import number, times
from .text import wrapped

#: Number of recommendations with instructions.
_IN_FULL = 3
_TITLE = "what would help"


def terminal(diagnosis: Diagnosis) -> list[str]:
    """Return lines of plain text; empty if nothing was measured."""
    if not diagnosis.recommendations and not diagnosis.nothing_to_gain:
        return []
    lines = ["", f"{_TITLE}:"]
    if diagnosis.nothing_to_gain:
        lines.append(wrapped(diagnosis.nothing_to_gain, "  - "))
    for count, one in enumerate(diagnosis.recommendations, 1):
        lines.append(wrapped(f"{gain_text(one)}  {one.title}", f"  {count}. "))
        if count <= _IN_FULL:
            lines += [
                wrapped(f"{name}: {text}", " " * 5) for name, text in (("why", one.evidence[0]), ("how", one.how))
            ]
    return lines


def markdown(diagnosis: Diagnosis) -> list[str]:
    """Return the same as Markdown, with all details of each recommendation."""
    if not diagnosis.recommendations and not diagnosis.nothing_to_gain:
        return []
    lines = ["", f"## {_TITLE.capitalize()}"]
    if diagnosis.nothing_to_gain:
        lines += ["", diagnosis.nothing_to_gain]
    for count, one in enumerate(diagnosis.recommendations, 1):
        lines += ["", f"{count}. **{one.title}** ({one.stage}): {gain_text(one)}"]
        lines += [f"   - {text}" for text in one.evidence]
        lines += [f"   - how: {one.how}", f"   - risk: {one.risk}"]
    return lines


def gain_text(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one."""
    if one.measured is not None:
        return f"{times(one.measured)} measured" + (
            f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        )
    return times(one.predicted) if one.predicted is not None else "not predicted"

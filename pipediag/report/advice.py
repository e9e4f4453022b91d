"""Render the recommendations: the first few with instructions, the rest with one line each."""

from __future__ import annotations

from collections.abc import Iterable

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
            how, *code = one.how.splitlines()
            lines += [wrapped(f"{name}: {text}", " " * 5) for name, text in (("why", one.evidence[0]), ("how", how))]
            lines += _indented(code, 7)
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
        how, *code = one.how.splitlines()
        lines += [f"   - how: {how}", *_indented(["```python", *code, "```"] if code else [], 5)]
        lines.append(f"   - risk: {one.risk}")
    return lines


def _indented(code: Iterable[str], columns: int) -> list[str]:
    """Lines to be pasted stay as they are."""
    return [" " * columns + line if line else "" for line in code]


def gain_text(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one."""
    if one.measured is not None:
        return f"{times(one.measured)} measured" + (
            f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        )
    return times(one.predicted) if one.predicted is not None else "not predicted"

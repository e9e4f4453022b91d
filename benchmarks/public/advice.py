"""Apply the first piece of advice natively, by the catalogue's edit, and measure what it gains, in turns with plain."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from . import porting, truth
from .kinds import COMMON, Edit, Script

TURNS = 3


def chosen(script: Script, advice: list[dict[str, Any]]) -> tuple[dict[str, Any], Edit] | None:
    """Return the first piece of advice for which the catalogue keeps an edit, and that edit."""
    for one in advice:
        for edit in (*script.edits, *COMMON):
            fitted = edit.fitted(f"{one['id']}: {one['title']}")
            if fitted is not None:
                return one, fitted
    return None


def measure(
    script: Script, advice: list[dict[str, Any]], sources: Path, data: Path, workers: int, seconds: float, limit: float
) -> dict[str, Any]:
    """Return the gain of the edited script over the plain one, beside the prediction; says why if there is none."""
    found = chosen(script, advice)
    if found is None:
        named = f"{advice[0]['id']}: {advice[0]['title']}" if advice else "no advice"
        return {"why_not": f"no edit is kept for this: {named}"}
    one, edit = found
    forms = {"plain": porting.place(script, data, workers), "edited": porting.place(script, data, workers, True)}
    porting.copy(script, sources, forms["plain"].repository)
    porting.copy(script, sources, forms["edited"].repository, edit.patches)
    rates: dict[str, list[float]] = {"plain": [], "edited": []}
    for _ in range(TURNS):
        for name, at in forms.items():
            ran = truth.run(script, at, ["plain"], seconds, limit, edit if name == "edited" else None)
            entry = ran["phases"].get("plain")
            if not entry:
                return {"advice": one, "why_not": f"{name}: {ran.get('stopped')}", "output": ran.get("output")}
            rates[name].append(entry["whole_rate"] if edit.whole else entry["rate"])
    gains = [after / before for before, after in zip(rates["plain"], rates["edited"], strict=True)]
    return {
        "advice": one,
        "edit": edit.said,
        "rates": rates,
        "gain": round(statistics.median(gains), 3),
        "gains": [round(gain, 3) for gain in gains],
    }

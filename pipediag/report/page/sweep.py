"""Compose the page of a sweep."""

from __future__ import annotations

from ...analysis.sentences import number
from ...analysis.sweep import Run, Sweep
from .. import sweep
from ..document import Listing, Paragraph, Table
from . import bars
from .parts import Chart, Page, PageBlock, Part, with_content


def page(subject: Sweep) -> Page:
    columns = sweep.headers(subject)
    table = Table(columns, "r" * (len(columns) - 1) + "l", sweep.table(subject))
    told: list[PageBlock] = [Paragraph(text)] if (text := sweep.sentence(subject)) else []
    notes: list[PageBlock] = [Listing(found)] if (found := sweep.notes(subject)) else []
    rates: list[PageBlock] = [chart] if (chart := _rates(subject)) else []
    lead = "As it is, and under the remedy where one was tried; the line is the rate with cached batches."
    parts = [
        Part("rates", "Steps per second by setting", [*rates, *told], lead if rates else ""),
        Part("runs", "All runs", [table] if table.rows else []),
        Part("notes", "Notes", notes),
    ]
    return Page(subject.script, with_content(parts))


def _rates(subject: Sweep) -> Chart | None:
    """Return a row for each run with a rate."""
    found = [run for run in subject.runs if run.baseline is not None]
    known = [rate.value for run in found for rate in (run.baseline, run.ceiling, run.remedied) if rate is not None]
    if not known:
        return None
    return Chart(
        "Steps per second by setting",
        ("setting", f"0 to {number(max(known))} steps/s", "now", "remedy", "possible"),
        "lgrrr",
        [_row(run, max(known)) for run in found],
    )


def _row(run: Run, high: float) -> list[str]:
    rates = {"now": run.baseline, "under the remedy": run.remedied, "with cached batches": run.ceiling}
    told = {name: number(rate.value) if rate is not None else "" for name, rate in rates.items()}
    label = ", ".join(f"{text} steps/s {name}" for name, text in told.items() if text)
    now, remedied, ceiling = (rate.value / high if rate is not None else None for rate in rates.values())
    shares = [(share, colour) for share, colour in ((now, "accent"), (remedied, "good")) if share is not None]
    return [run.written, bars.bars(label, shares, ceiling), *told.values()]

"""Write one HTML file about a subject: it needs no network, and no script to be read."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from ...analysis import Diagnosis
from ...analysis.audit import Audit
from ...analysis.compare import Comparison
from ...analysis.summary import summarise
from ...analysis.sweep import Sweep
from . import audit, comparison, diagnosis, sweep
from .embedded import embedded
from .parts import Page

#: Most bytes of a page.
_LIMIT = 500_000
#: Pixels of the answer in a notebook: those around the rows, and of one row.
_FRAME, _ROW = 420, 80


def write(subject: Diagnosis | Comparison | Sweep | Audit) -> str:
    """Return the page; its data is thinned out so that it stays below 500 KB."""
    from .frame import render  # imports jinja2

    summary, page = summarise(subject), _page(subject)
    bare = render(summary, page)
    data, note = embedded(subject, _LIMIT - len(bare.encode("utf-8", "backslashreplace")) - 1000)
    return render(summary, page, data, note)


def first_part(diagnosis: Diagnosis) -> str:
    """Return the answer alone, as an element for a notebook: a frame, so that no style leaks into the notebook."""
    from .frame import render  # imports jinja2

    summary = replace(summarise(diagnosis), notes=0)  # they would be further down
    page = render(summary, Page(_page(diagnosis).title, []))
    rows = max(len(summary.causes), 1.6 * len(summary.actions)) + len(summary.careful)
    height = f"width: 100%; height: {_FRAME + _ROW * rows:.0f}px; border: 0"
    return f'<iframe title="pipediag" srcdoc="{escape(page)}" style="{height}"></iframe>'


def _page(subject: Diagnosis | Comparison | Sweep | Audit) -> Page:
    if isinstance(subject, Diagnosis):
        return diagnosis.page(subject)
    if isinstance(subject, Comparison):
        return comparison.page(subject)
    return sweep.page(subject) if isinstance(subject, Sweep) else audit.page(subject)

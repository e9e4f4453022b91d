"""Write one HTML file about a subject. It needs no network, and no script to be read."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from ...analysis import Diagnosis
from ...analysis.summary import summarise
from .. import Subject
from .embedded import embedded
from .frame import render
from .parts import Page
from .subjects import page_of

#: Maximum bytes of a page.
_LIMIT = 500_000
#: Pixels of the answer in a notebook: those around the rows, and of one row.
_FRAME, _ROW = 420, 80


def write(subject: Subject) -> str:
    """Return the page; its data is thinned out so that it stays below 500 KB."""
    summary, page = summarise(subject), page_of(subject)
    bare = render(summary, page)
    data, note = embedded(subject, _LIMIT - len(bare.encode("utf-8", "backslashreplace")) - 1000)
    return render(summary, page, data, note)


def first_part(diagnosis: Diagnosis) -> str:
    """Return the answer alone, as an element for a notebook: a frame, so that no style leaks into the notebook."""
    summary = replace(summarise(diagnosis), notes=0)  # they would be further down
    page = render(summary, Page(diagnosis.session.script.line, []))
    rows = max(len(summary.causes), 1.6 * len(summary.actions)) + len(summary.careful)
    height = f"width: 100%; height: {_FRAME + _ROW * rows:.0f}px; border: 0"
    return f'<iframe title="pipediag" srcdoc="{escape(page)}" style="{height}"></iframe>'

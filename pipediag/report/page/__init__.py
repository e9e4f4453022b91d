"""Write one HTML file about a subject: it needs no network, and no script to be read."""

from __future__ import annotations

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


def write(subject: Diagnosis | Comparison | Sweep | Audit) -> str:
    """Return the page; its data is thinned out so that it stays below 500 KB."""
    from .frame import render  # imports jinja2

    summary, page = summarise(subject), _page(subject)
    bare = render(summary, page)
    data, note = embedded(subject, _LIMIT - len(bare.encode("utf-8", "backslashreplace")) - 1000)
    return render(summary, page, data, note)


def _page(subject: Diagnosis | Comparison | Sweep | Audit) -> Page:
    if isinstance(subject, Diagnosis):
        return diagnosis.page(subject)
    if isinstance(subject, Comparison):
        return comparison.page(subject)
    return sweep.page(subject) if isinstance(subject, Sweep) else audit.page(subject)

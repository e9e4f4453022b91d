"""Define the report formats: one entry each, with a function for every kind of subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..analysis import Diagnosis
from ..analysis.audit import Audit
from ..analysis.compare import Comparison
from ..analysis.sweep import Sweep
from . import audit, comparison, markdown, sweep, terminal, text

Subject = Diagnosis | Comparison | Audit | Sweep


@dataclass(frozen=True)
class Format:
    """A report format.

    Attributes:
        ending: the file name ending that chooses the format.
        diagnosis, comparison, audit, sweep: functions that return the text of each subject.
    """

    ending: str
    diagnosis: Callable[[Diagnosis], str]
    comparison: Callable[[Comparison], str]
    audit: Callable[[Audit], str]
    sweep: Callable[[Sweep], str]

    def render(self, subject: Subject) -> str:
        """Return the report of ``subject`` in this format."""
        if isinstance(subject, Diagnosis):
            return self.diagnosis(subject)
        if isinstance(subject, Comparison):
            return self.comparison(subject)
        if isinstance(subject, Audit):
            return self.audit(subject)
        return self.sweep(subject)


FORMATS = (
    Format(".json", text.render_json, text.render_json, text.render_json, text.render_json),
    Format(".md", markdown.render_markdown, comparison.render_markdown, audit.render_markdown, sweep.render_markdown),
    Format(".txt", terminal.render_terminal, comparison.render_text, audit.render_text, sweep.render_text),
)
#: Render function for each ending.
RENDERERS = {one.ending: one.render for one in FORMATS}

"""Compose the page of an audit."""

from __future__ import annotations

from ...analysis.audit import Audit
from .. import audit
from ..document import Checklist, Section, filled
from . import raw, the_step
from .diagnosis import of_section
from .parts import Page, Part, with_content


def page(subject: Audit) -> Page:
    diagnosis = subject.diagnosis
    blocks = filled(audit.blocks(subject))
    sections = [of_section(block.title.replace(" ", "-"), block) for block in blocks if isinstance(block, Section)]
    parts = [
        Part("checklist", "Checklist", [block for block in blocks if isinstance(block, Checklist)]),
        *sections,
        the_step.part(diagnosis),
        the_step.ladder(diagnosis),
        raw.environment(diagnosis.session),
    ]
    return Page(diagnosis.session.script.line, with_content(parts))

"""Compose the page of a diagnosis."""

from __future__ import annotations

from ...analysis import Diagnosis
from .. import advice, evidence, model, ranks
from ..diagnosis import warnings
from ..document import Section, filled
from . import inside_worker, raw, remedies, sample_times, the_step
from .over_time import run_over_time
from .parts import Lanes, Page, Part, with_content


def page(diagnosis: Diagnosis) -> Page:
    *_, not_measured, other = evidence.sections(diagnosis)
    parts = [
        the_step.part(diagnosis),
        the_step.ladder(diagnosis),
        of_section("ranks", ranks.section(diagnosis)),
        inside_worker.part(diagnosis),
        _run(diagnosis),
        sample_times.part(diagnosis),
        remedies.part(diagnosis),
        remedies.settings(diagnosis),
        of_section("advice", advice.section(diagnosis)),
        of_section("warnings", warnings(diagnosis.warnings)),
        of_section("model", model.section(diagnosis)),
        of_section("evidence", other),
        of_section("not-measured", not_measured),
        raw.numbers(diagnosis),
        raw.environment(diagnosis.session),
    ]
    return Page(diagnosis.session.script.line, with_content(parts))


def of_section(name: str, section: Section) -> Part:
    """Return a part with what a document's section says."""
    return Part(name, section.title[:1].upper() + section.title[1:], filled(section.blocks))


def _run(diagnosis: Diagnosis) -> Part | None:
    run = run_over_time(diagnosis.session)
    if run is None:
        return None
    return Part("run", "The run over time", [Lanes(run.rows)], " ".join(run.notes))

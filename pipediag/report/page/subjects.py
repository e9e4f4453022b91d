"""Compose the page of each kind of subject."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from ...analysis import Diagnosis
from ...analysis.audit import Audit
from ...analysis.compare import Comparison, RungChange, StageChange
from ...analysis.summary import shorter_places
from ...analysis.sweep import Sweep
from ...analysis.words import number
from ...session import Pictured, Session
from .. import Subject, evidence, remedy, several_runs
from ..diagnosis import audit_blocks, ranks_section, value, warnings
from ..document import Checklist, Code, Listing, Paragraph, Section, Table, filled
from . import raw, remedies, steps, svg, worker
from .over_time import both_over_time, run_over_time
from .parts import Chart, Page, PageBlock, Part, with_content, with_drawings


def page_of(subject: Subject) -> Page:
    if isinstance(subject, Diagnosis):
        return _diagnosis(subject)
    if isinstance(subject, Comparison):
        return _comparison(subject)
    return _sweep(subject) if isinstance(subject, Sweep) else _audit(subject)


def _diagnosis(diagnosis: Diagnosis) -> Page:
    *_, not_measured, other = evidence.sections(diagnosis)
    parts = [
        steps.part(diagnosis),
        steps.account(diagnosis),
        steps.ladder(diagnosis),
        _of_section(ranks_section(diagnosis)),
        worker.part(diagnosis),
        run_over_time(diagnosis.session),
        worker.sample_times(diagnosis),
        remedies.part(diagnosis),
        remedies.settings(diagnosis),
        _of_section(remedy.advice_section(diagnosis), "advice"),
        _of_section(warnings(diagnosis.warnings, diagnosis.session)),
        _of_section(evidence.model_section(diagnosis), "model"),
        _of_section(other, "evidence"),
        _of_section(not_measured),
    ]
    shown = with_content(
        [*_shorter(parts, diagnosis.session), raw.numbers(diagnosis), raw.environment(diagnosis.session)]
    )
    return Page(diagnosis.session.script.line, shown, closed=True)


def _shorter(value: Any, session: Session) -> Any:
    """Return parts or what is in them with short places of code; what is to be copied stays as it is."""
    if isinstance(value, str):
        return value if isinstance(value, svg.Drawn) else shorter_places(session, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_shorter(one, session) for one in value)
    if not is_dataclass(value) or isinstance(value, (type, Code, Pictured)):
        return value
    return replace(
        value, **{one.name: _shorter(getattr(value, one.name), session) for one in fields(value) if one.name != "code"}
    )


def _of_section(section: Section, name: str = "") -> Part:
    """Return a part with what a document's section says; by default its title is its name in addresses."""
    title = section.title[:1].upper() + section.title[1:]
    return Part(name or section.title.replace(" ", "-"), title, filled(section.blocks))


def _audit(subject: Audit) -> Page:
    diagnosis = subject.diagnosis
    blocks = filled(audit_blocks(subject))
    parts = [
        Part("checklist", "Checklist", [block for block in blocks if isinstance(block, Checklist)]),
        *(_of_section(block) for block in blocks if isinstance(block, Section)),
        steps.part(diagnosis),
        steps.ladder(diagnosis),
        raw.environment(diagnosis.session),
    ]
    return Page(diagnosis.session.script.line, with_content(parts))


def _comparison(subject: Comparison) -> Page:
    blocks = filled(several_runs.comparison_blocks(subject))
    changes: dict[str, tuple[str, list[RungChange] | list[StageChange]]] = {
        several_runs.RATES: ("Steps per second by rung", subject.rungs),
        several_runs.OF_THE_WORKERS: ("A worker's own milliseconds for a sample", subject.of_the_workers),
        several_runs.OF_THE_LOOP: ("The training process's own milliseconds", subject.of_the_loop),
    }
    parts = [
        Part("verdicts", "The two verdicts", [block for block in blocks if isinstance(block, Listing)]),
        both_over_time(subject.before.session, subject.after.session),
    ]
    for section in blocks:
        if isinstance(section, Section):
            part = _of_section(section)
            if section.title in changes:
                caption, found = changes[section.title]
                high = (
                    max((side.value for one in found for side in (one.before, one.after) if side), default=0.0) or 1.0
                )
                drawings = []
                for one in found:
                    sides = [(one.before, "before", "neutral"), (one.after, "after", "accent")]
                    label = ", ".join(f"{value(side) or 'not measured'} {when}" for side, when, _ in sides)
                    shares = [(side.value / high if side else 0.0, colour) for side, _, colour in sides]
                    drawings.append(svg.bars(label, shares))
                drawn = [
                    with_drawings(block, caption, "before and after", drawings) if isinstance(block, Table) else block
                    for block in section.blocks
                ]
                part = Part(part.name, caption, drawn)
            parts.append(_shorter(part, subject.after.session))
    return Page("before and after", with_content(parts))


def _sweep(subject: Sweep) -> Page:
    told: list[PageBlock] = [Paragraph(text)] if (text := several_runs.sentence(subject)) else []
    rates: list[PageBlock] = [chart] if (chart := _rates(subject)) else []
    lead = "As it is, and under the remedy if one was tried; the line is the rate with cached batches."
    parts = [
        Part("rates", "Steps per second by setting", [*rates, *told], lead if rates else ""),
        Part("runs", "All runs", filled([several_runs.runs_table(subject)])),
        Part("notes", "Notes", filled([Listing(several_runs.notes(subject))])),
    ]
    return Page(subject.script, with_content(parts))


def _rates(subject: Sweep) -> Chart | None:
    """Return a row for each run with a rate."""
    found = [run for run in subject.runs if run.baseline is not None]
    high = max((rate.value for run in found for rate in (run.baseline, run.ceiling, run.remedied) if rate), default=0.0)
    if not found or not high:
        return None
    rows = []
    for run in found:
        rates = {"now": run.baseline, "under the remedy": run.remedied, "with cached batches": run.ceiling}
        told = {name: number(rate.value) if rate is not None else "" for name, rate in rates.items()}
        label = ", ".join(f"{text} steps/s {name}" for name, text in told.items() if text)
        now, remedied, ceiling = (rate.value / high if rate is not None else None for rate in rates.values())
        shares = [(share, colour) for share, colour in ((now, "accent"), (remedied, "good")) if share is not None]
        rows.append([run.written, svg.bars(label, shares, ceiling), *told.values()])
    headers = ("setting", f"0 to {number(high)} steps/s", "now", "remedy", "possible")
    return Chart("Steps per second by setting", headers, "lgrrr", rows)

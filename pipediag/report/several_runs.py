"""Turn a comparison of two runs, or a sweep of several, into blocks."""

from __future__ import annotations

from ..analysis.compare import Comparison, RungChange, StageChange, waits
from ..analysis.numbers.intervals import Interval
from ..analysis.summary import summarise
from ..analysis.sweep import Run, Sweep
from ..analysis.trials.remedy import outcomes
from ..analysis.words import few_of, number, percent, shown, times
from .diagnosis import between, title, value, warnings
from .document import Block, Listing, Paragraph, Section, Table

#: Titles of the sections with what changed.
RATES, OF_THE_WORKERS = "steps a second", "a worker's own ms for a sample"
OF_THE_LOOP = "the training process's own ms of a step"
_HEADERS = ("", "before", "after", "change", "interval", "")


def comparison_blocks(comparison: Comparison) -> list[Block]:
    sides = {"before": comparison.before, "after": comparison.after}
    settings = [
        f"{name}: {' -> '.join('none' if value in (None, '') else str(value) for value in values)}"
        for name, *values in comparison.settings
    ]
    was, now = (waits(side.ladder) for side in sides.values())
    waiting = ""
    if was is not None and now is not None:  # follows from the figures of both sides
        waiting = f"The loop waits for batches for {number(was.value)} -> {number(now.value)} ms of a step."
    return [
        title(summarise(comparison)),
        Paragraph(f"bottleneck: {' -> '.join(shown(side.verdict.bottleneck) for side in sides.values())}", "line"),
        Listing([f"{name}: {side.verdict.sentence}" for name, side in sides.items()], details=True),
        Section(RATES, [Table(_HEADERS, "lrrrll", [*map(_rung, comparison.rungs)])]),
        Section(OF_THE_WORKERS, [_own(comparison.of_the_workers)]),
        Section(OF_THE_LOOP, [_own(comparison.of_the_loop), Paragraph(waiting)]),
        Section("set otherwise", [Listing(settings)]),
        warnings(comparison.warnings, comparison.after.session),
    ]


def _rung(one: RungChange) -> list[str]:
    ratio = f"{number(one.speedup.value)}x" if one.speedup else ""
    verdict = _significant(one.speedup, one.significant)
    return [one.rung, value(one.before), value(one.after), ratio, between(one.speedup), verdict]


def _own(changes: list[StageChange]) -> Table:
    return Table(_HEADERS, "lrrrll", [*map(_stage, changes)])


def _stage(one: StageChange) -> list[str]:
    change = f"{'+' if one.change.value > 0 else ''}{number(one.change.value)}" if one.change else ""
    name = f"{one.name} ({one.where})" if one.name and one.where else one.name or shown(one.stage)
    verdict = _significant(one.change, one.significant)
    return [name, value(one.before), value(one.after), change, between(one.change), verdict]


def _significant(interval: Interval | None, significant: bool) -> str:
    if interval is None:
        return "not measured on both sides"
    return "significant" if significant else "not significant"


def sweep_blocks(sweep: Sweep) -> list[Block]:
    return [
        title(summarise(sweep), sweep.script),
        runs_table(sweep),
        Paragraph(sentence(sweep), "line"),
        Listing(notes(sweep)),
    ]


def runs_table(sweep: Sweep) -> Table:
    """Return the varied arguments and the measurements of each run; the remedy's only if one was requested."""
    names = [name for name, _ in sweep.runs[0].setting] if sweep.runs else []
    remedy = any(run.diagnosis is not None and outcomes(run.diagnosis.session) for run in sweep.runs)
    kinds = ["possible", "now", *["remedied"] * remedy]
    rates = [f"{kind} {rate}" for kind in kinds for rate in ("steps/s", "samples/s")]
    columns = [*names, *rates, *["gain"] * remedy, "data costs", "bottleneck"]
    rows = [_run(run, remedy) for run in sweep.runs]
    return Table(columns, "r" * (len(columns) - 1) + "l", rows, narrow=True)


def _run(run: Run, remedy: bool) -> list[str]:
    rates = [run.ceiling, run.baseline, *[run.remedied] * remedy]
    gain = times(run.speedup) if run.speedup is not None else ""
    starved = percent(max(0.0, run.starved.value)) if run.starved is not None else ""
    cells = [setting for _, setting in run.setting]
    cells += [value(figure) for rate in rates for figure in (rate, run.samples(rate))]
    return [*cells, *[gain] * remedy, starved, shown(run.bottleneck) or "failed"]


def notes(sweep: Sweep) -> list[str]:
    """Return notes to the table: why a run failed or is incomplete, and why a remedy was not kept."""
    lines = []
    for run in sweep.runs:
        partial = "PARTIAL: some rungs lack windows" if run.diagnosis is not None and run.diagnosis.partial else ""
        remedy = f"no remedy: {run.no_remedy}" if run.no_remedy else ""
        lines += [f"{run.written}: {text}" for text in (run.why_not, partial, remedy) if text]
    missing = sweep.planned - len(sweep.runs)
    return [*lines, *([f"{missing} of {sweep.planned} runs were not made"] if missing else [])]


def sentence(sweep: Sweep) -> str:
    """Return which setting trains on the most samples per second; empty if that is unknown."""
    best = sweep.best
    if best is None:
        return ""
    found = f"Most samples/s without a remedy: {value(best.samples(best.baseline))}, with {best.written}"
    rivals = few_of([run.written for run in sweep.rivals])
    return f"{found}; not certainly more than with {rivals}." if rivals else f"{found}."

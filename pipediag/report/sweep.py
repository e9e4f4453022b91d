"""Turn a sweep into blocks: a row for each run."""

from __future__ import annotations

from ..analysis.intervals import Interval
from ..analysis.sentences import number, percent, times
from ..analysis.sweep import Run, Sweep
from .document import Block, Paragraph, Table, Title, listing

_RATES = ("steps/s", "samples/s")


def blocks(sweep: Sweep) -> list[Block]:
    columns, best = headers(sweep), sentence(sweep)
    align = "".join("l" if column == "bottleneck" else "r" for column in columns)
    found: list[Block] = [
        Title((f"SWEEP of {sweep.script}: {len(sweep.measured)} of {sweep.planned} measured",)),
        Table(columns, align, table(sweep), narrow=True),
    ]
    return [*found, *([Paragraph(best, "line")] if best else []), *listing(notes(sweep))]


def headers(sweep: Sweep) -> list[str]:
    """Return the columns: the varied arguments, then the measurements; the remedy's only if one was requested."""
    names = [name for name, _ in sweep.runs[0].setting] if sweep.runs else []
    kinds = ["ceiling", "baseline", *(["remedied"] if _with_remedy(sweep) else [])]
    rates = [f"{kind} {rate}" for kind in kinds for rate in _RATES]
    return [*names, *rates, *(["gain"] if _with_remedy(sweep) else []), "starved", "bottleneck"]


def table(sweep: Sweep) -> list[list[str]]:
    """Return a row for each run, in the order in which they ran."""
    return [_row(run, _with_remedy(sweep)) for run in sweep.runs]


def _row(run: Run, with_remedy: bool) -> list[str]:
    cells = [value for _, value in run.setting]
    for rate in (run.ceiling, run.baseline, *([run.remedied] if with_remedy else [])):
        cells += [_number(rate), _number(run.samples(rate))]
    if with_remedy:
        cells.append(times(run.speedup) if run.speedup is not None else "")
    starved = percent(max(0.0, run.starved.value)) if run.starved is not None else ""
    return [*cells, starved, run.bottleneck or "failed"]


def notes(sweep: Sweep) -> list[str]:
    """Return notes to the table: why a run failed or is incomplete, and why a remedy was not kept."""
    lines = []
    for run in sweep.runs:
        partial = "PARTIAL: some rungs lack windows" if run.diagnosis is not None and run.diagnosis.partial else ""
        remedy = f"no remedy: {run.no_remedy}" if run.no_remedy else ""
        lines += [f"{setting_text(run)}: {text}" for text in (run.why_not, partial, remedy) if text]
    missing = sweep.planned - len(sweep.runs)
    if missing:
        lines.append(f"{missing} of {sweep.planned} runs were not made")
    return lines


def sentence(sweep: Sweep) -> str:
    """Return which setting trains on the most samples per second; empty if that is unknown."""
    best = sweep.best
    if best is None:
        return ""
    rate = best.samples(best.baseline)
    assert rate is not None
    return f"Most samples a second as it is: {number(rate.value)}, with {setting_text(best)}."


def setting_text(run: Run) -> str:
    return " ".join(f"{name}={value}" for name, value in run.setting)


def _with_remedy(sweep: Sweep) -> bool:
    return any(run.diagnosis is not None and run.diagnosis.session.remedy is not None for run in sweep.runs)


def _number(rate: Interval | None) -> str:
    return number(rate.value) if rate is not None else ""

"""Render a sweep's table as text, Markdown or JSON."""

from __future__ import annotations

from tabulate import tabulate

from ..analysis.intervals import Interval
from ..analysis.sentences import number, percent, times
from ..analysis.sweep import Run, Sweep
from .tables import cell
from .text import bullet

_RATES = ("steps/s", "samples/s")


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


def render_text(sweep: Sweep) -> str:
    columns = headers(sweep)
    shown = tabulate(
        table(sweep),
        headers=[column.replace(" ", "\n") for column in columns],
        tablefmt="simple",
        disable_numparse=True,
        colalign=["left" if column == "bottleneck" else "right" for column in columns],
    )
    lines = [_title(sweep), "", shown]
    if sentence(sweep):
        lines += ["", sentence(sweep)]
    lines += ["", *(bullet(note) for note in notes(sweep))] if notes(sweep) else []
    return "\n".join(lines) + "\n"


def render_markdown(sweep: Sweep) -> str:
    columns = headers(sweep)
    rule = "".join("---|" if column == "bottleneck" else "--:|" for column in columns)
    lines = [f"# {_title(sweep)}", "", f"| {' | '.join(map(cell, columns))} |", f"|{rule}"]
    lines += [f"| {' | '.join(map(cell, cells))} |" for cells in table(sweep)]
    if sentence(sweep):
        lines += ["", sentence(sweep)]
    lines += ["", *(f"- {note}" for note in notes(sweep))] if notes(sweep) else []
    return "\n".join(lines) + "\n"


def _title(sweep: Sweep) -> str:
    return f"SWEEP of {sweep.script}: {len(sweep.measured)} of {sweep.planned} measured"


def _with_remedy(sweep: Sweep) -> bool:
    return any(run.diagnosis is not None and run.diagnosis.session.remedy is not None for run in sweep.runs)


def _number(rate: Interval | None) -> str:
    return number(rate.value) if rate is not None else ""

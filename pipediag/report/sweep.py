"""Turn a sweep into blocks: a row for each run."""

from __future__ import annotations

from ..analysis.summary import summarise
from ..analysis.sweep import Run, Sweep
from ..analysis.trials.remedy import outcomes
from ..analysis.words import percent, shown, times
from .diagnosis import title, value
from .document import Block, Listing, Paragraph, Table


def blocks(sweep: Sweep) -> list[Block]:
    columns = headers(sweep)
    return [
        title(summarise(sweep), sweep.script),
        Table(columns, "r" * (len(columns) - 1) + "l", table(sweep), narrow=True),
        Paragraph(sentence(sweep), "line"),
        Listing(notes(sweep)),
    ]


def headers(sweep: Sweep) -> list[str]:
    """Return the columns: the varied arguments, then the measurements; the remedy's only if one was requested."""
    names = [name for name, _ in sweep.runs[0].setting] if sweep.runs else []
    remedy = _with_remedy(sweep)
    kinds = ["possible", "now", *["remedied"] * remedy]
    rates = [f"{kind} {rate}" for kind in kinds for rate in ("steps/s", "samples/s")]
    return [*names, *rates, *["gain"] * remedy, "data costs", "bottleneck"]


def table(sweep: Sweep) -> list[list[str]]:
    """Return a row for each run."""
    remedy = _with_remedy(sweep)
    return [_row(run, remedy) for run in sweep.runs]


def _row(run: Run, remedy: bool) -> list[str]:
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
    return f"Most samples/s without a remedy: {value(best.samples(best.baseline))}, with {best.written}."


def _with_remedy(sweep: Sweep) -> bool:
    return any(run.diagnosis is not None and outcomes(run.diagnosis.session) for run in sweep.runs)

"""Sum up a sweep: one row for each run."""

from __future__ import annotations

from ..sentences import counted, number, percent
from ..sweep import Run, Sweep
from .parts import Summary


def of_sweep(sweep: Sweep) -> Summary:
    """Sum up a sweep."""
    best_run, done = sweep.best, len(sweep.measured)
    figures = f"{best_run.written} makes the most samples a second" if best_run is not None else ""
    return Summary(
        f"{done} of {counted(sweep.planned, 'run')} measured",
        figures,
        tone="good" if done == sweep.planned else "doubtful",
        subject=sweep.script,
        findings_title="Steps a second as it is, with data free, what limits it",
        findings=[(run.written, _swept(run)) for run in sweep.runs],
    )


def _swept(run: Run) -> str:
    if run.baseline is None:
        return run.why_not or "not measured"
    rates = [number(run.baseline.value), number(run.ceiling.value) if run.ceiling is not None else "?"]
    starved = f", waits {percent(run.starved.value)}" if run.starved is not None else ""
    return f"{rates[0]:>6} {rates[1]:>6}   {run.bottleneck}{starved}"

"""Sum up a result for one screen: the answer, its certainty, where the time goes, what to do, what to be careful of."""

from __future__ import annotations

from dataclasses import replace

from ..audit import DOES_NOT_APPLY, FAILED, STATUSES, Audit
from ..compare import Comparison, StageChange
from ..diagnosis import Diagnosis
from ..sentences import STAGES, counted, ends, number, percent, shown
from ..sweep import Run, Sweep
from .of_diagnosis import ACTIONS, advice, data_costs, of_diagnosis
from .parts import Action, Rate, StageCost, Summary, Tone

__all__ = ["Action", "Rate", "StageCost", "Summary", "Tone", "summarise"]

#: Largest number of a comparison's warnings shown.
_NOTES = 3


def summarise(subject: Diagnosis | Audit | Comparison | Sweep) -> Summary:
    if isinstance(subject, Audit):
        return _of_audit(subject)
    if isinstance(subject, Comparison):
        return _of_comparison(subject)
    return _of_sweep(subject) if isinstance(subject, Sweep) else of_diagnosis(subject)


def _of_audit(audit: Audit) -> Summary:
    inner = of_diagnosis(audit.diagnosis)
    items = sorted(audit.items, key=lambda item: STATUSES.index(item.status))
    actions = []
    for item in items:
        actions += [advice(audit.diagnosis.session, one) for one in item.advice]
        actions += map(Action, item.todo)
    others = [f"{count} {_status(status, count)}" for status in STATUSES[1:] if (count := audit.count(status))]
    headline, tone = _answer_of_audit(audit)
    return replace(
        inner,
        headline=headline,
        figures=", ".join([f"{audit.count(FAILED)} of {counted(len(items), 'check')} failed", *others]),
        certainty="",
        tone=tone,
        basis="",
        causes=[],
        rest=[],
        findings_title="Checks",
        findings=[(item.status, item.title) for item in items],
        actions=list(dict.fromkeys(actions))[:ACTIONS],
    )


def _status(status: str, count: int) -> str:
    return "do not apply" if status == DOES_NOT_APPLY and count > 1 else status


def _answer_of_audit(audit: Audit) -> tuple[str, Tone]:
    if audit.failed:
        return "The audit failed", "bad"
    return ("The audit passed", "good") if audit.conclusive else ("The audit is inconclusive", "doubtful")


def _of_comparison(comparison: Comparison) -> Summary:
    loop, sides = comparison.loop, (comparison.before, comparison.after)
    tone: Tone = "doubtful"
    headline, figures, certainty = "The two runs cannot be compared", "", ""
    if loop is not None and loop.speedup is not None:
        gain = loop.speedup
        headline, tone = "The loop is as fast as before, as far as can be told", ""
        if loop.significant:
            headline, tone = ("The loop is faster", "good") if gain.value > 1 else ("The loop is slower", "bad")
        figures = f"{number(gain.value)}x the steps a second"
        certainty = ", ".join(filter(None, [ends(gain), f"{'' if loop.significant else 'not '}certain"]))
    rates = [
        Rate(name, side.ladder.ms("baseline").inverse(1000.0).value)
        for name, side in zip(("before", "after"), sides, strict=True)
        if side.ladder.has("baseline")
    ]
    changed = [one for one in comparison.stages if one.significant]
    return Summary(
        headline,
        figures,
        certainty,
        tone,
        f"data costs {' -> '.join(map(data_costs, sides))} of every step",
        rates,
        findings_title="Stages that certainly changed, ms a step" if changed else "",
        findings=[(STAGES[one.stage], _change(one)) for one in changed],
        careful=[one.message for one in comparison.warnings[:_NOTES]],
        notes=len(comparison.warnings[_NOTES:]),
    )


def _change(one: StageChange) -> str:
    assert one.before is not None and one.after is not None and one.change is not None, "it changed"
    change = one.change
    sign = "+" if change.value > 0 else ""
    interval = f" ({between})" if (between := ends(change)) else ""
    return f"{number(one.before.value)} -> {number(one.after.value)}   {sign}{number(change.value)}{interval}"


def _of_sweep(sweep: Sweep) -> Summary:
    best_run, done = sweep.best, len(sweep.measured)
    figures = f"{best_run.written} makes the most samples a second" if best_run is not None else ""
    return Summary(
        f"{done} of {counted(sweep.planned, 'run')} measured",
        figures,
        tone="good" if done == sweep.planned else "doubtful",
        subject=sweep.script,
        findings_title="Steps a second now, possible, what limits it",
        findings=[(run.written, _swept(run)) for run in sweep.runs],
    )


def _swept(run: Run) -> str:
    if run.baseline is None:
        return run.why_not or "not measured"
    rates = [number(run.baseline.value), number(run.ceiling.value) if run.ceiling is not None else "?"]
    starved = f", data costs {percent(max(0.0, run.starved.value))}" if run.starved is not None else ""
    return f"{rates[0]:>6} {rates[1]:>6}   {shown(run.bottleneck)}{starved}"

"""Sum up a result for one screen: the answer, its certainty, where the time goes, what to do, what to be careful of."""

from __future__ import annotations

from dataclasses import replace

from ...session import Session
from ..audit import DOES_NOT_APPLY, FAILED, STATUSES, Audit
from ..compare import Comparison, StageChange, waits
from ..diagnosis import Diagnosis
from ..sweep import Sweep
from ..words import STAGES, counted, ends, first_of, number, percent, shown
from .of_diagnosis import ACTIONS, advice, data_costs, of_diagnosis
from .parts import Action, Rate, StageCost, Summary, Tone, short, shortened, shorter_paths, shorter_places

__all__ = ["Action", "Rate", "StageCost", "Summary", "Tone", "short", "shorter_places", "summarise"]

#: Headline and tone of an audit, by whether it failed and whether it is conclusive.
_AUDITED: dict[tuple[bool, bool], tuple[str, Tone]] = {
    (True, True): ("The audit failed", "bad"),
    (False, True): ("The audit passed", "good"),
    (False, False): ("The audit is inconclusive", "doubtful"),
}
#: Largest number of a comparison's warnings shown.
_NOTES = 3


def summarise(subject: Diagnosis | Audit | Comparison | Sweep) -> Summary:
    """Return the answer of a result, without absolute paths except in commands: they are to be copied.

    The next command stands at the end, complete; no action repeats it.
    """
    if isinstance(subject, Audit):
        made, session = _of_audit(subject), subject.diagnosis.session
    elif isinstance(subject, Comparison):
        made, session = _of_comparison(subject), subject.after.session
    elif isinstance(subject, Sweep):
        made, session = _of_sweep(subject), Session()
    else:
        made, session = of_diagnosis(subject), subject.session
    following = shortened(session, made.next.partition(": ")[2])

    def shorter(text: str) -> str:
        return shorter_paths(session, text)

    return replace(
        made,
        certainty=shorter(made.certainty),
        subject=shorter(made.subject),
        holding=shorter(made.holding),
        findings=[(shorter(name), shorter(what)) for name, what in made.findings],
        actions=[
            replace(
                one,
                title=shorter(one.title),
                lines=tuple(line for line in one.lines if not following or not line.endswith(following)),
            )
            for one in made.actions
        ],
        nothing_to_gain=shorter(made.nothing_to_gain),
        tried=shorter(made.tried),
        careful=[*map(shorter, made.careful)],
    )


def _of_audit(audit: Audit) -> Summary:
    inner = of_diagnosis(audit.diagnosis)
    items = sorted(audit.items, key=lambda item: STATUSES.index(item.status))
    actions = []
    for item in items:
        actions += [advice(audit.diagnosis.session, one) for one in item.advice]
        actions += map(Action, item.todo)
    counts = {status: audit.count(status) for status in STATUSES}
    names = {status: "do not apply" if status == DOES_NOT_APPLY and counts[status] > 1 else status for status in counts}
    others = [f"{counts[status]} {names[status]}" for status in STATUSES[1:] if counts[status]]
    headline, tone = _AUDITED[bool(audit.failed), audit.conclusive]
    return replace(
        inner,
        headline=headline,
        figures=", ".join([f"{counts[FAILED]} of {counted(len(items), 'check')} failed", *others]),
        certainty="",
        tone=tone,
        basis="",
        causes=[],
        rest=[],
        findings_title="Checks",
        findings=[(item.status, item.title) for item in items],
        actions=list(dict.fromkeys(actions))[:ACTIONS],
    )


#: Headline and tone of a comparison by its answer.
_COMPARED: dict[str, tuple[str, Tone]] = {
    "faster": ("The loop is faster", "good"),
    "slower": ("The loop is slower", "bad"),
    "maybe faster": ("Maybe faster", ""),
    "maybe slower": ("Maybe slower", ""),
    "alike": ("The loop is as fast as before, as far as can be told", ""),
    "": ("The two runs cannot be compared", "doubtful"),
}


def _of_comparison(comparison: Comparison) -> Summary:
    loop, sides = comparison.loop, (comparison.before, comparison.after)
    headline, tone = _COMPARED[comparison.answer]
    figures, certainty = "", ""
    if loop is not None and loop.speedup is not None:
        gain = loop.speedup
        figures = f"{number(gain.value)}x the steps a second" if loop.significant else f"{number(gain.value)}x"
        busy = any(one.code == "other-load" for one in comparison.warnings)
        doubtful = f"not certain{': other processes used the cores' if busy else ''}"
        certainty = ", ".join(filter(None, [ends(gain), "certain" if loop.significant else doubtful]))
    rates = []
    for name, side in zip(("before", "after"), sides, strict=True):
        rate = None if loop is None else loop.before if side is comparison.before else loop.after
        if rate is not None:
            step, wait = side.ladder.ms("baseline"), waits(side.ladder)
            parts = [f"waits {number(wait.value)} of {number(step.value)} ms"] if wait is not None else []
            between = sum(cost.ms.value for cost in side.between_steps)
            parts += [f"{number(between)} ms between two steps"] if between else []
            rates.append(Rate(name, rate.value, ", ".join(parts)))
    changed, session = comparison.changed, comparison.after.session
    return Summary(
        headline,
        figures,
        certainty,
        tone,
        f"data costs {' -> '.join(map(data_costs, sides))} of every step",
        rates,
        findings_title="Stages that certainly changed" if changed else "",
        findings=[(_stage(session, one), _own_change(session, one)) for one in changed],
        careful=[one.message for one in comparison.warnings[:_NOTES]],
        notes=len(comparison.warnings[_NOTES:]),
    )


def _stage(session: Session, one: StageChange) -> str:
    if one.stage == "sample":
        return "all of a sample"
    place = f" ({short(session, one.where)})" if one.where else ""
    return one.name + place if one.name else STAGES[one.stage]


def _own_change(session: Session, one: StageChange) -> str:
    """Return how a stage's own time changed, in words."""
    assert one.before is not None and one.after is not None, "it changed"
    was, now = number(one.before.value), number(one.after.value)
    who = "the training process takes" if one.per == "step" or not session.workers else "a worker takes"
    times = f", {number(one.after.value / one.before.value)}x" if one.before.value > 0 else ""
    return f"{who} {was} -> {now} ms a {one.per}{times}"


def _of_sweep(sweep: Sweep) -> Summary:
    best_run, done = sweep.best, len(sweep.measured)
    figures = ""
    if best_run is not None:
        unsure = (
            f", not certainly more than {first_of([run.written for run in sweep.rivals], 1)}" if sweep.rivals else ""
        )
        figures = f"{best_run.written} makes the most samples a second{unsure}"
    findings = []
    for run in sweep.runs:
        told = run.why_not or "not measured"
        if run.baseline is not None:
            now, most = number(run.baseline.value), number(run.ceiling.value) if run.ceiling is not None else "?"
            starved = f", data costs {percent(max(0.0, run.starved.value))}" if run.starved is not None else ""
            told = f"{now:>6} {most:>6}   {shown(run.bottleneck)}{starved}"
        findings.append((run.written, told))
    return Summary(
        f"{done} of {counted(sweep.planned, 'run')} measured",
        figures,
        tone="good" if done == sweep.planned else "doubtful",
        subject=sweep.script,
        findings_title="Steps a second now, possible, what limits it",
        findings=findings,
    )

"""Say what would help: the recommendations of a diagnosis, and what each brings in time, money and workers."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.diagnosis import Recommendation
from ..analysis.savings import Savings
from ..analysis.words import ends, number, shown, times
from .document import Advice, Paragraph, Section

#: Units of time, with their seconds; a time is given in the largest unit of which it has at least two.
_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def section(diagnosis: Diagnosis) -> Section:
    return Section(
        "what would help",
        [
            Paragraph(diagnosis.nothing_to_gain),
            *(_advice(diagnosis, count, one) for count, one in enumerate(diagnosis.recommendations, 1)),
        ],
        page=1,
    )


def _advice(diagnosis: Diagnosis, count: int, one: Recommendation) -> Advice:
    how, *code = one.how.splitlines()
    saved = savings(diagnosis, one.savings)
    return Advice(count, one.title, shown(one.stage), gain(one), saved, one.evidence, how, code, one.risk)


def gain(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one, which may be a bound."""
    if one.measured is not None:
        predicted = f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        return f"{times(one.measured)} measured{predicted}"
    if one.predicted is None:
        return "not predicted"
    return f"at most {times(one.predicted)}" if one.at_most else times(one.predicted)


def savings(diagnosis: Diagnosis, saved: Savings | None) -> str:
    """Return what a change brings, in one line; empty if unknown."""
    if saved is None:
        return ""
    unit, seconds = next((one for one in _UNITS if saved.now >= 2 * one[1]), _UNITS[-1])
    now, then = saved.now / seconds, saved.then.times(1 / seconds)
    between = ends(then)
    took = f"{number(then.value)} {unit}{between and f' ({between})'}"
    if saved.batches is None:
        told = f"hour of today's training: {took}"
    else:
        start = " with its start" if saved.with_start else ""
        told = f"epoch of {saved.batches} batches{start}: {took} instead of {number(now)} {unit}"
    costs = saved.costs(diagnosis.price)
    if costs is not None:
        told += f"; costs {_money(costs[1].value)} instead of {_money(costs[0])}"
    loader = diagnosis.session.loader
    if saved.workers is not None and loader is not None:
        told += f"; {saved.workers} of {loader.num_workers} workers keep up"
    return told


def _money(amount: float) -> str:
    return number(amount) if amount >= 0.01 else f"{amount:.2g}"

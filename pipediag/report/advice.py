"""Say what would help: the recommendations of a diagnosis."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.diagnosis import Recommendation
from ..analysis.sentences import number, times
from .document import Advice, Paragraph, Section
from .savings import sentence


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
    saved = sentence(diagnosis, one.savings)
    return Advice(count, one.title, one.stage, gain(one), saved, one.evidence, how, code, one.risk)


def gain(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one."""
    if one.measured is not None:
        predicted = f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        return f"{times(one.measured)} measured{predicted}"
    return times(one.predicted) if one.predicted is not None else "not predicted"

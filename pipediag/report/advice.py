"""Say what would help: the recommendations of a diagnosis."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.diagnosis import Recommendation
from ..analysis.sentences import number, times
from .document import Advice, Block, Paragraph, section


def blocks(diagnosis: Diagnosis) -> list[Block]:
    found: list[Block] = [Paragraph(diagnosis.nothing_to_gain)] if diagnosis.nothing_to_gain else []
    for count, one in enumerate(diagnosis.recommendations, 1):
        how, *code = one.how.splitlines()
        found.append(Advice(count, one.title, one.stage, gain(one), one.evidence, how, code, one.risk))
    return section("what would help", found, page=1)


def gain(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one."""
    if one.measured is not None:
        predicted = f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        return f"{times(one.measured)} measured{predicted}"
    return times(one.predicted) if one.predicted is not None else "not predicted"

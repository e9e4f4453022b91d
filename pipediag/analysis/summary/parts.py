"""Define the parts of a summary, which says on one screen what a result means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["", "good", "doubtful", "bad"]


@dataclass(frozen=True)
class StageCost:
    """A stage and its cost: milliseconds of a step, share of the step from 0 to 1, and ``file:line`` if known.

    ``note`` says more about the cost: how uncertain it is, or which of several transforms takes most of it.
    """

    name: str
    ms: float
    share: float
    where: str = ""
    note: str = ""


@dataclass(frozen=True)
class Action:
    """What to do: a title, the gain and how it is known, and the commands or lines of code that do it."""

    title: str
    gain: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rate:
    """Steps per second in one case, and a note about the figure."""

    name: str
    steps_per_s: float
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """The answer in parts; each report format decides how they look.

    Attributes:
        headline: the answer.
        figures: its figures, to follow a colon.
        certainty: their interval, and how sure the answer is.
        tone: good, doubtful or bad.
        subject: what was measured.
        rates: the rates to compare: now and possible, or before and after.
        holding: the rank that holds up a distributed job, in a sentence; empty if none is known.
        basis: how it is known where the time goes.
        causes: the stages that cost time: the verdict's first, then the most expensive.
        rest: the other stages, the most expensive first, and the model's own step.
        findings_title: the title of the findings.
        findings: rows of an audit, a comparison or a sweep, each as a name and what was found.
        actions: the best changes, the best first.
        nothing_to_gain: why there is nothing to do; empty if there is.
        tried: what was tried and is not kept, and why; empty if nothing was.
        careful: what the reader must know before trusting or repeating this.
        notes: number of notes that are left out.
    """

    headline: str
    figures: str = ""
    certainty: str = ""
    tone: Tone = ""
    subject: str = ""
    rates: list[Rate] = field(default_factory=list)
    holding: str = ""
    basis: str = ""
    causes: list[StageCost] = field(default_factory=list)
    rest: list[StageCost] = field(default_factory=list)
    findings_title: str = ""
    findings: list[tuple[str, str]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    nothing_to_gain: str = ""
    tried: str = ""
    careful: list[str] = field(default_factory=list)
    notes: int = 0

"""Sum up a diagnosis for one screen: the answer and its certainty, now against possible, where, what to do, careful."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["", "good", "doubtful", "bad"]


@dataclass(frozen=True)
class Cause:
    """A stage that certainly costs time: milliseconds a step, share of the step from 0 to 1, and ``file:line``."""

    name: str
    ms: float
    share: float
    where: str = ""


@dataclass(frozen=True)
class Action:
    """What to do: a line, its gain with how it is known, and the commands or lines of code that do it."""

    title: str
    gain: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The answer in parts; each format decides how they look.

    Attributes:
        headline: the answer as a sentence.
        certainty: how sure it is, in a few words.
        tone: good, doubtful or bad.
        subject: what was measured.
        now: steps per second as it is; None if unknown.
        possible: steps per second if data cost nothing; None if unknown.
        basis: how it is known where the time goes.
        causes: the stages that certainly cost time, the most expensive first.
        rest: the other stages in one line; empty if there are none.
        actions: at most three, the best first.
        nothing_to_gain: why there is nothing to do; empty if there is.
        careful: what the reader must know before trusting or repeating this.
    """

    headline: str
    certainty: str = ""
    tone: Tone = ""
    subject: str = ""
    now: float | None = None
    possible: float | None = None
    basis: str = ""
    causes: list[Cause] = field(default_factory=list)
    rest: str = ""
    actions: list[Action] = field(default_factory=list)
    nothing_to_gain: str = ""
    careful: list[str] = field(default_factory=list)

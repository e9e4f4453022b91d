"""Say what a measurement is doing and what is known so far, in one line."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any, NamedTuple

from ..analysis.summary.parts import short
from ..analysis.trials.remedy import HAND_OFF, remedy_of, under_way
from ..analysis.verdict import so_far
from ..analysis.words import counted, number, shown
from ..session import (
    DECODED,
    FEWER_THREADS,
    HANDED_OVER,
    LOADED_ONCE,
    LONGER,
    REMEDIED,
    STAGE_OF_RUNG,
    Loader,
    Rung,
    Session,
    cut_of,
    left_out,
    line_left_out,
    settings_of,
)
from ..session.events import Applying, FirstBatch, Looking, Pass, Progress, Trying, read
from ..session.remedies import DECODING
from .terminal import printable

_TRYING = {
    DECODED: "testing on samples what can move to the device, with JPEGs decoded there too",
    REMEDIED: "testing on samples which transforms can move to the device",
    LOADED_ONCE: "keeping what the first batches read and decode",
    HANDED_OVER: "trying the hand-off alone",
}
#: What the loop is measured with, in a few words; beside the stages, see :func:`_named`.
_MEASURED = {
    "device": "the model alone",
    "baseline": "as it is",
    "supply": "the loader alone",
    FEWER_THREADS: "with fewer threads",
    LONGER: "as it is, for longer",
    REMEDIED: "with transforms on the device",
    DECODED: "with JPEGs decoded on the device",
    LOADED_ONCE: "with samples from a cache",
    HANDED_OVER: "with another hand-off",
}
#: Names of the rates that are known during the measurement.
_RATES = {
    "baseline": "now",
    "device": "possible",
    REMEDIED: "moved",
    DECODED: "decoded",
    LOADED_ONCE: "cached",
    HANDED_OVER: "handed over",
}
#: Most characters of the first answer.
_ANSWER = 90
#: Seconds between changes of the bar, and most characters beside it.
_EVERY, _BAR_WIDTH = 1.0, 120


class News(NamedTuple):
    """What to tell of an event; ``lasting`` if the line for the present activity does not say it."""

    text: str
    lasting: bool = False


class Activity:
    """The present activity of a measurement, the time that it has left, and the best answer so far.

    ``seconds`` is the maximum time for measuring, from the first batch on; 0 if unknown. ``doing`` is what is done at
    first.
    """

    def __init__(self, seconds: float, doing: str = "") -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._first_batch: float | None = None
        self._doing = doing
        self._answer: list[str] = []
        self._told = set[str]()

    def news(self, event: object, session: Session) -> News | None:
        """Follow an event, and return what to tell of it; None if the line says enough, or if it was told before."""
        found = self._news(event, session)
        if found is not None and found.text in self._told:
            return News(f"running the script again (run {event.number})", True) if isinstance(event, Pass) else None
        self._told |= {found.text} if found is not None else set()
        return found

    def _news(self, event: object, session: Session) -> News | None:
        match event:
            case Pass(run, why):
                self._began = time.monotonic()
                self._doing = f"the script is starting{f' (run {run})' * (run > 1)}"
                return News(why, lasting=True)
            case FirstBatch():
                self._first_batch = self._first_batch or time.monotonic()
                self._doing = "waiting for the training loop's first steps"
            case Loader():
                workers = counted(event.num_workers, "worker") if event.num_workers else "no workers"
                place = short(session, event.where)
                if event.plain_iterable:
                    return self._begin(f"training loop at {place}: batches from {event.dataset}", "measuring")
                return self._begin(f"training loader at {place}: {event.dataset}, {workers}", "measuring")
            case Progress(rung, round_):  # the first answer is news
                self._doing = f"round {round_}, {_settings(rung, session) or _named(rung)}"
                before, self._answer = self._answer, so_far(session) if round_ > 0 else []
                if round_ > 0:
                    latest = {w.rung: 1000.0 / w.ms_per_step for w in session.windows}
                    rates = [f"{name} {number(latest[rung])}" for rung, name in _RATES.items() if rung in latest]
                    self._answer += [f"{', '.join(rates)} steps/s"] if rates else []
                return News(fitting(self._answer, _ANSWER)) if self._answer and not before else None
            case Applying(ended="", budget=budget) if budget:
                return self._begin(f"{_remedy(session)}; measuring whether it pays", "measuring whether it pays")
            case Applying(rung=rung):
                return self._begin(_TRYING[rung])
            case Trying():
                return self._begin("trying other loader settings")
            case Looking(at) if at:
                return self._begin(f"recording {at}")
            case Rung(available=False, exists=True):
                stage = shown(STAGE_OF_RUNG.get(event.name, ""))
                why_not = event.why_not.partition("; ")[0]  # the report says what to do about it
                return News(f"{_settings(event.name, session) or stage or _named(event.name)}: {why_not}", True)
        return None

    def _begin(self, text: str, doing: str = "") -> News:
        """Begin an activity; ``doing`` is its short form for the lines that follow."""
        self._doing = doing or text
        return News(text)

    def used(self, now: float) -> float | None:
        """Return the seconds used of those for measuring; None before the first batch."""
        if self._first_batch is None or not self.seconds:
            return None
        return min(self.seconds, now - self._first_batch)

    def line(self, now: float, width: int) -> str:
        """Return the present activity in at most ``width`` characters, and as much of the answer as fits."""
        used = self.used(now)
        if used is None:
            text = f"{self._doing}, {now - self._began:.0f} s so far"
        else:
            text = f"{self.seconds - used:.0f} s left at most: {self._doing}"
        return fitting([text, *self._answer], width)


def fitting(parts: list[str], width: int) -> str:
    """Return as many parts as fit into ``width`` characters, at least the beginning of the first one."""
    text = parts[0]
    for part in parts[1:]:
        if len(text) + len(part) + 2 > width:
            break
        text += f"; {part}"
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."


def _settings(rung: str, session: Session) -> str:
    """Return the settings of a rung that tries some."""
    place = settings_of(rung)
    return "" if place is None or session.knobs is None else session.knobs.tried[place - 1].written


def _named(rung: str) -> str:
    """Return what is measured under a rung, in a few words."""
    if (links := cut_of(rung)) is not None:
        return f"with the transforms from number {links + 1} on"
    if (where := left_out(rung)) is not None:
        return f"without {line_left_out(where)}"
    return _MEASURED.get(rung) or f"with {shown(STAGE_OF_RUNG.get(rung, rung))}"


def _remedy(session: Session) -> str:
    """Return what the remedy under way does as text."""
    rung = under_way(session) or HANDED_OVER
    remedy = remedy_of(session, rung)
    if rung == HANDED_OVER or remedy is None:
        return HAND_OFF
    if remedy.keeping is not None and not remedy.moved:
        return f"samples from a cache ({remedy.keeping.what})"
    also = [DECODING] if rung == DECODED else ["samples from a cache"] if rung == LOADED_ONCE else []
    return f"moved to the device: {', '.join([*also, *remedy.moved_names])}"


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookBar:
    """A bar that follows the events of a measurement, which takes at most ``seconds`` from the first batch on."""

    def __init__(self, session: Session, seconds: float) -> None:
        display: Any = sys.modules["IPython"].display.display
        self._session = session
        self._activity = Activity(seconds, "waiting for the first batch")
        self._drawn = time.monotonic()
        self._handle = display(self._bar(self._drawn), raw=True, display_id=True)

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        self._activity.news(read(kind, data), self._session)
        now = time.monotonic()
        if now - self._drawn >= _EVERY:
            self._drawn = now
            self._handle.update(self._bar(now), raw=True)

    def _bar(self, now: float) -> dict[str, str]:
        line, used = printable(self._activity.line(now, _BAR_WIDTH)), self._activity.used(now) or 0.0
        bar = f'<progress value="{used:.1f}" max="{self._activity.seconds:.1f}"></progress>'
        return {"text/plain": f"pipediag: {line}", "text/html": f"{bar} pipediag: {escape(line)}"}

    def clear(self) -> None:
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

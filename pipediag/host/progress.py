"""Show the progress on standard error: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from ..analysis.remedy import DECODING, HAND_OFF, remedy_of, under_way
from ..analysis.sentences import number, so_far
from ..session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, REMEDIES, Loader, Rung, Session, settings_of
from ..session.events import Applying, FirstBatch, Looking, Pass, Progress, Trying

_TRYING = {
    REMEDIED: "after the ladder: testing on samples which transforms can move to the device",
    DECODED: "testing on samples whether the device can decode JPEGs too",
    LOADED_ONCE: "testing on samples what is the same in every epoch",
    HANDED_OVER: "trying the hand-off alone",
}

#: Seconds between plain lines if there is no terminal.
_EVERY = 10.0


class ProgressLine:
    """The progress display: the rung, the round, the estimate so far and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._began = time.monotonic()
        self._budget = 0.0
        self._shown = False
        self._said = 0.0
        self._first = True

    def __call__(self, event: object, session: Session) -> None:
        match event:
            case Pass(number, budget):
                self._begin(
                    "running the script" if number == 1 else f"running the script again (pass {number})", budget
                )
            case FirstBatch():
                self._began = time.monotonic()
            case Loader():
                place = f"training loader at {event.where}: {event.dataset}, {event.num_workers} workers"
                self._begin(f"{place}; measuring")
            case Progress(rung, round_):
                self._step(rung, round_, session)
            case Applying(ended="", budget=budget):
                self._begin(f"{_remedy(session)}; measuring whether it pays", budget)
            case Applying(rung=rung):
                self._say(_TRYING[rung])
            case Trying(budget):
                self._begin("after the ladder: trying other loader settings", budget)
            case Looking(at) if at:
                self._say(f"after the ladder: recording {at}")
            case Rung(available=False, exists=True):
                self._say(f"{event.name}: {event.why_not}")

    def _begin(self, text: str, budget: float | None = None) -> None:
        """Print what begins now and restart its time; ``budget`` is new unless it is None."""
        self._began = time.monotonic()
        if budget is not None:
            self._budget = budget
        self._say(text)

    def _step(self, rung: str, round_: int, session: Session) -> None:
        left = max(0.0, self._budget - (time.monotonic() - self._began))
        text = f"round {round_}, {_named(rung, session)}{_estimate(session)}, {left:.0f} s left at most"
        seen = so_far(session) if round_ > 0 else ""
        if seen and self._first:
            self._first = False
            self._say(seen)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + f"pipediag: {text}"[:width])
            self._stream.flush()
            self._shown = True
        elif time.monotonic() - self._said >= _EVERY:
            self._say(f"{text}; {seen}" if seen else text)

    def _say(self, text: str) -> None:
        self.clear()
        self._said = time.monotonic()
        print(f"pipediag: {text}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the live line before other output."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def _named(rung: str, session: Session) -> str:
    """Return a readable name of a rung: a settings rung is named by its settings."""
    number = settings_of(rung)
    return rung if number is None or session.knobs is None else session.knobs.tried[number - 1].written


def _remedy(session: Session) -> str:
    """Return what the remedy under way does as text."""
    rung = under_way(session)
    remedy = remedy_of(session, rung)
    if rung == HANDED_OVER or remedy is None:
        return HAND_OFF
    if remedy.keeping is not None and not remedy.moved:
        return f"samples are loaded once ({remedy.keeping.what})"
    also = [DECODING] if rung == DECODED else ["samples are loaded once"] if rung == LOADED_ONCE else []
    return f"moved to the device: {', '.join([*also, *(place.name for place in remedy.moved)])}"


def _estimate(session: Session) -> str:
    """Return the known speeds of baseline, ceiling and remedies as text."""
    latest = {w.rung: 1000.0 / w.ms_per_step for w in session.windows}
    parts = [f"{name} {number(latest[name])}" for name in ("baseline", "device", *REMEDIES) if name in latest]
    return f" ({', '.join(parts)} steps/s)" if parts else ""

"""Show the progress on standard error: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, TextIO

from ..analysis.sentences import number, so_far
from ..session import REMEDIED, Session, settings_of

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

    def __call__(self, kind: str, data: dict[str, Any], session: Session) -> None:
        if kind == "pass":
            self._budget = data["budget"]
            self._began = time.monotonic()
            number = data["number"]
            self._say("running the script" if number == 1 else f"running the script again (pass {number})")
        elif kind == "first-batch":
            self._began = time.monotonic()
        elif kind == "loader":
            self._began = time.monotonic()
            workers = data["num_workers"]
            self._say(f"training loader at {data['where']}: {data['dataset']}, {workers} workers; measuring")
        elif kind == "progress":
            self._step(data["rung"], data["round"], session)
        elif kind == "applying" and "ended" in data:
            self._say("the ladder is known; trying on samples what can be moved to the device")
        elif kind == "applying":
            self._budget = data["budget"]
            self._began = time.monotonic()
            moved = ", ".join(place.name for place in session.remedy.moved) if session.remedy else ""
            self._say(f"moved to the device: {moved}; measuring whether it pays")
        elif kind == "trying":
            self._budget = data["budget"]
            self._began = time.monotonic()
            self._say("the ladder is known; trying other settings of the loader")
        elif kind == "looking" and data["at"]:
            self._say(f"the ladder is known; recording {data['at']}")
        elif kind == "rung" and not data["available"] and data["exists"]:
            self._say(f"{data['name']}: {data['why_not']}")

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


def _estimate(session: Session) -> str:
    """Return the known speeds of baseline, ceiling and remedy as text."""
    latest = {w.rung: 1000.0 / w.ms_per_step for w in session.windows}
    parts = [f"{name} {number(latest[name])}" for name in ("baseline", "device", REMEDIED) if name in latest]
    return f" ({', '.join(parts)} steps/s)" if parts else ""

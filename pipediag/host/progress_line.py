"""Show the progress on standard error: one changing line on a terminal, a line for each new activity elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from ..analysis.checks import FILES
from ..analysis.words import first_of
from ..report.progress import Activity
from ..report.terminal import columns, fresh_line, printable, shown_by
from ..session import Session
from ..session.events import Tick
from .standard_streams import put

if TYPE_CHECKING:
    from .passes import Request

_RUNS = "running the script"
#: Seconds between lines without news, and between changes of the line on a terminal.
_EVERY, _EVERY_LIVE = 30.0, 1.0
#: What each line begins with, and the most characters of a line that is not on a terminal.
_PREFIX, _WIDTH = "pipediag: ", 100


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def really_runs(request: Request) -> str:
    """Return what the user must know before a script is measured."""
    where = f" in {request.workdir}" if request.workdir is not None else ""
    files = "its files" if request.workdir is not None else "its files; --workdir DIR puts them into DIR"
    return f"it really runs{where}, several times if it is short, and writes {files}"


def opening(request: Request, written: Sequence[str] = ()) -> str:
    """Return what will happen to a script that is measured alone, and how long it can take.

    ``written`` are the files that it wrote when it was last analysed; those that are still there are named.
    """
    longest = duration(request.budget + request.apply) + " and a profile" * bool(request.profile)
    there = [path for path in written if os.path.isfile(os.path.join(request.workdir or "", path))]
    over = f"; it may write over {first_of(there, FILES)}, as the last analysis wrote there" if there else ""
    return f"{_RUNS}: {really_runs(request)}{over}; measuring takes {longest} at most, plus its own start-up"


class ProgressLine:
    """The progress display: see :class:`pipediag.report.progress.Activity`.

    ``seconds`` is the maximum time for measuring, from the first batch on; 0 if unknown. ``quiet`` shows nothing.
    """

    def __init__(self, stream: TextIO, seconds: float = 0.0, quiet: bool = False) -> None:
        self.first_words = _RUNS  # what to say when the script begins to run
        self._stream = stream
        self._live = stream.isatty()
        self._quiet = quiet
        self._activity = Activity(seconds)
        self._said = self._drawn = time.monotonic()
        self._shown = False

    def __call__(self, event: object, session: Session) -> None:
        news = self._activity.news(event, session)
        if news is not None and (news.lasting or not self._live):
            self._say(news.text or self.first_words)
        else:
            self._refresh(_EVERY_LIVE if isinstance(event, Tick) else 0.0)

    def _refresh(self, every: float) -> None:
        """Show the present activity; on a terminal at most once in ``every`` seconds."""
        now = time.monotonic()
        if self._live and now - self._drawn >= every:
            self._drawn = now
            width = columns(self._stream) - 1
            line = _PREFIX + printable(self._activity.line(now, width - len(_PREFIX)))
            self._put("\r\x1b[K" + shown_by(line, self._stream)[:width])
            self._shown = not self._quiet
        elif not self._live and now - self._said >= _EVERY:
            self._say(self._activity.line(now, _WIDTH - len(_PREFIX)))

    def _say(self, text: str) -> None:
        """Print a line that stays; away from a terminal in parts, if it is long."""
        if self._shown:
            self.clear()
        else:
            self._put(fresh_line(self._stream))
        self._said = time.monotonic()
        text = printable(text)
        for part in [text] if self._live else wrap(text, _WIDTH - len(_PREFIX), break_on_hyphens=False):
            self._put(f"{_PREFIX}{part}\n")

    def _put(self, text: str) -> None:
        if not self._quiet:
            put(text, self._stream)

    def clear(self) -> None:
        """Remove the live line before other output."""
        if self._shown:
            self._put("\r\x1b[K")
            self._shown = False

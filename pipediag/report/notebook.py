"""Show the progress of a measurement below a notebook's cell, as a bar."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from ..session import Session
from ..session.events import read
from .progress import Activity
from .terminal import printable

#: Seconds between changes of the bar, and most characters beside it.
_EVERY, _WIDTH = 1.0, 120


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookBar:
    """A bar that follows the events of a measurement as they are sent.

    Args:
        session: the session of the measurement.
        seconds: maximum time for measuring, from the first batch on.
    """

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
        line, used = printable(self._activity.line(now, _WIDTH)), self._activity.used(now) or 0.0
        bar = f'<progress value="{used:.1f}" max="{self._activity.seconds:.1f}"></progress>'
        return {"text/plain": f"pipediag: {line}", "text/html": f"{bar} pipediag: {escape(line)}"}

    def clear(self) -> None:
        """Remove the bar at the end of the measurement."""
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

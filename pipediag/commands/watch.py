"""Implement ``pipediag watch``: look at trainings that run already."""

from __future__ import annotations

import sys

from ..analysis import diagnose_session
from ..analysis.verdict import so_far
from ..errors import EXIT_OK, UsageError
from ..host.standard_streams import put
from ..report import screen_for
from ..watch.processes import described, jobs_of
from ..watch.watching import Watching
from .results import Results, say

#: Seconds until the first answer, and between the screens of a live view.
_FIRST, _EVERY = 2.0, 4.0


def watch(pid: int | None, every: bool, seconds: float, live: bool, results: Results) -> int:
    """Watch a training, or all of this user's, and report what was seen; return the exit code.

    Raises:
        PipediagError, UsageError: there is none, or several to choose from, or it may not be read.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError("watch reads Linux's /proc, which this system does not have")
    found = jobs_of(pid)
    if len(found) > 1 and not every:
        for job in found:
            say(described(job))
        raise UsageError(f"{len(found)} trainings run: choose one by its number, or watch all with --all")
    for job in found:
        watching = Watching(job)
        if live:
            _live(watching, results)
        else:
            _once(watching, seconds, results)
        results.deliver(diagnose_session(results.reported(watching.session())))
    return results.code(EXIT_OK)


def _once(watching: Watching, seconds: float, results: Results) -> None:
    """Watch for some seconds, and say soon what is known."""
    for part in (min(_FIRST, seconds), seconds - _FIRST):
        if part > 0 and not watching.ended:
            watching.look(part)
            if part < seconds and part == _FIRST:
                results.note("; ".join(so_far(watching.session())[:2]))


def _live(watching: Watching, results: Results) -> None:
    """Draw the screen again and again, until Ctrl-C or until the training ends."""
    lines = 0
    try:
        while not watching.ended:
            watching.look(_EVERY)
            screen = screen_for(diagnose_session(results.reported(watching.session())), sys.stdout)
            back = f"\x1b[{lines}A\x1b[J" if lines and sys.stdout.isatty() else ""
            put(back + screen, sys.stdout)
            lines = screen.count("\n")
    except KeyboardInterrupt:
        if lines and sys.stdout.isatty():
            put(f"\r\x1b[{lines}A\x1b[J", sys.stdout)

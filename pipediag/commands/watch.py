"""Implement ``pipediag watch``: look at trainings that run already."""

from __future__ import annotations

import sys
from contextlib import suppress

from ..analysis.verdict import so_far
from ..errors import EXIT_OK, NothingMeasured, UsageError
from ..host.standard_streams import put
from ..report import screen_for
from ..watch.processes import described, jobs_of
from ..watch.watching import Watching
from .results import Results, say

#: Seconds until the first answer, and between the screens of a live view.
_FIRST, _EVERY = 2, 4


def watch(pid: int | None, every: bool, seconds: float, live: bool, results: Results) -> int:
    """Watch a training, or all of this user's, and report what was seen until then at Ctrl-C; return the exit code.

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
    if len(found) > 1 and (results.files or results.json or live):
        raise UsageError(f"{len(found)} trainings run, and -o, --json and --live show one: choose it by its number")
    for job in found:
        watching = Watching(job)
        with suppress(KeyboardInterrupt):
            watching.look(min(_FIRST, round(seconds)))
            if live:
                _draw(watching, results)
            elif seconds > _FIRST and not watching.ended:
                try:
                    results.note("; ".join(so_far(watching.session())[:2]))
                except NothingMeasured as error:
                    results.note(str(error))
                watching.look(max(1, round(seconds) - _FIRST))
        results.deliver(results.diagnosed(watching.session()))
    return results.code(EXIT_OK)


def _draw(watching: Watching, results: Results) -> None:
    """Draw the screen in place of the one before, until the training ends; Ctrl-C leaves room for the last one."""
    lines, on_a_terminal = 0, sys.stdout.isatty()
    try:
        while not watching.ended:
            try:
                screen = screen_for(results.diagnosed(watching.session()), sys.stdout)
            except NothingMeasured as error:
                screen = f"{error}\n"
            put(f"\x1b[{lines}A\x1b[J{screen}" if lines else screen, sys.stdout)
            lines = screen.count("\n") if on_a_terminal else 0
            watching.look(_EVERY)
    finally:
        if lines:
            put(f"\r\x1b[{lines}A\x1b[J", sys.stdout)

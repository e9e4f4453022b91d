"""Implement ``pipediag report`` and ``pipediag compare``: show, convert and compare saved sessions."""

from __future__ import annotations

import shlex
import sys

from ..analysis import Diagnosis
from ..analysis.compare import compare as compare_diagnoses
from ..analysis.trials.remedy import best, remedy_of, why_none
from ..errors import EXIT_GATE, EXIT_OK, SessionFileError
from ..host.standard_streams import put
from ..report import history, read
from ..report.terminal import printable
from .results import Results, say


def report(session: str | None, results: Results, price: float | None = None, diff: bool = False) -> int:
    """Write the report of a saved session, or of the last analysis in this folder, to files or show it.

    With ``diff``, print only the change to the script that keeps a remedy that pays. Return the exit code.

    Raises:
        SessionFileError: the file holds no session, none is kept, or it offers no change.
    """
    found = _read(_named(results, session or history.last()), results, price)
    if diff:
        kept = best(found.session)
        remedy = remedy_of(found.session, kept.rung) if kept is not None and kept.applied else None
        if remedy is None:
            why = why_none(found.session) or "no remedy was tried: analyze --apply tries them, if its time suffices"
            raise SessionFileError(f"there is no change to print: {why}")
        if not remedy.edit.diff:
            raise SessionFileError(f"there is no change to print: {remedy.edit.why_not}")
        keep = "\n\t" if sys.stdout.isatty() else "\n\t\r\f"  # which lines of the file may hold
        put(printable(remedy.edit.diff, keep), sys.stdout)
        return EXIT_OK
    results.convert(found)
    return results.code(EXIT_OK)


def compare(before: str | None, after: str | None, results: Results, fail_over: float | None) -> int:
    """Write the comparison of two saved sessions to files, or show it.

    What is not named are the last analyses in this folder. Return the exit code, 3 if the loop certainly loses more
    than ``fail_over`` % of its steps per second.

    Raises:
        SessionFileError: a file holds no session, or too few are kept.
    """
    if before is None:
        pair = history.last_two()
        if pair is None:
            raise SessionFileError(
                "no two analyses of one script are kept for this folder: run pipediag analyze before and after a change"
            )
        before, after = (_named(results, path) for path in pair)
    comparison = compare_diagnoses(_read(before, results), _read(after or _named(results, history.last()), results))
    results.convert(comparison)
    if fail_over is not None and comparison.certainly_slower(fail_over / 100):
        say(f"the loop makes over {fail_over:g} % fewer steps/s than before")
        return EXIT_GATE
    return results.code(EXIT_OK)


def _named(results: Results, path: str | None) -> str:
    """Return a file, and tell which analysis it is if it was kept.

    Raises:
        SessionFileError: there is none.
    """
    if path is None:
        raise SessionFileError("no analysis is kept for this folder: run pipediag analyze SCRIPT, or name a FILE.json")
    if moment := history.when(path):
        results.note(f"analysis of {moment}: {shlex.join(history.argv_of(path))}")
    return path


def _read(path: str, results: Results, price: float | None = None) -> Diagnosis:
    found = read(path, price)
    return results.diagnosed(found.session, price) if results.redact else found

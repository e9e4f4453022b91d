"""Implement ``pipediag report`` and ``pipediag compare``: show, convert and compare saved sessions."""

from __future__ import annotations

from ..analysis import Diagnosis, diagnose_session
from ..analysis.compare import compare as compare_diagnoses
from ..errors import EXIT_GATE, EXIT_OK
from ..report import read
from .results import Results, say


def report(session: str, results: Results, price: float | None = None) -> int:
    """Write the report of a saved session to the files of ``results``, or show it; return the exit code.

    Raises:
        SessionFileError: the file holds no session.
    """
    results.convert(_read(session, results, price))
    return results.code(EXIT_OK)


def compare(before: str, after: str, results: Results, fail_over: float | None) -> int:
    """Write the comparison of two saved sessions to the files of ``results``, or show it.

    Return the exit code, 3 if the loop certainly loses more than ``fail_over`` % of its steps per second.

    Raises:
        SessionFileError: a file holds no session.
    """
    comparison = compare_diagnoses(_read(before, results), _read(after, results))
    results.convert(comparison)
    if fail_over is not None and comparison.certainly_slower(fail_over / 100):
        say(f"the loop makes over {fail_over:g} % fewer steps/s than before")
        return EXIT_GATE
    return results.code(EXIT_OK)


def _read(path: str, results: Results, price: float | None = None) -> Diagnosis:
    found = read(path, price)
    return diagnose_session(results.reported(found.session), price) if results.redact else found

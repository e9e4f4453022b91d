"""Implement ``pipediag compare``: compare two saved sessions."""

from __future__ import annotations

from .. import report as reports
from ..analysis.compare import compare as compare_diagnoses
from ..errors import EXIT_GATE, EXIT_OK
from .results import Results, say


def compare(before: str, after: str, results: Results, fail_over: float | None) -> int:
    """Write the comparison to the files of ``results``, or show it if there are none; return the exit code.

    Args:
        fail_over: percentage of steps per second that the loop may lose; the exit code is 3 if it certainly loses more.

    Raises:
        SessionFileError: a file holds no session.
    """
    comparison = compare_diagnoses(reports.read(before), reports.read(after))
    results.convert(comparison)
    if fail_over is not None and comparison.certainly_slower(fail_over / 100):
        say(f"the loop makes over {fail_over:g} % fewer steps/s than before")
        return EXIT_GATE
    return results.code(EXIT_OK)

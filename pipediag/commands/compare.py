"""Implement ``pipediag compare``: compare two saved sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from .. import report as reports
from ..analysis.compare import compare as compare_diagnoses
from ..errors import EXIT_GATE, EXIT_OK
from .measuring import show


def compare(before: str, after: str, outputs: Sequence[str], fail_over: float | None) -> int:
    """Write the comparison to the ``outputs``, or show it if there are none; return the exit code.

    Args:
        fail_over: percentage of steps per second that the loop may lose; the exit code is 3 if it certainly loses more.

    Raises:
        SessionFileError: a file holds no session, or a report cannot be written.
    """
    comparison = compare_diagnoses(reports.read(before), reports.read(after))
    for path in outputs:
        reports.write(comparison, path)
    if not outputs:
        show(reports.render_for(comparison, sys.stdout))
    if fail_over is not None and comparison.certainly_slower(fail_over / 100):
        click.echo(f"pipediag: the loop makes over {fail_over:g} % fewer steps/s than before", err=True)
        return EXIT_GATE
    return EXIT_OK

"""Share code between the commands that measure a script: progress on standard error, output, and exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ..errors import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK

if TYPE_CHECKING:
    from ..analysis import Diagnosis
    from ..host.passes import Request
    from ..session import Session


def measure(request: Request) -> Session:
    """Measure the script and show the progress.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    from ..host.endings import files_written
    from ..host.passes import analyze_script
    from ..host.progress import ProgressLine

    progress = ProgressLine()
    try:
        session = analyze_script(request, progress)
    finally:
        progress.clear()
    if session.script.overwrote or (session.script.wrote and not session.anything_seen):
        click.echo(f"pipediag: your script really ran{files_written(session.script)}", err=True)
    return session


def exit_code(session: Session) -> int:
    """Return the script's own exit code if its first run failed; otherwise whether the measurement was interrupted."""
    return session.script.exit_code or (EXIT_INTERRUPTED if session.ended == "interrupted" else EXIT_OK)


def say_how_it_failed(session: Session) -> None:
    """Report how a script failed before anything was measured: in which run, and in its own words."""
    for warning in session.warnings:
        if warning.code == "script-failed":
            click.echo(f"pipediag: {warning.message}, before anything could be measured", err=True)


def gated(code: int, diagnosis: Diagnosis, percent: float | None) -> int:
    """Return the exit code of a command with ``--fail-over``: the gate's code if nothing else failed.

    Args:
        percent: percentage of a step that the input pipeline may cost; None for no gate.
    """
    starved = diagnosis.verdict.starved
    if code or percent is None or starved is None or 100 * starved.low <= percent:
        return code
    click.echo(f"pipediag: input costs more than {percent:g} % of a step", err=True)
    return EXIT_GATE


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

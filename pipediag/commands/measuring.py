"""Measuring a script for a command: progress on standard error meanwhile, and the exit code that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_INTERRUPTED, EXIT_OK
from ..host.script import Target

if TYPE_CHECKING:
    from ..analysis import Diagnosis
    from ..host.passes import Request
    from ..session import Session


def target_of(script: str, args: tuple[str, ...], module: bool, workdir: str | None) -> Target:
    """What to run. A script is looked for from here, wherever it is to run."""
    if workdir is not None and not module:
        script = str(Path(script).resolve())
    return Target(script, list(args), module)


def measure(request: Request) -> Session:
    """Measure the script, showing how far it has come.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    from ..host.passes import analyze_script
    from ..host.progress import ProgressLine

    progress = ProgressLine()
    try:
        return analyze_script(request, progress)
    finally:
        progress.clear()


def exit_code(session: Session) -> int:
    """The script's own exit code if it failed; else whether the measurement was interrupted."""
    return session.script.exit_code or (EXIT_INTERRUPTED if session.ended == "interrupted" else EXIT_OK)


def certainly_over(diagnosis: Diagnosis, percent: float) -> bool:
    """Whether the input pipeline certainly costs more than so many percent of a step."""
    starved = diagnosis.verdict.starved
    return starved is not None and 100 * starved.low > percent

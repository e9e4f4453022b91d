"""Share code between the commands that measure a script: progress on standard error, and exit codes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from ..errors import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from .results import Results, say

if TYPE_CHECKING:
    from ..analysis import Diagnosis
    from ..host.passes import Request
    from ..session import Session


def measure(request: Request, results: Results, announced: bool = False) -> Session:
    """Measure the script and show the progress, which begins with what will happen unless that was ``announced``.

    Where a scheduler starts pipediag in every rank of a job, only the first of a host returns: the others end with it.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    from ..host.endings import files_written
    from ..host.passes import analyze_script
    from ..host.progress import ProgressLine, opening
    from ..host.scheduled import follow, follows
    from ..host.standard_streams import output_beside

    if follows():
        request.target.check()  # as the leader does
        raise SystemExit(follow())
    progress = ProgressLine(None, request.budget + request.apply, results.verbosity < 0)
    if not announced:
        progress.first_words = opening(request)
    with ExitStack() as stack:
        stack.callback(progress.clear)
        if results.json:  # what the script prints is no JSON
            stack.enter_context(output_beside())
        session = analyze_script(request, progress)
    if session.script.overwrote or (session.script.wrote and not session.anything_seen):
        say(f"your script really ran{files_written(session.script)}")
    _hint(request.target.args, session)
    return session


def _hint(args: list[str], session: Session) -> None:
    """Say where an option of ours belongs if the script got it and did not know it."""
    context = click.get_current_context(silent=True)
    ours = {name for one in context.command.params for name in one.opts} if context is not None else set()
    for word in args:
        name = word.partition("=")[0]
        known = name in ours and (name.startswith("--") or name == "-o")
        if known and (session.script.exit_code == EXIT_USAGE or name in session.script.error):
            say(f"{name} stands after the script, so the script got it; pipediag's options stand before the script")
            return


def exit_code(session: Session) -> int:
    """Return the script's own exit code if its first run failed; otherwise whether the measurement was interrupted."""
    return session.script.exit_code or (EXIT_INTERRUPTED if session.ended == "interrupted" else EXIT_OK)


def say_how_it_failed(session: Session) -> None:
    """Report how a script failed before anything was measured: in which run, and in its own words."""
    for warning in session.warnings:
        if warning.code == "script-failed":
            say(f"{warning.message}, before anything could be measured")


def gated(code: int, diagnosis: Diagnosis, percent: float | None) -> int:
    """Return the exit code of a command with ``--fail-over``: the gate's code if nothing else failed.

    Args:
        percent: percentage of a step that the input pipeline may cost; None for no gate.
    """
    starved = diagnosis.verdict.starved
    if code or percent is None or starved is None or 100 * starved.low <= percent:
        return code
    say(f"input costs more than {percent:g} % of a step")
    return EXIT_GATE

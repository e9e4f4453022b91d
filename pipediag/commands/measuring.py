"""Measure a script for a command: progress and hints on standard error, and the exit code."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from ..analysis import Diagnosis
from ..errors import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from ..host import passes
from ..host.endings import files_written
from ..host.progress import ProgressLine, opening
from ..host.scheduled import follow, follows
from ..host.standard_streams import output_beside
from ..session import Session
from .results import Results, say


def measure(request: passes.Request, results: Results, of_a_sweep: bool = False) -> Session:
    """Measure the script and show the progress, from what will happen to how the script failed if it did.

    A sweep announces its runs and reports their failures itself. If a scheduler starts pipediag in every rank of a job,
    this returns only in the first rank of a host; the others exit with it. In a job on several hosts, it returns only
    on the host of rank 0, which reports the ranks of all.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    if follows():
        request.target.check()  # as the leader does
        raise SystemExit(follow())
    progress = ProgressLine(sys.stderr, request.budget + request.apply, results.verbosity < 0)
    if not of_a_sweep:
        progress.first_words = opening(request)
    with ExitStack() as stack:
        stack.callback(progress.clear)
        if results.json:  # what the script prints is no JSON
            stack.enter_context(output_beside())
        session = passes.analyze_script(request, progress)
    if session.script.overwrote or (session.script.wrote and not session.anything_seen):
        say(f"your script really ran{files_written(session.script)}")
    _hint(request.target.args, session)
    if of_a_sweep:
        return session
    failures = [warning.message for warning in session.warnings if warning.code == "script-failed"]
    if not session.anything_seen:
        for failure in failures:
            say(f"{failure}, before anything could be measured")
    elif session.ranks and all(one.rank for one in session.ranks):
        for failure in failures:
            say(failure)
        say("the report of this job is that of the host of rank 0")
        raise SystemExit(exit_code(session))
    return session


def _hint(args: list[str], session: Session) -> None:
    """Say where an option of pipediag belongs if the script got it and did not know it."""
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


def gated(diagnosis: Diagnosis, percent: float | None) -> int:
    """Return the exit code of an analysis with ``--fail-over``: the gate's code if nothing else failed.

    Args:
        percent: percentage of a step that the input pipeline may cost; None for no gate.
    """
    code, starved = exit_code(diagnosis.session), diagnosis.verdict.starved
    if code or percent is None or starved is None or 100 * starved.low <= percent:
        return code
    say(f"data costs more than {percent:g} % of a step")
    return EXIT_GATE

"""Implement ``pipediag sweep``: analyze a script under several settings of its arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from .. import report
from ..analysis import diagnose_session
from ..analysis.sweep import Run, Sweep
from ..errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, NothingMeasured, UsageError
from ..host.passes import Request
from ..host.varying import Setting, grid, parse, with_setting
from .measuring import exit_code, measure, show


def sweep(request: Request, varied: Sequence[str], outputs: Sequence[str]) -> int:
    """Analyze the script of ``request`` once for each combination of the varied arguments, in fresh processes.

    The reports are rewritten after each run, so that an interruption keeps what was measured. A failed run becomes a
    table row that says why, and the others continue.

    Returns:
        0 if anything was measured, 1 if nothing was, and 130 (or 143) after an interruption.

    Raises:
        UsageError: the arguments cannot be varied like that, there is no such script, or a report cannot be written.
    """
    settings = grid([parse(text) for text in varied])
    targets = [replace(request.target, args=with_setting(request.target.args, setting)) for setting in settings]
    request.target.check()
    _say(_announcement(len(settings), request.budget, request.apply))
    found = Sweep(request.target.name, len(settings), [])
    code = EXIT_OK
    try:
        for number, (setting, target) in enumerate(zip(settings, targets, strict=True), 1):
            _say(f"run {number} of {len(settings)}: {' '.join(f'{name}={value}' for name, value in setting)}")
            run, code = _analyzed(replace(request, target=target), setting)
            found.runs.append(run)
            for path in outputs:
                report.write(found, path)
            if run.why_not:
                _say(f"{run.written}: {run.why_not}")
            if code:
                break
    except KeyboardInterrupt:  # between two measurements, or while one was being prepared
        code = EXIT_INTERRUPTED
    finally:
        if found.runs:
            show(report.render_for(found, sys.stdout))
    return code or (EXIT_OK if found.measured else EXIT_FAILED)


def _analyzed(request: Request, setting: Setting) -> tuple[Run, int]:
    """Return one run, and the exit code that ends the sweep after it, or 0 to continue."""
    argv = request.target.argv
    try:
        session = measure(request)
    except (NothingMeasured, UsageError) as error:
        return Run(setting, argv, None, error.exit_code, str(error)), EXIT_OK
    code = exit_code(session)
    diagnosis = diagnose_session(session) if session.anything_seen else None
    if session.ended == "interrupted":
        return Run(setting, argv, diagnosis, code, "interrupted"), code
    why = f"the script ended with exit code {code}{f': {session.script.error}' if session.script.error else ''}"
    return Run(setting, argv, diagnosis, code, why if code else ""), EXIT_OK


def _announcement(runs: int, budget: float, apply: float) -> str:
    """Return the number of runs and their maximum duration as text."""
    most = runs * (budget + apply)
    each = f"{budget:g} s" + (f" and {apply:g} s for the remedy" if apply else "")
    took = f"{most:.0f} s" if most < 120 else f"{most / 60:.0f} min"
    return f"{runs} run{'' if runs == 1 else 's'} of {each} at most: {took}, plus the script's own startup"


def _say(text: str) -> None:
    click.echo(f"pipediag: {text}", err=True)

"""Implement ``pipediag sweep``: analyze a script under several settings of its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from ..analysis.sweep import Run, Sweep
from ..analysis.words import counted
from ..errors import EXIT_BY_SIGNAL, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, NothingMeasured, UsageError
from ..host.passes import Request
from ..host.progress_line import duration, really_runs
from ..session.private import masked, without_values
from .results import Results, exit_code, measure

#: The settings of one run: argument names with their values, in the given order.
Setting = tuple[tuple[str, str], ...]
#: An argument of the script, as written there (``--batch-size``, ``-b``, ``model.width``), and its values.
Varied = tuple[str, tuple[str, ...]]


def sweep(request: Request, varied: Sequence[str], results: Results) -> int:
    """Analyze the script of ``request`` once for each combination of the varied arguments, in fresh processes.

    The reports are rewritten after each run, so that an interruption keeps what was measured. A failed run becomes a
    table row that says why, and the others continue.

    Returns:
        0 if anything was measured, 1 if nothing was, and 130 (or 143) after an interruption.

    Raises:
        UsageError: the arguments cannot be varied like that, or there is no such script.
    """
    settings = grid([parse(text) for text in varied])
    targets = [replace(request.target, args=with_setting(request.target.args, setting)) for setting in settings]
    request.target.check()
    each = f"{request.budget:g} s" + (f" and {request.apply:g} s for the remedy" if request.apply else "")
    took = f"{duration(len(settings) * (request.budget + request.apply))}, plus the script's own start-up"
    results.note(f"{counted(len(settings), 'run')} of {each} at most: {took}; each time {really_runs(request)}")
    name = PurePath(request.target.name).name if results.redact else request.target.name
    found = Sweep(name, len(settings), [])
    code = EXIT_OK
    try:
        for number, (setting, target) in enumerate(zip(settings, targets, strict=True), 1):
            results.note(f"run {number} of {len(settings)}: {' '.join(f'{name}={value}' for name, value in setting)}")
            run, code = _analyzed(replace(request, target=target), setting, results)
            found.runs.append(run)
            results.write(found)
            if run.why_not:
                results.note(f"{run.written}: {run.why_not}")
            if code:
                break
    except KeyboardInterrupt:  # between two measurements, or while one was being prepared
        code = EXIT_INTERRUPTED
    finally:
        if found.runs:
            results.show(found)
    return results.code(code or (EXIT_OK if found.measured else EXIT_FAILED))


def parse(text: str) -> Varied:
    """Parse an argument and its values from ``NAME=VALUE,VALUE,...``.

    Raises:
        UsageError: the name is missing, or a value is empty or repeated.
    """
    name, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not name.strip("-") or not equals or not all(found):
        raise UsageError(f"--vary {text}: give a script argument and its values, as in --vary=--batch-size=16,32")
    if len({*found}) < len(found):
        raise UsageError(f"--vary {text}: a value is repeated")
    return name, found


def grid(varied: Sequence[Varied]) -> list[Setting]:
    """Return every combination of the values; the last argument varies fastest.

    Raises:
        UsageError: an argument is varied twice.
    """
    names = [name for name, _ in varied]
    if len({*names}) < len(names):
        raise UsageError("--vary: give all values of an argument at once, separated by commas")
    columns = [[(name, value) for value in values] for name, values in varied]
    return list(itertools.product(*columns))


def with_setting(args: Sequence[str], setting: Setting) -> list[str]:
    """Return the script's arguments under a setting: replace those that are there, append the others.

    Raises:
        UsageError: an argument is last and has no value to replace.
    """
    changed = list(args)
    for name, value in setting:
        for place in reversed(range(len(changed))):  # if it is repeated, the last one counts for most parsers
            if changed[place].startswith(f"{name}="):
                changed[place] = f"{name}={value}"
                break
            if changed[place] == name and name.startswith("-"):
                if place + 1 == len(changed):
                    raise UsageError(f"--vary {name}=...: {name} has no value among the script's arguments")
                changed[place + 1] = value
                break
        else:
            # A short option takes its value from the next argument: some parsers read -bs=4 as the value "s=4" of -b.
            short = name.startswith("-") and not name.startswith("--")
            changed += [name, value] if short else [f"{name}={value}"]
    return changed


def _analyzed(request: Request, setting: Setting, results: Results) -> tuple[Run, int]:
    """Return one run, and the exit code that ends the sweep after it, or 0 to continue."""
    argv = without_values(request.target.argv) if results.redact else masked(request.target.argv)
    try:
        session = measure(request, results, of_a_sweep=True)
    except (NothingMeasured, UsageError) as error:
        return Run(setting, argv, None, error.exit_code, str(error)), EXIT_OK
    code = exit_code(session)
    diagnosis = results.diagnosed(session) if session.anything_seen else None
    if session.ended == "interrupted":
        return Run(setting, argv, diagnosis, code, "interrupted"), code
    failure = session.script.error
    if code > EXIT_BY_SIGNAL and not failure:  # a signal ended it
        failures = (warning.message for warning in session.warnings if warning.code == "script-failed")
        failure = next(failures, "").partition(" run: ")[2]
    why = f"the script ended with exit code {code}{f': {failure}' if failure else ''}" if code else ""
    return Run(setting, argv, diagnosis, code, why), EXIT_OK

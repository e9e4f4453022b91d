"""Define pipediag's errors, each with an exit code and a message that says what to do next; check callers' numbers."""

from __future__ import annotations

import math
import numbers
import sys
from typing import Any

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GATE = 3
EXIT_BY_SIGNAL = 128  # plus the signal's number, as shells report a program that a signal ended
EXIT_INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


class PipediagError(Exception):
    """Base class of the errors that pipediag reports to its user in one line."""

    exit_code = EXIT_FAILED


class UsageError(PipediagError):
    """A command or call that cannot be carried out as written."""

    exit_code = EXIT_USAGE


class PlanRefused(UsageError):
    """A saved plan that does not fit the run it is given to."""


class NothingMeasured(PipediagError):
    """A script or loop that ended before any ladder window or training step was measured."""


class SessionFileError(PipediagError):
    """A saved session that cannot be read, or a report that cannot be written."""

    exit_code = EXIT_USAGE


class RunOver(BaseException):
    """Raised into a script that ``pipediag run`` cannot continue, with the message and the exit code of ``reason``.

    A training loop's ``except Exception`` does not catch a ``BaseException``.
    """

    def __init__(self, reason: PipediagError) -> None:
        super().__init__(str(reason))
        self.exit_code = reason.exit_code


class AnalysisOver(BaseException):
    """Raised out of ``next()`` when the measurement is complete.

    It is a ``BaseException`` so that a training loop's ``except Exception`` does not catch it. Frameworks log it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"pipediag ends the script here, its measurement is over ({self.reason})"


def analysis_over(reason: str) -> AnalysisOver:
    """Return the exception that ends the script. pytest ends at its own kind only; others are failures of a test."""
    outcomes = sys.modules.get("_pytest.outcomes")
    if outcomes is None:
        return AnalysisOver(reason)

    class PytestOver(AnalysisOver, outcomes.Exit):  # type: ignore[misc, name-defined]
        def __init__(self, reason: str) -> None:
            super().__init__(reason)
            self.msg, self.returncode = str(self), EXIT_OK

    return PytestOver(reason)


def positive(name: str, value: Any, unit: str) -> float:
    """Return the value if it is a positive, finite number; ``unit`` is for the message.

    Raises:
        UsageError: it is not. A bool is no number here.
    """
    if _is(numbers.Real, value) and math.isfinite(value) and value > 0:
        return float(value)
    raise UsageError(f"{name} is in {unit} and must be positive and finite, not {value!r}")


def at_least(least: int, name: str, value: Any) -> int:
    """Return the value if it is a whole number of at least ``least``.

    Raises:
        UsageError: it is not. A bool is no number here.
    """
    if _is(numbers.Integral, value) and value >= least:
        return int(value)
    raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)

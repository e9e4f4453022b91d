"""Typed errors. Each carries the exit code of the command line and a message that says what to do next."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GATE = 3
EXIT_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


class PipediagError(Exception):
    """Anything pipediag itself reports to its user in one line."""

    exit_code = EXIT_FAILED


class UsageError(PipediagError):
    """The command or call cannot be carried out as it was written."""

    exit_code = EXIT_USAGE


class PlanRefused(UsageError):
    """A saved plan was made for something else than what is to be run."""


class NothingMeasured(PipediagError):
    """The script or loop ended, and neither a window of the ladder nor a training step was seen."""


class SessionFileError(PipediagError):
    """A saved session cannot be read, or a report cannot be written."""


class RunOver(BaseException):
    """Raised into a script that ``pipediag run`` cannot go on with, for ``reason``.

    A ``BaseException``, so that a training loop's ``except Exception`` lets it pass.
    """

    def __init__(self, reason: PipediagError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class AnalysisOver(BaseException):
    """Raised out of ``next()`` when the measurement is complete.

    A ``BaseException``, so that a training loop's ``except Exception`` lets it pass.
    """

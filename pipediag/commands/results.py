"""Deliver the result of a command: write its files first, then print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import report
from ..errors import EXIT_FAILED, EXIT_OK, SessionFileError
from ..host.standard_streams import put
from ..report.terminal import printable
from ..session import Session
from ..session.private import redacted


@dataclass
class Results:
    """The outputs that the user asked for.

    Attributes:
        files: files to write; the ending of each chooses its format.
        json: print JSON in place of the screen.
        verbosity: negative for the answer alone, positive for the whole report.
        failed: outputs whose last attempt failed.
        redact: leave out what names the user and the code.
    """

    files: Sequence[str] = ()
    json: bool = False
    verbosity: int = 0
    failed: set[str] = field(default_factory=set)
    redact: bool = False

    def reported(self, session: Session) -> Session:
        """Return what the reports may say of a session."""
        return redacted(session) if self.redact else session

    def write(self, subject: report.Subject) -> None:
        """Write each file, even if another cannot be written."""
        for path in self.files:
            try:
                report.write(subject, path)
                self.failed.discard(path)
            except SessionFileError as error:
                self.fail(path, str(error))

    def show(self, subject: report.Subject) -> None:
        """Print the screen, or JSON. A reader that leaves early, as ``head`` does, is no failure."""
        shown = report.render_json(subject) if self.json else report.screen_for(subject, sys.stdout, self.verbosity)
        error = put(shown, sys.stdout)
        if error is not None and not isinstance(error, BrokenPipeError):
            self.fail("standard output", f"standard output could not be written ({error.strerror})")

    def fail(self, path: str, why: str) -> None:
        """Say why a file could not be written, and let the command fail at its end."""
        self.failed.add(path)
        say(why)

    def deliver(self, subject: report.Subject) -> None:
        """Write all files, then print."""
        self.write(subject)
        self.show(subject)

    def convert(self, subject: report.Subject) -> None:
        """Write all files, and print if there are none or JSON was asked for."""
        self.write(subject)
        if self.json or not self.files:
            self.show(subject)

    def note(self, text: str) -> None:
        """Print a line about the progress, unless only the answer was asked for."""
        if self.verbosity >= 0:
            say(text)

    def code(self, code: int) -> int:
        """Return ``code``, or that of a failure if it is 0 and a file could not be written."""
        return code or (EXIT_FAILED if self.failed else EXIT_OK)


def say(text: str) -> None:
    """Print one line for the user on standard error, if it can be printed."""
    put(f"pipediag: {printable(text)}\n", sys.stderr)

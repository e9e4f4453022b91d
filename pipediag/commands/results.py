"""Measure a script for a command with progress and hints, and deliver the result: write its files, then print."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import click

from .. import report
from ..analysis import Diagnosis, diagnose_session
from ..analysis.audit import Audit
from ..errors import EXIT_FAILED, EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, SessionFileError
from ..host import passes
from ..host.endings import files_written
from ..host.progress_line import ProgressLine, opening
from ..host.scheduled import follow, follows
from ..host.standard_streams import output_beside, put
from ..report import history
from ..report.terminal import fresh_line, printable
from ..session import Session
from ..session.private import redacted
from ..session.remedies import listed


@dataclass
class Results:
    """The outputs that the user asked for."""

    files: Sequence[str] = ()  # files to write; the ending of each chooses its format
    json: bool = False  # print JSON in place of the screen
    verbosity: int = 0  # negative for the answer alone, positive for the whole report
    failed: set[str] = field(default_factory=set)  # outputs whose last attempt failed
    redact: bool = False  # leave out what names the user and the code
    save: bool = False  # keep diagnoses for ``pipediag report`` and ``compare``
    kept: bool = False  # the result on the screen was kept

    def diagnosed(self, session: Session, price: float | None = None) -> Diagnosis:
        """Return the diagnosis of what the reports may say of a session."""
        return diagnose_session(redacted(session) if self.redact else session, price)

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
        shown = (
            report.render_json(subject)
            if self.json
            else report.screen_for(subject, sys.stdout, self.verbosity, self.kept)
        )
        error = put(fresh_line(sys.stdout) + shown, sys.stdout)
        if error is not None and not isinstance(error, BrokenPipeError):
            self.fail("standard output", f"standard output could not be written ({error.strerror})")

    def fail(self, path: str, why: str) -> None:
        """Say why a file could not be written, and let the command fail at its end."""
        self.failed.add(path)
        say(why)

    def deliver(self, subject: Diagnosis | Audit) -> None:
        """Write all files, keep the diagnosis, then print."""
        self.write(subject)
        if self.save:
            try:
                history.keep(subject.diagnosis if isinstance(subject, Audit) else subject)
                self.kept = isinstance(subject, Diagnosis)
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                self.note(f"the result was not kept ({where}{error.strerror}): -o FILE.json saves it")
        self.show(subject)

    def convert(self, subject: report.Subject) -> None:
        """Write all files, and print if there are none or JSON was asked for."""
        self.write(subject)
        if self.json or not self.files:
            self.show(subject)
        elif written := [path for path in self.files if path not in self.failed]:
            self.note(f"wrote {', '.join(written)}")

    def note(self, text: str) -> None:
        """Print a line about the progress, unless only the answer was asked for."""
        if self.verbosity >= 0:
            say(text)

    def code(self, code: int) -> int:
        """Return ``code``, or that of a failure if it is 0 and a file could not be written."""
        return code or (EXIT_FAILED if self.failed else EXIT_OK)


def say(text: str) -> None:
    """Print one line for the user on standard error, if it can be printed."""
    put(f"{fresh_line(sys.stderr)}pipediag: {printable(text)}\n", sys.stderr)


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
        progress.first_words = opening(request, history.written_by(request.target.argv))
    with ExitStack() as stack:
        stack.callback(progress.clear)
        if results.json:  # what the script prints is no JSON
            stack.enter_context(output_beside())
        session = passes.analyze_script(request, progress)
    if session.script.overwrote or (session.script.wrote and not session.anything_seen):
        say(f"your script really ran{files_written(session.script)}")
    _hint(request.target.args, session)
    _hint_of_folder(request.workdir, session.script.error)
    if of_a_sweep:
        return session
    failures = [warning.message for warning in session.warnings if warning.code == "script-failed"]
    if not session.anything_seen:
        for failure in failures:
            say(f"{failure}; nothing could be measured")
    elif session.ranks and all(one.rank for one in session.ranks):
        for failure in failures:
            say(failure)
        say("the report of this job is that of the host of rank 0")
        raise SystemExit(exit_code(session))
    return session


def _hint(args: list[str], session: Session) -> None:
    """Say where options of pipediag belong if the script got them and did not know one."""
    context = click.get_current_context(silent=True)
    ours = {name for one in context.command.params for name in one.opts} if context is not None else set()
    names = [name for word in args if (name := word.partition("=")[0]) in ours and (name[:2] == "--" or name == "-o")]
    if session.script.exit_code != EXIT_USAGE:
        names = [name for name in names if name in session.script.error]
    if names:
        verb, it = ("stands", "it") if len(names) == 1 else ("stand", "them")
        behind = f"{listed(names)} {verb} after the script, so the script got {it}"
        say(f"{behind}; pipediag's options stand before the script")


def _hint_of_folder(workdir: str | None, error: str) -> None:
    """Say why the script does not find a file that is in this folder: under ``--workdir`` it runs in another one."""
    names = [name for name in re.findall(r"'([^']+)'", error) if not os.path.isabs(name) and os.path.exists(name)]
    if workdir is not None and error.startswith(FileNotFoundError.__name__) and names:
        say(f"{names[0]} is not in {workdir}, where --workdir runs the script: link it there, or use absolute paths")


def exit_code(session: Session) -> int:
    """Return the script's own exit code if its first run failed; otherwise whether the measurement was interrupted."""
    return session.script.exit_code or (EXIT_INTERRUPTED if session.ended == "interrupted" else EXIT_OK)


def gated(diagnosis: Diagnosis, percent: float | None) -> int:
    """Return the exit code: the gate's if nothing else failed and data certainly costs over ``percent`` of a step."""
    code, starved = exit_code(diagnosis.session), diagnosis.verdict.starved
    if code or percent is None or starved is None or 100 * starved.low <= percent:
        return code
    say(f"data costs more than {percent:g} % of a step")
    return EXIT_GATE

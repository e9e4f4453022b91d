"""One fault: what goes wrong, under which command, at which moment, and what must come of it; and how it is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import Lay
from .leaks import PIPEDIAG, REPO

SCRIPTS = Path(__file__).parent / "scripts"
TRAINS, PROGRAMS = str(SCRIPTS / "trains.py"), str(SCRIPTS / "programs.py")
#: Where commands write what they are asked for, in the folder that they run in.
REPORT, PLAN, TRACE = "results/report.json", "results/plan.json", "results/trace.json"
#: In place of the path of the file that a row lays.
GIVEN = "{given}"

# What must be on disk afterwards
NOTHING = "no report"
MEASURED = "a report of what was measured"
COMPLETE = "a report of a complete measurement"
EARLIER = "the earlier report"
PARTS = "a table of all variants"


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        kind: what goes wrong.
        command: column of the table.
        moment: when it goes wrong.
        argv: the whole command line; GIVEN stands for the path that ``lays`` returns.
        code: exit code; negative for the number of a signal.
        says: pattern of the line that says what happened; empty if the process can say nothing.
        keeps: what must be on disk.
        lays: lays a file, and returns its path.
        within: command that starts the command: closes a stream, limits files, mounts a full disk.
        alone: True if that line is all that may stand on standard error.
        quick: True if CI runs it.
    """

    kind: str
    command: str
    moment: str
    argv: tuple[str, ...]
    code: int
    says: str
    keeps: str = NOTHING
    lays: Lay | None = None
    within: tuple[str, ...] = ()
    alone: bool = False
    quick: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.command.replace(' --', '-')}-{self.moment}".replace(" ", "-")


# How a command is started


def shell(line: str) -> tuple[str, ...]:
    """Run a line of bash, in which ``"$@"`` is the command."""
    return ("bash", "-c", line, "bash")


NO_INPUT, NO_OUTPUT, NO_ERRORS = (shell(f'"$@" {closed}') for closed in ("<&-", ">&-", "2>&-"))
NO_STREAMS = shell('"$@" <&- >&- 2>&-')
FULL_OUTPUT = shell('"$@" >/dev/full')
FULL_ERRORS = shell('"$@" 2>/dev/full')
BROKEN_PIPE = shell('"$@" | true; exit ${PIPESTATUS[0]}')
#: A pipe without a reader in place of the report.
UNREAD = shell('mkfifo results/report.html; "$@"; code=$?; rm results/report.html; exit $code')
#: As under a supervisor that does not wait for its children.
CHILDREN_IGNORED = (
    *(sys.executable, "-c"),
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])",
)
#: As many open files as the plain script needs.
FEW_DESCRIPTORS = shell('ulimit -n 24; "$@"')
#: Too few to start the script.
NO_DESCRIPTORS = shell('ulimit -n 6; "$@"')
#: Files of 4 kB at most.
SHORT_FILES = shell('ulimit -f 4; "$@"')
#: A disk of 16 kB where the results are written. What is on it afterwards is listed.
FULL_DISK = (
    "unshare", "-rm",
    *shell('mount -t tmpfs -o size=16k tmpfs results && "$@"; code=$?; echo "on disk:" $(ls -A results); exit $code'),
)  # fmt: skip
READ_ONLY_DISK = ("unshare", "-rm", *shell('mount -t tmpfs -o ro tmpfs results && "$@"'))
#: A scratch disk that is full.
FULL_SCRATCH = ("unshare", "-rm", *shell('mount -t tmpfs -o size=4k,nr_inodes=2 tmpfs $TMPDIR && "$@"'))
#: As a user who may not read everything: root may, unless the files' owner is unknown in its user namespace.
AS_ANYBODY = ("unshare", "-r") if os.geteuid() == 0 else ()


def when(signal: str, event: str, name: str) -> tuple[str, ...]:
    """Send the command a signal at an event of Python's; see ``scripts/hooked``."""
    return (
        "env",
        f"PYTHONPATH={SCRIPTS / 'hooked'}:{REPO}",
        f"PIPEDIAG_FAULTS_WHEN={signal}:{event}:{name}",
    )


# Command lines

LADDER = ("--rungs", "device,baseline")
OPTIONS = {
    "analyze": ("analyze", "--budget", "6", "--no-knobs", *LADDER, "-o", REPORT),
    "analyze --apply": (
        *("analyze", "--budget", "6", "--no-knobs", *LADDER, "--apply", "--apply-budget", "40"),
        *("--plan", PLAN, "-o", REPORT),
    ),
    "run": ("run",),
    "audit": ("audit", "--budget", "6", "-o", REPORT),
    "sweep": ("sweep", "--vary=--rate=0.1,0.2", "--budget", "2", *LADDER, "-o", REPORT),
}


def pipediag(*arguments: str) -> tuple[str, ...]:
    return (*PIPEDIAG, *arguments)


def trained(command: str, *arguments: str, options: Iterable[str] = ()) -> tuple[str, ...]:
    """The planted script under a command."""
    moves = ("--vision",) if command in ("analyze --apply", "run") else ()
    if command == "run" and not any(one.startswith(("--steps", "--samples")) for one in arguments):
        moves += ("--samples=2000",)
    return pipediag(*OPTIONS[command], *options, TRAINS, *moves, *arguments)


def planted(
    command: str, kind: str, moment: str, code: int, says: str, keeps: str = NOTHING, *more: str, quick: bool = False
) -> Fault:
    """A fault of the planted script."""
    ends = command in ("analyze", "audit") and keeps != COMPLETE and not kind.endswith("hangs")
    options = ("--budget", "30") if ends else ()  # on a busy machine the moment may come late
    if command == "analyze --apply" and keeps == COMPLETE:
        options = ("--apply-budget", "10")
    argv = trained(command, f"--fault={kind}", f"--at={moment}", *more, options=options)
    return Fault(kind, command, moment, argv, code, says, keeps, quick=quick)


#: Commands that only read, with their arguments.
READING = {"report": (GIVEN,), "compare": (GIVEN, GIVEN)}

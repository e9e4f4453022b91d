"""The table of faults: what goes wrong, under which command, at which moment, and what must come of it.

Each row is a test, ``kind-command-moment``; :mod:`.carried_out` carries it out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .files import BAD_PLANS, BAD_SESSIONS, Lay, at, denied, denied_folder, session, text
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

_SIGNALS = {"SIGINT": 2, "SIGINT-twice": 2, "SIGTERM": 15, "SIGHUP": 1, "SIGKILL": 9}


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

    @property
    def kills_the_command(self) -> bool:
        """True if pipediag's process had no moment to clean up."""
        return self.code == -9


# How a command is started


def shell(line: str) -> tuple[str, ...]:
    """Run a line of bash, in which ``"$@"`` is the command."""
    return ("bash", "-c", line, "bash")


NO_INPUT, NO_OUTPUT, NO_ERRORS = (shell(f'"$@" {closed}') for closed in ("<&-", ">&-", "2>&-"))
NO_STREAMS = shell('"$@" <&- >&- 2>&-')
FULL_OUTPUT = shell('"$@" >/dev/full')
FULL_ERRORS = shell('"$@" 2>/dev/full')
BROKEN_PIPE = shell('"$@" | true; exit ${PIPESTATUS[0]}')
BROKEN_ERRORS = shell('("$@" 3>&2 2>&1 >&3 | true; exit ${PIPESTATUS[0]})')
#: Files of 4 kB at most.
SHORT_FILES = shell('ulimit -f 4; "$@"')
#: A disk of 16 kB where the results are written. What is on it afterwards is listed.
FULL_DISK = (
    "unshare", "-rm",
    *shell('mount -t tmpfs -o size=16k tmpfs results && "$@"; code=$?; echo "left: $(ls -A results)"; exit $code'),
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

_LADDER = ("--rungs", "device,baseline")
_OPTIONS = {
    "analyze": ("analyze", "--budget", "3", "--no-knobs", *_LADDER, "-o", REPORT),
    "analyze --apply": (
        *("analyze", "--budget", "2", "--no-knobs", *_LADDER, "--apply", "--apply-budget", "8"),
        *("--plan", PLAN, "-o", REPORT),
    ),
    "run": ("run",),
    "audit": ("audit", "--budget", "3", "-o", REPORT),
    "sweep": ("sweep", "--vary=--rate=0.1,0.2", "--budget", "2", *_LADDER, "-o", REPORT),
}


def pipediag(*arguments: str) -> tuple[str, ...]:
    return (*PIPEDIAG, *arguments)


def trained(command: str, *arguments: str, options: Iterable[str] = ()) -> tuple[str, ...]:
    """The planted script under a command."""
    moves = ("--vision",) if command in ("analyze --apply", "run") else ()
    return pipediag(*_OPTIONS[command], *options, TRAINS, *moves, *arguments)


def planted(
    command: str, kind: str, moment: str, code: int, says: str, keeps: str = NOTHING, *more: str, quick: bool = False
) -> Fault:
    """A fault of the planted script."""
    argv = trained(command, f"--fault={kind}", f"--at={moment}", *more)
    return Fault(kind, command, moment, argv, code, says, keeps, quick=quick)


# Rows: the script ends

#: Kind, exit code, and what the script or pipediag says of it.
_ENDINGS = [
    ("raises", 1, "LookupError: the planted error"),
    ("memory-error", 1, "MemoryError: the planted shortage"),
    ("recursion", 1, "RecursionError: maximum recursion depth exceeded"),
    ("exit-3", 3, "it ended with exit code 3"),
    ("exit-words", 1, "the planted farewell"),
    ("os-exit", 5, "it ended with exit code 5"),
    ("abort", 134, "it was killed by SIGABRT"),
    ("segfault", 139, "it was killed by SIGSEGV, by an error in native code"),
    ("killed", 137, "it was killed by SIGKILL, as by the kernel if memory runs out"),
]
#: Moments of an analysis; kinds that come at all of them, the others at the first and the fourth.
_MOMENTS = ("import", "first-batch", "settling", "window", "device")
_OFTEN = ("raises", "exit-3", "killed")
_QUICK = {("raises", "import"), ("killed", "import"), ("exit-3", "window")}


def _script_ends() -> Iterator[Fault]:
    for kind, code, says in _ENDINGS:
        for moment in _MOMENTS if kind in _OFTEN else _MOMENTS[::3]:
            keeps = NOTHING if moment in ("import", "first-batch") else MEASURED
            said = f"failed in its 1st run: {says}"
            yield planted("analyze", kind, moment, code, said, keeps, quick=(kind, moment) in _QUICK)
        for moment in ("import", "training"):
            own = says if code in (1,) else ""
            quick = (kind, moment) == ("raises", "import")
            yield planted("run", kind, moment, 128 - code if code > 128 else code, own, quick=quick)
    for kind, code, says in (one for one in _ENDINGS if one[0] in ("raises", "killed")):
        for moment in ("import", "first-batch", "window"):
            keeps = MEASURED if moment == "window" else NOTHING
            yield planted("audit", kind, moment, code, f"failed in its 1st run: {says}", keeps)
        for moment in ("import", "window"):
            yield planted("sweep", kind, moment, 0, says, PARTS, "--only=0.1")
    for kind, code, says in (one for one in _ENDINGS if one[0] in ("raises", "killed")):
        # The training does not use the remedy, or not to its end: what was measured before is reported.
        yield planted("analyze --apply", kind, "window", code, f"failed in its 1st run: {says}", MEASURED)
    for command in ("analyze", "audit"):
        yield planted(command, "asks", "import", 1, "EOFError: EOF when reading a line")
        yield planted(command, "interrupted", "import", 130, "")
    yield planted("analyze", "interrupted", "window", 130, "", MEASURED)
    yield planted("run", "asks", "import", 1, "EOFError: EOF when reading a line")
    yield planted("run", "interrupted", "training", -2, "KeyboardInterrupt")


# Rows: signals

#: Left out: they take as long as any, and the next moment shows as much.
_RARELY = {("settling", "SIGINT-twice"), ("settling", "SIGTERM"), ("settling", "SIGHUP"), ("device", "SIGINT-twice")}


def _signals() -> Iterator[Fault]:
    for kind, number in _SIGNALS.items():
        killed = kind == "SIGKILL"
        code = -9 if killed else 128 + number
        for moment in _MOMENTS:
            if (moment, kind) in _RARELY:
                continue
            keeps = NOTHING if killed or moment in ("import", "first-batch") else MEASURED
            quick = (kind, moment) in (("SIGTERM", "import"), ("SIGINT", "window"))
            yield planted("analyze", kind, moment, code, "", keeps, quick=quick)
        for moment in ("certification", "trial")[: 1 + (kind in ("SIGINT", "SIGTERM", "SIGKILL"))]:
            yield planted("analyze --apply", kind, moment, code, "", NOTHING if killed else MEASURED)
        for moment in ("import", "certification", "training"):
            yield planted("run", kind, moment, -number, "KeyboardInterrupt" if number == 2 else "")
        if kind not in ("SIGINT", "SIGTERM"):
            continue
        for moment in ("import", "window"):
            yield planted("audit", kind, moment, code, "", MEASURED if moment == "window" else NOTHING)
        yield planted("sweep", kind, "window", code, "", MEASURED, "--only=0.2")
    for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"):
        code = 130 if number == "SIGINT" else -_SIGNALS[number]
        for command, arguments in _READING.items():
            argv = pipediag(command, *arguments, "-o", "results/again.html")
            events = {"import": ("import", "pipediag.report"), "reading": ("open", "given"), "writing": ("open", ".pipediag-")}
            for moment, event in events.items():
                yield Fault(
                    number, command, moment, argv, code, "", lays=text(session), within=when(number, *event),
                    quick=number == "SIGINT" and moment == "reading",
                )  # fmt: skip
    for number, code in (("SIGINT", 130), ("SIGTERM", -15), ("SIGKILL", -9)):
        yield Fault(
            number, "analyze", "writing", trained("analyze"), code, "", within=when(number, "open", "results/.pipediag-")
        )  # fmt: skip


_READING = {"report": (GIVEN,), "compare": (GIVEN, GIVEN)}


# Rows: what makes the samples


def _datasets() -> Iterator[Fault]:
    for moment in ("first-batch", "window"):
        keeps = NOTHING if moment == "first-batch" else MEASURED
        failed = "failed in its 1st run: "
        rows = [
            ("dataset-raises", 1, "LookupError: the planted error"),
            ("dataset-memory-error", 1, "MemoryError: the planted shortage"),
            ("dataset-none", 1, "TypeError"),
            ("dataset-text", 1, "TypeError|ValueError|RuntimeError|AttributeError"),
            ("dataset-sizes", 1, "RuntimeError: stack expects each tensor to be equal size"),
            ("worker-killed", 1, "a DataLoader worker was killed by SIGKILL, as by the kernel if memory runs out"),
            ("worker-bus-error", 1, "a DataLoader worker was killed"),
            ("worker-exits", 1, "a DataLoader worker was killed, or ended by itself"),
            ("worker-os-exit", 1, "a DataLoader worker was killed, or ended by itself"),
        ]
        for kind, code, says in rows:
            quick = kind == "worker-killed" and moment == "first-batch"
            yield planted("analyze", kind, moment, code, f"{failed}({says})", keeps, quick=quick)
    for moment in ("first-batch", "training"):
        for kind, says in (
            ("dataset-raises", "LookupError: the planted error"),
            ("dataset-memory-error", "MemoryError: the planted shortage"),
            ("dataset-none", "TypeError"),
            ("worker-killed", "is killed by signal: Killed|exited unexpectedly"),
            ("worker-os-exit", "exited unexpectedly"),
        ):
            yield planted("run", kind, moment, 1, says)
    yield planted("run", "dataset-raises", "certification", 0, "LookupError: the planted error")
    yield planted("run", "worker-killed", "certification", 0, "killed|ended the process")
    for kind, says in (("dataset-raises", "LookupError: the planted error"), ("worker-killed", "ended the process")):
        yield planted("analyze --apply", kind, "certification", 0, says, COMPLETE)
    yield planted("analyze", "dataset-hangs", "first-batch", 1, "waited|hangs|asked for no batch")
    yield planted("analyze", "dataset-hangs", "window", 0, "a DataLoader worker hangs", MEASURED)
    yield planted("analyze", "hangs", "window", 0, "had to be ended", MEASURED)
    for command in ("analyze", "audit", "run"):
        keeps = NOTHING
        for broken, says in (
            ("all", "LookupError: the planted error"),
            ("collate", "LookupError: the planted error"),
            ("init", "LookupError: the planted error"),
        ):
            argv = trained(command, f"--broken={broken}")
            yield Fault(f"{broken} broken", command, "first-batch", argv, 1, says, keeps)
    yield Fault("all broken", "analyze", "first-batch, no workers", trained("analyze", "--broken=all", "--workers=0"), 1,
                "failed in its 1st run: LookupError: the planted error")  # fmt: skip


def _loops() -> Iterator[Fault]:
    """Loops that give little to measure, or nothing."""
    for command, few in (("analyze", 5), ("audit", 2)):
        loops: list[tuple[str, tuple[str, ...], int, str, str]] = [
            ("empty dataset", ("--broken=empty",), 1, "gave no batch: its dataset is empty", NOTHING),
            ("no loader", ("--no-loader",), 1, "iterated no torch DataLoader", NOTHING),
            ("no training", ("--no-training",), 0, "no optimizer stepped", COMPLETE),
            ("one step", ("--steps=1",), 1, "too few to measure", NOTHING),
            ("endless", ("--epochs=1000000",), 0, "", COMPLETE),
        ]
        for kind, arguments, code, says, keeps in loops[:few]:
            yield Fault(kind, command, "training", trained(command, *arguments), code, says, keeps)
    for kind, arguments in (
        ("one-batch epochs", ("--samples=8", "--epochs=100000")),
        ("stream", ("--broken=stream",)),
        ("no workers", ("--workers=0",)),
    ):
        yield Fault(kind, "analyze", "training", trained("analyze", *arguments), 0, "", COMPLETE)
    argv = pipediag(*_OPTIONS["analyze"][:4], "--rungs", "device,raw,baseline", "-o", REPORT, TRAINS, "--broken=replay")
    yield Fault("replay broken", "analyze", "raw", argv, 0, "LookupError: the planted error|raw", COMPLETE)
    for kind, arguments, says in (
        ("empty dataset", ("--broken=empty",), "nothing was moved"),
        ("no loader", ("--no-loader",), "iterated no torch DataLoader"),
        ("no training", ("--no-training", "--steps=20"), "moved|nothing"),
        ("one step", ("--steps=1",), ""),
        ("one-batch epochs", ("--samples=8", "--epochs=20"), "moved"),
        ("stream", ("--broken=stream", "--steps=20"), "iterable dataset"),
        ("no workers", ("--workers=0", "--steps=20"), "moved"),
    ):
        yield Fault(kind, "run", "training", trained("run", *arguments), 0, says)


# Rows: what a script may do without ending


def _behaviours() -> Iterator[Fault]:
    for kind in (
        "changes-folder", "removes-folder", "closes-descriptors", "closes-streams", "no-streams", "own-handlers",
        "clears-environment", "forks", "daemon", "leaves-process",
    ):  # fmt: skip
        yield planted("analyze", kind, "import", 0, "", COMPLETE)
    for kind in ("no-streams", "own-handlers", "daemon"):
        yield planted("analyze", kind, "window", 0, "", COMPLETE)
    for kind in ("closes-descriptors", "removes-folder"):
        yield planted("analyze", kind, "settling", 0, "", MEASURED)
    for kind in ("changes-folder", "no-streams", "own-handlers", "clears-environment", "forks"):
        yield planted("run", kind, "training", 0, "", NOTHING, "--steps=40")
    yield planted("analyze", "forks-and-exits", "window", 0, "", MEASURED)
    yield planted("analyze", "forks-and-raises", "window", 0, "", COMPLETE)
    yield planted("analyze", "few-files", "window", 1, "Too many open files|OSError", MEASURED)
    yield planted("analyze", "no-excepthook", "window", 1, "LookupError: the planted error", MEASURED)
    yield planted("analyze", "scratch-removed", "window", 0, "", COMPLETE)
    yield planted("run", "few-files", "training", 1, "Too many open files|OSError")
    yield planted("run", "no-excepthook", "training", 1, "LookupError: the planted error")


# Rows: scripts that are none


def _no_scripts() -> Iterator[Fault]:
    scripts: list[tuple[str, Lay, int, str]] = [
        ("no such script", at("none.py"), 2, "no such script: none.py"),
        ("script is a folder", at("results"), 2, "is a directory; give a script"),
        ("script is binary", text(bytes(range(1, 256))), 1, "SyntaxError|ValueError"),
        ("script with null bytes", text(b"x = 1\0\n"), 1, "SyntaxError|ValueError"),
        ("syntax error", text("def f(:\n"), 1, "SyntaxError: invalid syntax"),
        ("import error", text("import no_such_module\n"), 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("empty script", text(""), 1, "iterated no torch DataLoader"),
        ("script of somebody else", denied, 1, "PermissionError"),
        ("no such module", at("-m"), 2, "no runnable module named no.such_one"),
    ]
    for command in ("analyze", "run", "audit", "sweep"):
        for kind, lays, code, says in scripts:
            more = ("no.such_one",) if kind == "no such module" else ()
            argv = pipediag(*_OPTIONS[command], GIVEN, *more)
            within = AS_ANYBODY if lays is denied else ()
            keeps = NOTHING
            if command == "sweep" and code == 1:
                keeps = PARTS
            if command == "run" and kind == "empty script":
                code = 0
            quick = kind in ("no such script", "script is a folder", "no such module", "syntax error")
            quick = quick and not (command == "sweep" and keeps == PARTS)
            yield Fault(kind, command, "import", argv, code, says, keeps, lays, within, quick=quick)


# Rows: options


def _options() -> Iterator[Fault]:
    budgets = {
        "not-a-number": (("--budget", "nan"), "nan is not a finite number"),
        "infinite": (("--budget", "inf"), "inf is not a finite number"),
        "negative": (("--budget", "-1"), "not in the range x>=1"),
        "text": (("--budget", "long"), "'long' is not a valid float"),
        "no-value": (("--budget",), "requires an argument"),
        "unknown-option": (("--no-such-option",), "no such option: --no-such-option"),
        "unknown-ending": (("-o", "report.xyz"), "report.xyz"),
        "no-folder": (("-o", "none/report.json"), "none/report.json: cannot be written .No such file"),
        "folder-as-file": (("-o", "results"), "results"),
        "loader-0": (("--loader", "0"), "not in the range x>=1"),
        "loader-text": (("--loader", "first"), "not a valid int"),
        "no-workdir": (("--workdir", "none"), "'none' does not exist"),
        "workdir-is-file": (("--workdir", "model.pt"), "is a file"),
    }
    gates = {
        "gate-nan": (("--fail-over", "nan"), "nan is not a finite number"),
        "gate-101": (("--fail-over", "101"), "not in the range"),
    }
    prices = {
        "price-0": (("--price", "0"), "not in the range"),
        "price-infinite": (("--price", "inf"), "not in the range|not a finite number"),
    }
    rungs = {
        "unknown-rung": (("--rungs", "wheel"), "--rungs: wheel; known: "),
        "no-rungs": (("--rungs", ","), "--rungs: none given"),
    }
    given = {
        "analyze": {
            **budgets, **gates, **prices, **rungs,
            "plan-alone": (("--plan", PLAN), "--plan saves the remedy that --apply measures: give both"),
            "approximate-alone": (("--approximate",), "--approximate changes the remedy that --apply measures"),
            "no-folder-of-plan": (("--apply", "--plan", "none/p.json"), "--plan none/p.json: cannot be written"),
            "no-folder-of-trace": (("--profile", "none/t.json"), "none/t.json: cannot be written"),
            "apply-budget-nan": (("--apply-budget", "nan"), "nan is not a finite number"),
        },
        "audit": {**budgets, **gates, **prices},
        "sweep": {
            **budgets, **rungs,
            "vary-nothing": (("--vary=",), "--vary : give a script argument"),
            "vary-twice": (("--vary=--rate=1,2", "--vary=--rate=3"), "give all values of an argument at once"),
            "vary-repeated": (("--vary=--size=1,1",), "a value is repeated"),
        },
        "run": {
            "plan-and-approximate": (("--plan", "p.json", "--approximate"), "leave out --approximate"),
            "unknown-option": (("--no-such-option",), "no such option: --no-such-option"),
            "no-value": (("--plan",), "requires an argument"),
        },
    }  # fmt: skip
    for command, options in given.items():
        vary = ("--vary=--rate=0.1,0.2",) if command == "sweep" else ()
        for kind, (arguments, says) in options.items():
            varied = () if kind.startswith("vary") else vary
            script = () if kind == "no-value" else (TRAINS,)
            argv = pipediag(command, *varied, *arguments, *script)
            yield Fault(f"option {kind}", command, "start", argv, 2, says, alone=True, quick=True)
    for command, positional in {**_READING, "analyze": (TRAINS,)}.items():
        for kind, content, says in (
            ("defaults are no TOML", "[tool.pipediag\n", "not TOML"),
            ("defaults unknown", "[tool.pipediag]\nwheel = 3\n", "no command has the option wheel"),
            ("defaults of other kinds", "[tool.pipediag]\nbudget = 'long'\n", "a number is needed"),
        ):
            yield Fault(
                kind, command, "start", pipediag(command, *positional), 2, says, lays=_defaults(content),
                alone=True, quick=True,
            )  # fmt: skip
    for command in ("report", "compare", "analyze", "run", "audit", "sweep"):
        yield Fault(
            "no arguments", command, "start", pipediag(command), 2, "Missing (argument|option)", alone=True, quick=True
        )  # fmt: skip


def _defaults(content: str) -> Lay:
    def lay(folder: Path) -> str:
        (folder / "pyproject.toml").write_text(content)
        return text(session)(folder)

    return lay


# Rows: files


def _files() -> Iterator[Fault]:
    for kind, (lays, says) in BAD_SESSIONS.items():
        for command, arguments in _READING.items():
            yield Fault(
                f"file {kind}", command, "reading", pipediag(command, *arguments), 2, says, lays=lays,
                alone=True, quick=True,
            )  # fmt: skip
    for kind, (lays, says) in BAD_PLANS.items():
        argv = pipediag("run", "--plan", GIVEN, TRAINS, "--vision", "--steps=60")
        loads = kind in ("other-loader",)
        yield Fault(
            f"file {kind}", "run", "training" if loads else "reading", argv, 2, says, lays=lays,
            alone=not loads, quick=not loads,
        )  # fmt: skip
    for command, arguments in _READING.items():
        yield Fault(
            "file of somebody else", command, "reading", pipediag(command, *arguments), 2,
            "is not readable", lays=denied, within=AS_ANYBODY, alone=True, quick=True,
        )  # fmt: skip
        yield Fault(
            "file with escapes", command, "reading", pipediag(command, *arguments), 0, "",
            lays=text(lambda: session(script={"argv": ["\x1b[2J\x1b]0;x\x07.py"]})), quick=True,
        )  # fmt: skip
        yield from _unwritable(command, pipediag(command, *arguments), quick=True)


def _unwritable(command: str, argv: tuple[str, ...], quick: bool) -> Iterator[Fault]:
    """Reports that cannot be written, and streams that cannot."""
    reading = command in _READING
    lays = text(session) if reading else None
    html = (*argv, "-o", "results/report.html")
    rows = [
        Fault("disk full", command, "writing", html, 1, "report.html could not be written .No space left", within=FULL_DISK),
        Fault("file too large", command, "writing", html, 1, "could not be written .File too large", within=SHORT_FILES),
        Fault("disk read-only", command, "writing", html, 2, "cannot be written .Read-only", within=READ_ONLY_DISK),
        Fault("device full", command, "writing", (*argv, "--json"), 1, "standard output could not be written", within=FULL_OUTPUT),
        Fault("output closed", command, "writing", argv, 0, "", within=NO_OUTPUT),
        Fault("input closed", command, "start", argv, 0, "", within=NO_INPUT),
        Fault("errors closed", command, "writing", argv, 0, "", within=NO_ERRORS),
        Fault("streams closed", command, "writing", argv, 0, "", within=NO_STREAMS),
        Fault("broken pipe", command, "writing", argv, 0, "", within=BROKEN_PIPE),
    ]  # fmt: skip
    yield from (replace(row, lays=lays, quick=quick) for row in rows)


def _written() -> Iterator[Fault]:
    """Results of a measurement that cannot be written."""
    argv = pipediag("analyze", "--budget", "2", "--no-knobs", *_LADDER, "-o", REPORT, TRAINS)
    rows = [
        Fault("disk full", "analyze", "writing", argv, 1, "report.json could not be written .No space left", within=FULL_DISK),
        Fault("scratch full", "analyze", "start", argv, 1, "No space left|No usable temporary", within=FULL_SCRATCH),
        Fault("device full", "analyze", "writing", argv, 1, "standard output could not be written", MEASURED, within=FULL_OUTPUT),
        Fault("output closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_OUTPUT),
        Fault("input closed", "analyze", "start", argv, 0, "", MEASURED, within=NO_INPUT),
        Fault("errors closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_ERRORS),
        Fault("errors full", "analyze", "writing", argv, 0, "", MEASURED, within=FULL_ERRORS),
        Fault("streams closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_STREAMS),
        Fault("broken pipe", "analyze", "writing", argv, 0, "", MEASURED, within=BROKEN_PIPE),
        Fault("folder of somebody else", "analyze", "start", (*argv[:-2], GIVEN, TRAINS), 2, "cannot be written .Permission",
              lays=denied_folder, within=AS_ANYBODY, alone=True),
    ]  # fmt: skip
    yield from rows
    yield planted("analyze", "results-removed", "window", 1, "could not be written .No such file")
    yield planted("analyze", "results-in-the-way", "window", 1, "could not be written .(Is a directory|Directory)")
    trace = trained("analyze", options=("--profile", TRACE))
    yield Fault("disk full", "analyze", "writing the trace", trace, 1, "No space left", within=FULL_DISK)
    plan = trained("analyze --apply")
    yield Fault("disk full", "analyze --apply", "writing", plan, 1, "could not be written .No space left", within=FULL_DISK)
    for kind, fault, moment, code, says in (
        ("earlier report", "raises", "import", 1, "failed in its 1st run"),
        ("earlier report", "SIGTERM", "import", 143, ""),
        ("earlier report", "SIGKILL", "window", -9, ""),
    ):
        row = planted("analyze", fault, moment, code, says, EARLIER)
        yield replace(row, kind=f"{kind}, {fault}")


# Rows: programs


def program(command: str, kind: str, moment: str, says: str, *more: str, code: int = 0) -> Fault:
    argv = (sys.executable, PROGRAMS, command, f"--fault={kind}", f"--at={moment}", *more)
    return Fault(kind, command, moment or "training", argv, code, says)


_CLEAN = "left: nothing"


def _programs() -> Iterator[Fault]:
    raised = [
        ("raises", "ended: LookupError: the planted error"),
        ("memory-error", "ended: MemoryError: the planted shortage"),
        ("exit-3", "ended: SystemExit: 3"),
    ]
    died = [("os-exit", 5), ("segfault", -11), ("killed", -9), ("SIGTERM", -15)]
    # diagnose
    for moment in ("first-batch", "settling", "window", "device"):
        yield program("diagnose", "raises", moment, raised[0][1])
    for kind, says in raised[1:]:
        yield program("diagnose", kind, "window", says)
    yield program("diagnose", "interrupted", "first-batch", "ended: KeyboardInterrupt")
    yield program("diagnose", "interrupted", "window", "diagnosed: interrupted")
    yield program("diagnose", "forks", "window", "diagnosed: ")
    for kind, says in (
        ("dataset-raises", "ended: LookupError"),
        ("dataset-none", "ended: TypeError"),
        ("worker-killed", "ended: RuntimeError"),
        ("worker-os-exit", "ended: RuntimeError"),
    ):
        for moment in ("first-batch", "window"):
            yield program("diagnose", kind, moment, says)
    for kind, code in died:
        yield program("diagnose", kind, "window", "", code=code)
    yield program("diagnose", "raises", "training", "LookupError: the planted error", "--uncaught", code=1)
    # What works ahead of a loop
    for command in ("offload", "StagePipeline", "cache"):
        for moment in ("first-batch", "training", "second-epoch"):
            for kind, says in raised[:: 1 if moment == "training" else 3]:
                yield program(command, kind, moment, says)
        for kind in ("early-break", "iterator-closed", "iterator-dropped", "loader-dropped", "two-iterators", "kept-to-the-end"):
            yield program(command, kind, "", "batches: ")
        for kind in ("forks", "changes-folder"):
            yield program(command, kind, "training", "batches: ")
        yield program(command, "interrupted", "training", "ended: KeyboardInterrupt")
        for kind, says in (
            ("dataset-raises", "ended: LookupError"),
            ("dataset-none", "ended: TypeError"),
            ("worker-killed", "ended: RuntimeError"),
        ):
            yield program(command, kind, "training", says)
        for kind, code in died[1:3]:
            yield program(command, kind, "training", "", code=code)
        row = program(command, "raises", "training", "LookupError: the planted error", "--uncaught", code=1)
        yield replace(row, moment="training, uncaught")
    for command in ("offload", "cache"):
        yield program(command, "dataset-raises", "certification", "batches: 40")
        yield program(command, "worker-killed", "certification", "batches: 40")
        yield program(command, "interrupted", "certification", "batches: 40|ended: KeyboardInterrupt")
    for kind, says in raised:
        for moment in ("first-stage", "stage"):
            yield program("StagePipeline", kind, moment, says)
    yield program("cache", "cache-removed", "second-epoch", "batches: 40")
    yield program("cache", "cache-damaged", "second-epoch", "batches: 40")
    for wrong, says in {
        "diagnose-list": "UsageError: diagnose.. needs a torch DataLoader, not list",
        "diagnose-no-function": "UsageError: diagnose.. needs a function of a batch, not int",
        "diagnose-nan": "UsageError: budget",
        "diagnose-negative": "UsageError: budget",
        "diagnose-text": "UsageError: budget",
        "diagnose-empty": "NothingMeasured: no step was seen: the loader is empty",
        "offload-list": "UsageError: offload.. takes a torch DataLoader, not list",
        "offload-samples": "UsageError: samples",
        "offload-device": "UsageError: there is no CUDA device|UsageError|device",
        "pipeline-stage": "UsageError: a stage is a callable that takes a batch, not int",
        "pipeline-depth": "UsageError: depth",
        "pipeline-gradient": "UsageError",
        "cache-list": "UsageError: cache.. takes a torch DataLoader, not list",
        "cache-bytes": "UsageError: nbytes",
        "cache-samples": "UsageError: samples",
        "cache-file": "UsageError: samples cannot be kept in",
        "cache-proc": "UsageError: samples cannot be kept in /proc/none",
    }.items():
        command = {"pipeline": "StagePipeline"}.get(name := wrong.partition("-")[0], name)
        argv = (sys.executable, PROGRAMS, command, f"--wrong={wrong}")
        yield Fault(f"argument {wrong.partition('-')[2]}", command, "start", argv, 1, says)
    for kind, lays, within, says in (
        ("cache folder of somebody else", denied_folder, AS_ANYBODY, "samples cannot be kept|moved"),
        ("cache folder is a file", at("model.pt"), (), "samples cannot be kept|moved"),
    ):
        argv = pipediag("run", "--cache-dir", GIVEN, TRAINS, "--vision", "--steps=20")
        yield Fault(kind, "run", "start", argv, 0, says, lays=lays, within=within)


def _rows() -> Iterator[Fault]:
    for part in (
        _script_ends, _signals, _datasets, _loops, _behaviours, _no_scripts, _options, _files, _written, _programs
    ):  # fmt: skip
        yield from part()


FAULTS = tuple(_rows())

"""Faults of the training script: it ends, is interrupted, gives odd samples, or is no script."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .fault import (
    AS_ANYBODY,
    COMPLETE,
    GIVEN,
    MEASURED,
    NOTHING,
    OPTIONS,
    PARTS,
    READING,
    REPORT,
    TRAINS,
    Fault,
    pipediag,
    planted,
    trained,
    when,
)
from .files import Lay, at, denied, session, text


def rows() -> Iterator[Fault]:
    """Every fault of this kind."""
    for part in (_script_ends, _signals, _datasets, _loops, _behaviours, _ranks, _no_scripts):
        yield from part()


# The script ends

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
    ("killed", 137, "it was killed by SIGKILL, as the kernel does if memory runs out"),
]
#: Moments of an analysis; kinds that come at all of them, the others at the first and the fourth.
_MOMENTS = ("import", "first-batch", "settling", "window", "device")
_OFTEN = ("raises", "killed")
_QUICK = {("raises", "import"), ("killed", "import"), ("exit-3", "window")}


def _script_ends() -> Iterator[Fault]:
    for kind, code, says in _ENDINGS:
        for moment in _MOMENTS if kind in _OFTEN else _MOMENTS[::3]:
            keeps = NOTHING if moment in ("import", "first-batch") else MEASURED
            if (kind, moment) == ("raises", "device"):  # the script is run again without that rung
                yield planted(
                    "analyze", kind, moment, 0, f"own step: the script failed on these batches: {says}", MEASURED
                )
                continue
            run = "2nd" if (kind, moment) == ("raises", "settling") else "1st"  # as above, and it fails again
            said = f"failed in its {run} run: {says}"
            yield planted("analyze", kind, moment, code, said, keeps, quick=(kind, moment) in _QUICK)
        for moment in ("import", "training")[: 1 + (kind in ("raises", "exit-3", "segfault", "killed"))]:
            own = says if code in (1,) else ""
            quick = (kind, moment) == ("raises", "import")
            yield planted("run", kind, moment, 128 - code if code > 128 else code, own, quick=quick)
    for kind, code, says in (one for one in _ENDINGS if one[0] in ("raises", "killed")):
        for moment in ("import", "window"):
            keeps = MEASURED if moment == "window" else NOTHING
            yield planted("audit", kind, moment, code, f"failed in its 1st run: {says}", keeps)
        for moment in ("import", "window")[: 1 + (kind == "raises")]:
            yield planted("sweep", kind, moment, 0, says, PARTS, "--only=0.1")
    for kind, code, says in (one for one in _ENDINGS if one[0] in ("raises", "killed")):
        # The training does not use the remedy, or not to its end: what was measured before is reported.
        yield planted("analyze --apply", kind, "window", code, f"failed in its 1st run: {says}", MEASURED)
    for command in ("analyze", "audit"):
        yield planted(command, "asks", "import", 1, "EOFError: EOF when reading a line")
        yield planted(command, "interrupted", "import", 1, "failed in its 1st run: KeyboardInterrupt")
    yield planted("analyze", "interrupted", "window", 1, "failed in its 1st run: KeyboardInterrupt", MEASURED)
    yield planted("run", "asks", "import", 1, "EOFError: EOF when reading a line")
    for place in ("", "dataset-"):
        kind, said = f"{place}frozen-error", "FrozenError: the planted error"
        for moment, keeps in (("first-batch", NOTHING), ("window", MEASURED)):
            yield planted("analyze", kind, moment, 1, f"failed in its 1st run: (planted.)?{said}", keeps)
        yield planted("run", kind, "training", 1, said)
    yield planted("analyze", "os-exit-0", "first-batch", 1, "ended by itself before one window could be measured")
    yield planted("run", "interrupted", "training", -2, "KeyboardInterrupt")


# Signals

_SIGNALS = {"SIGINT": 2, "SIGINT-twice": 2, "SIGTERM": 15, "SIGHUP": 1, "SIGKILL": 9}

#: Left out: they take as long as any, and the next moment shows as much.
_RARELY = {
    *(("first-batch", kind) for kind in ("SIGINT-twice", "SIGHUP")),
    *(("settling", kind) for kind in ("SIGINT-twice", "SIGTERM", "SIGHUP")),
    *(("device", kind) for kind in ("SIGINT-twice", "SIGINT", "SIGHUP")),
}


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
        for moment in ("certification", "trial")[: 1 + (kind in ("SIGINT", "SIGTERM"))]:
            yield planted("analyze --apply", kind, moment, code, "", NOTHING if killed else MEASURED)
        # Python itself tells of a second interrupt while it ends its workers.
        for moment in ("import", "certification", "training")[: 2 if kind == "SIGINT-twice" else 3]:
            yield planted("run", kind, moment, -number, "KeyboardInterrupt" if number == 2 else "")
        if kind not in ("SIGINT", "SIGTERM"):
            continue
        for moment in ("import", "window"):
            yield planted("audit", kind, moment, code, "", MEASURED if moment == "window" else NOTHING)
        yield planted("sweep", kind, "window", code, "", MEASURED, "--only=0.2")
    yield planted("analyze", "SIGINT-freed", "window", 130, "", MEASURED)
    for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"):
        code = 130 if number == "SIGINT" else -_SIGNALS[number]
        for command, arguments in READING.items():
            argv = pipediag(command, *arguments, "-o", "results/again.html")
            events = {
                "import": ("import", "pipediag.report"),
                "reading": ("open", "given"),
                "writing": ("open", ".pipediag-"),
            }
            for moment, event in events.items():
                yield Fault(
                    number, command, moment, argv, code, "", lays=text(session), within=when(number, *event),
                    quick=(number, command, moment) == ("SIGINT", "report", "reading"),
                )  # fmt: skip
    for number, code in (("SIGINT", 130), ("SIGTERM", -15), ("SIGKILL", -9)):
        begins = when(number, "open", "results/.pipediag-")
        yield Fault(number, "analyze", "writing", trained("analyze"), code, "", within=begins)


# What makes the samples


def _datasets() -> Iterator[Fault]:
    for moment in ("first-batch", "window"):
        keeps = NOTHING if moment == "first-batch" else MEASURED
        failed = "failed in its 1st run: "
        rows: list[tuple[str, int, str]] = [
            ("dataset-raises", 1, "LookupError: the planted error"),
            ("dataset-memory-error", 1, "MemoryError: the planted shortage"),
            ("dataset-none", 1, "TypeError"),
            ("dataset-text", 1, "TypeError|ValueError|RuntimeError|AttributeError"),
            ("dataset-sizes", 1, "RuntimeError: "),
            ("worker-killed", 1, "a DataLoader worker was killed by SIGKILL, as the kernel does if memory runs out"),
            ("worker-bus-error", 1, "a DataLoader worker was killed"),
            ("worker-exits", 1, "a DataLoader worker ended by itself, with exit code 3"),
            ("worker-os-exit", 1, "a DataLoader worker ended by itself, with exit code 5"),
        ]
        for kind, code, says in rows if moment == "first-batch" else rows[::4]:
            quick = kind == "worker-killed" and moment == "first-batch"
            yield planted("analyze", kind, moment, code, f"{failed}({says})", keeps, quick=quick)
    for moment in ("first-batch", "training"):
        own = [
            ("dataset-raises", "LookupError: the planted error"),
            ("dataset-memory-error", "MemoryError: the planted shortage"),
            ("dataset-none", "TypeError"),
            ("worker-killed", "is killed by signal: Killed|exited unexpectedly"),
            ("worker-os-exit", "exited unexpectedly"),
        ]
        for kind, says in own if moment == "training" else own[:1]:
            yield planted("run", kind, moment, 1, says)
    error = "the dataset itself raises LookupError: the planted error"
    yield planted("run", "dataset-raises", "certification", 0, error)
    yield planted("run", "worker-killed", "certification", 0, "trying it ended the process")
    for kind, says in (("dataset-raises", "LookupError: the planted error"), ("worker-killed", "ended the process")):
        yield planted("analyze --apply", kind, "certification", 0, says, COMPLETE)
    waited = r"waited at \S*trains.py:\d+ for a batch: a DataLoader worker hangs"
    yield planted("analyze", "dataset-hangs", "window", 0, waited, MEASURED)
    row = planted(
        "analyze", "dataset-hangs", "window", 0, r"it was at \S*planted.py:\d+, in hangs", MEASURED, "--workers=0"
    )
    yield replace(row, moment="window, no workers")
    yield planted("analyze", "hangs", "window", 0, "had to be ended", MEASURED)
    for command in ("analyze", "audit", "run"):
        for broken in ("all", "collate", "init")[: 1 if command == "audit" else 3]:
            argv = trained(command, f"--broken={broken}")
            yield Fault(f"{broken} broken", command, "first-batch", argv, 1, "LookupError: the planted error")
    argv = trained("analyze", "--broken=all", "--workers=0")
    yield Fault("all broken", "analyze", "first-batch, no workers", argv, 1, "LookupError: the planted error")


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
            argv = trained(command, *arguments, options=("--budget", "15") if kind == "no training" else ())
            yield Fault(kind, command, "training", argv, code, says, keeps)
    for kind, arguments in (
        ("one-batch epochs", ("--samples=8", "--epochs=100000")),
        ("stream", ("--broken=stream",)),
        ("no workers", ("--workers=0",)),
    ):
        yield Fault(kind, "analyze", "training", trained("analyze", *arguments), 0, "", COMPLETE)
    argv = pipediag(*OPTIONS["analyze"][:4], "--rungs", "device,raw,baseline", "-o", REPORT, TRAINS, "--broken=replay")
    yield Fault("replay broken", "analyze", "raw", argv, 0, "LookupError: the planted error|raw", COMPLETE)
    for kind, arguments, says in (
        ("empty dataset", ("--broken=empty",), "nothing was moved"),
        ("no loader", ("--no-loader",), "iterated no torch DataLoader"),
        ("no training", ("--no-training", "--steps=20"), "moved|nothing"),
        ("one step", ("--steps=1",), ""),
        ("one-batch epochs", ("--samples=8", "--epochs=20"), "moved"),
        ("stream", ("--broken=stream", "--steps=20"), "moved"),
        ("no workers", ("--workers=0", "--steps=20"), "moved"),
    ):
        yield Fault(kind, "run", "training", trained("run", *arguments), 0, says)


# What a script may do without ending


def _behaviours() -> Iterator[Fault]:
    for kind in (
        "changes-folder", "own-handlers", "clears-environment",
        "leaves-process",
    ):  # fmt: skip
        yield planted("analyze", kind, "import", 0, "", COMPLETE)
    for kind in ("no-streams", "closes-streams", "forks", "daemon", "removes-folder"):
        yield planted("analyze", kind, "window", 0, "", COMPLETE)
    yield planted("analyze", "closes-descriptors", "import", 0, "", COMPLETE)
    for kind in ("changes-folder", "clears-environment", "forks"):
        yield planted("run", kind, "training", 0, "", NOTHING, "--steps=40")
    yield planted("analyze", "forks-and-exits", "window", 0, "", MEASURED)
    yield planted("analyze", "few-files", "window", 1, "Too many open files|OSError|ancdata", MEASURED)
    for kind in ("no-excepthook", "lost-excepthook", "failing-excepthook"):
        yield planted("analyze", kind, "window", 1, "LookupError: the planted error", MEASURED)
        yield planted("run", kind, "training", 1, "LookupError: the planted error")
    yield planted("analyze", "scratch-removed", "window", 0, "", COMPLETE)
    yield planted("run", "few-files", "training", 1, "Too many open files|OSError|ancdata")


# Jobs of two ranks; the fault is in the second


def _ranks() -> Iterator[Fault]:
    job = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TRAINS)

    def in_a_job(command: str, kind: str, moment: str, code: int, says: str, keeps: str = NOTHING) -> Fault:
        budget = ("--budget", "30") if command == "analyze" else ()
        more = ("--vision", "--samples=2000") if command == "run" else ()
        argv = pipediag(*OPTIONS[command], *budget, *job, "--rank=1", *more, f"--fault={kind}", f"--at={moment}")
        return Fault(kind, f"{command} of two ranks", moment, argv, code, says, keeps)

    endings = {
        "raises": "LookupError: the planted error",
        "killed": "ended without a word|SIGKILL",
        "dataset-raises": "LookupError: the planted error",
        "worker-killed": "[Ww]orker.*(killed|exited unexpectedly)",
        "exit-3": "exit code 3|exitcode *: 3",
    }
    for kind, says in endings.items():
        often = kind in ("raises", "killed")
        for moment in ("import", "first-batch", "window") if often else ("window",):
            keeps = MEASURED if moment == "window" else NOTHING
            yield in_a_job("analyze", kind, moment, 1, f"rank 1: .*({says})", keeps)
        for moment in ("import", "training") if often else ("training",):
            yield in_a_job("run", kind, moment, 1, says)
    for kind, number in _SIGNALS.items():
        killed = kind == "SIGKILL"
        for moment in ("import", "window"):
            keeps = MEASURED if moment == "window" and not killed else NOTHING
            yield in_a_job("analyze", kind, moment, -9 if killed else 128 + number, "", keeps)
        # torchrun ends its ranks, and ends with an error of its own
        yield in_a_job("run", kind, "training", -9 if killed else 1, "" if killed else "SignalException")
    yield in_a_job("analyze", "forks", "window", 0, "", COMPLETE)


# Scripts that are none


def _zipped(folder: Path) -> str:
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "raise SystemExit(3)\n")
    return "app.pyz"


def _no_scripts() -> Iterator[Fault]:
    scripts: list[tuple[str, Lay, int, str]] = [
        ("no such script", at("none.py"), 2, "no such script: none.py"),
        ("script is a folder", at("results"), 2, "is a directory; give a script"),
        ("script is binary", text(bytes(range(1, 256))), 1, "SyntaxError|ValueError"),
        ("script is a zip archive", _zipped, 2, "is a zip archive; unpack it"),
        ("script with null bytes", text(b"x = 1\0\n"), 1, "SyntaxError|ValueError"),
        ("syntax error", text("def f(:\n"), 1, "SyntaxError: invalid syntax"),
        ("import error", text("import no_such_module\n"), 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("empty script", text(""), 1, "iterated no torch DataLoader"),
        ("script of somebody else", denied, 2, "is not readable"),
        ("no such module", at("-m"), 2, "no module named no.such_one"),
    ]
    for command in ("analyze", "run", "audit", "sweep"):
        for kind, lays, code, says in scripts:
            more = ("no.such_one",) if kind == "no such module" else ()
            argv = pipediag(*OPTIONS[command], GIVEN, *more)
            within = AS_ANYBODY if lays is denied else ()
            keeps = NOTHING
            if command == "sweep" and code == 1:  # the other runs go on
                code, keeps = 1, PARTS
            if command == "run" and kind == "empty script":
                code = 0
            quick = (kind, command) in (("no such script", "analyze"), ("syntax error", "run"))
            yield Fault(kind, command, "import", argv, code, says, keeps, lays, within, quick=quick)

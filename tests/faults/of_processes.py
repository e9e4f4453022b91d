"""Faults of what a script replaces or takes hold of in its process, of where it trains, and of how it is started."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterator
from dataclasses import replace

from .fault import COMPLETE, NOTHING, OPTIONS, SCRIPTS, Fault, pipediag, planted, shell, trained
from .leaks import REPO

#: What each row prints, by its command.
_SAYS = {"analyze": "", "run": "trained to its end"}
#: What the line of an analysis and a run adds to the script's own options.
_MORE = {"analyze": (), "run": ("--vision", "--steps=40", "--samples=2000")}


def rows() -> Iterator[Fault]:
    """Every fault of this kind."""
    for part in (_tools, _taken, _places, _files):
        yield from part()


def _keeps(command: str) -> str:
    return COMPLETE if command == "analyze" else NOTHING


def _both(name: str, kind: str, moment: str) -> Iterator[Fault]:
    """A fault of the planted script that changes nothing about an analysis or a run."""
    for command, says in _SAYS.items():
        more = ("--steps=40",) if command == "run" else ()
        quick = (kind, command) == ("closed-errors", "run")
        row = planted(command, kind, moment, 0, says, _keeps(command), *more, quick=quick)
        yield replace(row, kind=f"{name} {kind}")


# Tools that work in the script's process, and states of the interpreter


def _tools() -> Iterator[Fault]:
    for kind in ("traces", "profiles", "writes-stacks"):
        yield from _both("tool", kind, "import")
    yield from _both("tool", "traces-memory", "first-batch")  # under it, importing torch takes half a minute
    packages = ("env", f"PYTHONPATH={REPO}:{':'.join(site.getsitepackages())}")
    interpreters = {
        "development": ("-X", "dev"),
        "bare": ("-S", "-s", "-B"),
        "optimised": ("-OO", "-X", "frozen_modules=off"),
        "strict": ("-bb", "-u", "-X", "faulthandler"),
        "profiler": ("-m", "cProfile", "-o", "/dev/null"),
    }
    for kind, flags in interpreters.items():
        for command, says in _SAYS.items():
            argv = trained(command, *_MORE[command][1:])
            at = next(place for place, word in enumerate(argv) if word.endswith("trains.py"))
            argv = (*argv[:at], sys.executable, *flags, *argv[at:])
            yield Fault(f"tool {kind}", command, "start", argv, 0, says, _keeps(command), within=packages)


# What a script replaces or takes


#: When, and what. The last one closes standard error, so that the next file opened gets its number.
_TAKEN = {
    "import": ("json", "open", "threads", "sockets", "loader", "streams", "children", "start-method", "garbage"),
    "first-batch": ("json", "arguments", "limits", "closed-input", "closed-errors"),
}


def _taken() -> Iterator[Fault]:
    for moment, kinds in _TAKEN.items():
        for kind in kinds:
            yield from _both("taken", kind, moment)
    silent = planted("run", "print", "import", 0, "moved from", NOTHING, "--steps=40")
    yield replace(silent, kind="taken print")
    unmeasured = planted("analyze", "sandbox", "first-batch", 1, "measuring failed .*, so your script trained on")
    yield replace(unmeasured, kind="taken sandbox")


# Where a script trains, and what becomes of its files


def _places() -> Iterator[Fault]:
    for place in ("thread", "asyncio", "executor"):
        for command, says in _SAYS.items():
            argv = trained(command, f"--place={place}", *_MORE[command][1:])
            yield Fault(f"place {place}", command, "training", argv, 0, says, _keeps(command))

    forked = trained("analyze", "--place=fork", "--steps=20")
    says = "trains in processes that it starts itself .by os.fork"
    yield Fault("place fork", "analyze", "training", forked, 1, says)
    argv = trained("run", "--place=fork", *_MORE["run"][1:])
    yield Fault("place fork", "run", "training", argv, 0, _SAYS["run"])


def _copied(script: str, beside: str) -> tuple[str, ...]:
    """Copy the planted script into one folder, and what it imports into another, for as long as the command runs."""
    line = f"mkdir -p {script}; cp {SCRIPTS}/trains.py {script}; cp {SCRIPTS}/{{odd,planted}}.py {beside}; "
    return shell(line + '"$@"; c=$?; rm -rf pkg results/own odd.py planted.py; exit $c')


def _files() -> Iterator[Fault]:
    own = _copied("results/own", "results/own")
    for command, says in _SAYS.items():
        argv = pipediag(*OPTIONS[command], "-m", "pkg.trains", *_MORE[command])
        yield Fault("place package", command, "start", argv, 0, says, _keeps(command), within=_copied("pkg", "."))
        for kind in ("removed", "folder-removed", "rewritten"):
            fault = (f"--fault={kind}", "--at=first-batch")
            argv = pipediag(*OPTIONS[command], "results/own/trains.py", *_MORE[command], *fault)
            yield Fault(f"script {kind}", command, "first-batch", argv, 0, says, _keeps(command), within=own)

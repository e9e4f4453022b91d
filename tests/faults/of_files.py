"""Faults of options, of files that are read, and of results that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .fault import (
    AS_ANYBODY,
    BROKEN_PIPE,
    CHILDREN_IGNORED,
    COMPLETE,
    EARLIER,
    FEW_DESCRIPTORS,
    FULL_DISK,
    FULL_ERRORS,
    FULL_OUTPUT,
    FULL_SCRATCH,
    GIVEN,
    LADDER,
    MEASURED,
    NO_DESCRIPTORS,
    NO_ERRORS,
    NO_INPUT,
    NO_OUTPUT,
    NO_STREAMS,
    PLAN,
    READ_ONLY_DISK,
    READING,
    REPORT,
    SHORT_FILES,
    TRACE,
    TRAINS,
    UNREAD,
    Fault,
    pipediag,
    planted,
    trained,
)
from .files import BAD_PLANS, BAD_SESSIONS, Lay, denied, denied_folder, session, text


def rows() -> Iterator[Fault]:
    """Every fault of this kind."""
    for part in (_options, _files, _written, _of_others, _limits):
        yield from part()


# Options


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
            quick = command == "analyze" and kind in ("text", "no-folder", "gate-nan")  # the others share its options
            yield Fault(f"option {kind}", command, "start", argv, 2, says, alone=True, quick=quick)
    for command, positional in {**READING, "analyze": (TRAINS,)}.items():
        for kind, content, says in (
            ("defaults are no TOML", "[tool.pipediag\n", "not TOML"),
            ("defaults unknown", "[tool.pipediag]\nwheel = 3\n", "no command has the option wheel"),
            ("defaults of other kinds", "[tool.pipediag]\nbudget = 'long'\n", "a number is needed"),
            ("defaults beyond bounds", f"[tool.pipediag]\nbudget = {9000 * '['}\n", "not TOML"),
            ("defaults with null characters", '[tool.pipediag]\nplan = "a\\u0000"\n', "a text is needed"),
        ):
            yield Fault(
                kind, command, "start", pipediag(command, *positional), 2, says, lays=_defaults(content),
                alone=True, quick=(kind, command) == ("defaults unknown", "report"),
            )  # fmt: skip
    for command in ("report", "compare", "analyze", "run", "audit", "sweep"):
        says = "is kept for this folder|are kept" if command in READING else "Missing (argument|option)"
        yield Fault(
            "no arguments", command, "start", pipediag(command), 2, says, alone=True, quick=command == "analyze",
        )  # fmt: skip


def _defaults(content: str) -> Lay:
    def lay(folder: Path) -> str:
        (folder / "pyproject.toml").write_text(content)
        return text(session)(folder)

    return lay


# Other people, and what a parent leaves


def _of_others() -> Iterator[Fault]:
    html = pipediag("report", GIVEN, "-o", "results/report.html")
    outside = "[tool.pipediag]\noutput = ['../settings.json']\n"
    yield Fault(
        "pipe that nobody reads", "report", "writing", html, 2, "nobody reads", lays=text(session), within=UNREAD,
        alone=True, quick=True,
    )  # fmt: skip
    yield Fault(
        "output outside the project", "report", "start", pipediag("report", GIVEN), 2, "outside the project",
        lays=_defaults(outside), alone=True, quick=True,
    )  # fmt: skip
    yield Fault(
        "children ignored", "analyze", "start", pipediag("analyze", "--budget", "2", GIVEN), 3, "exit code 3",
        lays=_exits, within=CHILDREN_IGNORED, quick=True,
    )  # fmt: skip


def _limits() -> Iterator[Fault]:
    """What a parent, or the script itself, limits or chooses for the whole process."""
    few = pipediag("analyze", "--budget", "6", TRAINS, "--steps=300")
    says = "nothing was measured: it leaves no room"
    yield Fault("few descriptors", "analyze", "start", few, 1, says, within=FEW_DESCRIPTORS)
    yield Fault(
        "few descriptors", "analyze", "before the script", pipediag("analyze", GIVEN), 1, "Too many open files",
        lays=_exits, within=NO_DESCRIPTORS, quick=True,
    )  # fmt: skip
    yield Fault("shared by files", "analyze", "training", trained("analyze", "--files"), 0, "", COMPLETE)


def _exits(folder: Path) -> str:
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    return "exits.py"


# Files


#: A file that says nothing, one that never ends, one of another kind, and one of another time.
_QUICK_FILES = ("truncated", "endless", "wrong-types", "newer-schema", "other-script")


def _files() -> Iterator[Fault]:
    for kind, (lays, says) in BAD_SESSIONS.items():
        for command, arguments in READING.items():
            yield Fault(
                f"file {kind}", command, "reading", pipediag(command, *arguments), 2, says, lays=lays,
                alone=True, quick=command == "report" and kind in _QUICK_FILES,
            )  # fmt: skip
    for kind, (lays, says) in BAD_PLANS.items():
        argv = pipediag("run", "--plan", GIVEN, TRAINS, "--vision", "--steps=60")
        loads = kind in ("other-loader",)
        yield Fault(
            f"file {kind}", "run", "training" if loads else "reading", argv, 2, says, lays=lays,
            alone=not loads, quick=not loads and kind in _QUICK_FILES,
        )  # fmt: skip
    for command, arguments in READING.items():
        yield Fault(
            "file of somebody else", command, "reading", pipediag(command, *arguments), 2,
            "is not readable", lays=denied, within=AS_ANYBODY, alone=True, quick=command == "report",
        )  # fmt: skip
        yield Fault(
            "file with escapes", command, "reading", pipediag(command, *arguments), 0, "",
            lays=text(lambda: session(script={"argv": ["\x1b[2J\x1b]0;x\x07.py"]})),
            quick=command == "report",
        )  # fmt: skip
        yield from _unwritable(command, pipediag(command, *arguments))


#: What is said of them.
_FULL, _STREAM = "could not be written .No space left", "standard output could not be written"


def _unwritable(command: str, argv: tuple[str, ...]) -> Iterator[Fault]:
    """Reports that cannot be written, and streams that cannot."""
    html = (*argv, "-o", "results/report.html")
    rows = [
        Fault("disk full", command, "writing", html, 1, _FULL, within=FULL_DISK),
        Fault("file too large", command, "writing", html, 1, "not be written .File too large", within=SHORT_FILES),
        Fault("disk read-only", command, "writing", html, 2, "cannot be written .Read-only", within=READ_ONLY_DISK),
        Fault("device full", command, "writing", (*argv, "--json"), 1, _STREAM, within=FULL_OUTPUT),
        Fault("output closed", command, "writing", argv, 0, "", within=NO_OUTPUT),
        Fault("input closed", command, "start", argv, 0, "", within=NO_INPUT),
        Fault("errors closed", command, "writing", argv, 0, "", within=NO_ERRORS),
        Fault("streams closed", command, "writing", argv, 0, "", within=NO_STREAMS),
        Fault("broken pipe", command, "writing", argv, 0, "", within=BROKEN_PIPE),
    ]  # fmt: skip
    for row in rows:
        quick = command == "report" and row.kind in ("disk full", "device full", "streams closed", "broken pipe")
        yield replace(row, lays=text(session), quick=quick)


def _written() -> Iterator[Fault]:
    """Results of a measurement that cannot be written."""
    argv = pipediag("analyze", "--budget", "2", "--no-knobs", *LADDER, "-o", REPORT, TRAINS)
    rows = [
        Fault("disk full", "analyze", "writing", argv, 1, _FULL, within=FULL_DISK),
        Fault("scratch full", "analyze", "start", argv, 1, "No space left|No usable temporary", within=FULL_SCRATCH),
        Fault("device full", "analyze", "writing", argv, 1, _STREAM, MEASURED, within=FULL_OUTPUT),
        Fault("output closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_OUTPUT),
        Fault("input closed", "analyze", "start", argv, 0, "", MEASURED, within=NO_INPUT),
        Fault("errors closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_ERRORS),
        Fault("errors full", "analyze", "writing", argv, 0, "", MEASURED, within=FULL_ERRORS),
        Fault("streams closed", "analyze", "writing", argv, 0, "", MEASURED, within=NO_STREAMS),
        Fault("broken pipe", "analyze", "writing", argv, 0, "", MEASURED, within=BROKEN_PIPE),
        Fault("folder of somebody else", "analyze", "start", (*argv[:-2], GIVEN, TRAINS), 2,
              "cannot be written .Permission", lays=denied_folder, within=AS_ANYBODY, alone=True),
    ]  # fmt: skip
    yield from rows
    yield planted("analyze", "results-removed", "window", 1, "could not be written .No such file")
    yield planted("analyze", "results-in-the-way", "window", 1, "could not be written .(Is a directory|Directory)")
    trace = trained("analyze", options=("--profile", TRACE))
    yield Fault("disk full", "analyze", "writing the trace", trace, 1, "No space left", within=FULL_DISK)
    plan = trained("analyze --apply")
    yield Fault("disk full", "analyze --apply", "writing", plan, 1, _FULL, within=FULL_DISK)
    for kind, fault, moment, code, says in (
        ("earlier report", "raises", "import", 1, "failed in its 1st run"),
        ("earlier report", "SIGTERM", "import", 143, ""),
        ("earlier report", "SIGKILL", "window", -9, ""),
    ):
        row = planted("analyze", fault, moment, code, says, EARLIER)
        yield replace(row, kind=f"{kind}, {fault}")

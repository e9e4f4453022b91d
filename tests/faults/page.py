"""``docs/reliability.md``: what is promised, and how many faults of the table held, by kind and command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .fault import Fault
from .leaks import REPO
from .table import FAULTS

PAGE = REPO / "docs" / "reliability.md"
#: Set to 1, a run of the whole table writes the page.
WRITES = "PIPEDIAG_WRITE_RELIABILITY"
COMMANDS = (
    "analyze", "analyze --apply", "analyze of two ranks", "run", "run of two ranks", "audit", "sweep",
    "report", "compare", "diagnose", "offload", "StagePipeline", "cache",
)  # fmt: skip
#: Kinds that share a row of the page.
_FAMILIES = {
    "option": "options that do not fit",
    "file": "files that are none",
    "argument": "arguments that do not fit",
    "inherited": "inherited state",
    "clock": "time that stops or jumps",
    "protocol": "objects whose protocols raise",
    "restart": "restarts",
    "tool": "tools and flags of the interpreter",
    "taken": "what a script replaces or takes",
    "place": "where a script trains",
    "script": "what becomes of its file",
}

_HEAD = """# What happens if something fails

pipediag runs other people's code, on machines where memory and disks fill up and people press Ctrl-C. A suite of faults
plants one failure at a time, at a named moment, and then checks what is left.

    python -m pytest tests/faults                               # the quick part, as in CI
    python -m pytest tests/faults -m "slow or not slow"         # all of it; -n 4 --dist load shares it among processes
    PIPEDIAG_WRITE_RELIABILITY=1 python -m pytest tests/faults -m "slow or not slow"    # and write the counts below

`tests/faults/table.py` lists the faults: kind, command, moment, exit code, the line that pipediag prints, what is on
disk.

## What is promised

After each of these faults:

- **Exit code.** It is the script's own if the script failed (128 plus the signal's number if a signal ended it), that
  of the signal if pipediag was interrupted (130, 143, 129), and otherwise one of [usage.md](usage.md#exit-codes).
- **One clear line.** It says what failed, in the script's own words if there are any. A command that cannot run as
  written is refused in one line, before the script runs. No traceback shows a frame of pipediag's.
- **What was measured is on disk.** If a window or a training step was measured, the files of `-o` are written, and say
  that the measurement is partial. A file is written whole or not at all, so a failure leaves an earlier report as it
  is.
- **Nothing is left.** No process of pipediag's or of the script's runs on, not even one that the script has made a
  daemon. No shared memory, semaphore or temporary file remains. In a program that catches the exception, no worker,
  thread, descriptor, mapping of shared memory or page-locked memory remains, and the loader works again. `diagnose`
  restores the training.
- **Your files are untouched.** pipediag writes only the files that it was asked for.
- **A training under `run` ends as under `python`**: same exit code, traceback and signals. If only the remedy fails,
  the script continues with its own loader, and a line says why.

Files of sessions and plans may come from anybody: pipediag reads or refuses them within two seconds of CPU time and
200 MB. Hypothesis damages 200 sessions and 200 plans (`tests/session/test_hostile_files.py`), 200 files of kept results
(`tests/memo/test_arena.py`) and 200 messages of ranks (`tests/ladder/test_lockstep.py`); the quick tests take 25 each.
Once it was 20,000 plans, 20,000 messages, 2,000 sessions, and files of results until two defects were found and mended
and a further 20,000 held.

## What is not promised

- **SIGKILL of pipediag itself** leaves its folder in the temporary directory; the next analysis removes it. Its
  processes end at once. There is no report.
- **SIGTERM and SIGHUP while files are written or read**, after the measurement, end the command at once, as they end
  any program. Files are still whole or absent, but a file named `.pipediag-` and some letters may be left next to them.
- **A script that hangs** is ended 15 s after the budget and not earlier, because one slow batch looks the same.
- **Processes that the script starts under `run`** are the script's own: pipediag does not end them.
- **What the script itself does to its files** is not undone. The report lists the files that it wrote.
- **A transform or dataset that only works once in a process** cannot be taken apart; its rungs say so.
- **Windows, and file systems without `rename`**, are not supported.

## A soak

`python -m benchmarks.soak` trains under `pipediag run` and plainly. Of every three epochs, one meets a corrupt file,
and in another a worker is killed with SIGKILL. The script catches the error that ends an epoch, and begins the next
epoch. On an H200, in 6 minutes: 41 epochs, 14 corrupt files and 13 killed workers. The plain script had time for 8
epochs: each ended in the same way, and all 213 losses were equal. The process had 889 MB after the third epoch and
895 MB at the end; no shared memory was left (`benchmarks/results/soak-h200.json`).

On a CPU with 2 cores, in 20 minutes: 18 epochs, 6 corrupt files and 6 killed workers. The plain script trained as many
epochs: each ended in the same way, and all 299 losses were equal. The process had 433 MB after the third epoch and at
the end; no shared memory was left (`benchmarks/results/soak-cpu.json`).

## The counts
"""
_UNITS = "Each number counts the rows of the table that held; `3 of 4` means that one did not."


@dataclass(frozen=True)
class Cell:
    """Faults of one kind under one command: how many held, of how many."""

    held: int
    all: int

    def __str__(self) -> str:
        return str(self.all) if self.held == self.all else f"{self.held} of {self.all}"


Cells = Mapping[tuple[str, str], Cell]


def family(fault: Fault) -> str:
    """The row of the page that a fault belongs to."""
    return _FAMILIES.get(fault.kind.partition(" ")[0] if fault.kind.count(" ") == 1 else "", fault.kind)


def counted(held: Iterable[str]) -> dict[tuple[str, str], Cell]:
    """Count the table; ``held`` are the names of the rows that held."""
    names, cells = set(held), dict[tuple[str, str], Cell]()
    for fault in FAULTS:
        place = family(fault), fault.command
        cell = cells.get(place, Cell(0, 0))
        cells[place] = Cell(cell.held + (fault.id in names), cell.all + 1)
    return cells


def written(cells: Cells) -> str:
    """The page."""
    held, all_ = sum(cell.held for cell in cells.values()), sum(cell.all for cell in cells.values())
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    lines = ["| fault | " + " | ".join(f"`{command}`" for command in COMMANDS) + " |", "|---|" + "--:|" * len(COMMANDS)]
    for kind in kinds:
        row = [str(cells.get((kind, command), "")) for command in COMMANDS]
        lines.append(f"| {kind} | {' | '.join(row)} |")
    sums = []
    for command in COMMANDS:
        mine = [cell for (_, of), cell in cells.items() if of == command]
        sums.append(f"**{Cell(sum(cell.held for cell in mine), sum(cell.all for cell in mine))}**")
    lines.append(f"| **all** | {' | '.join(sums)} |")
    total = f"**{held} of {all_} faults held** when each last ran.\n{_UNITS}"
    return "\n".join([_HEAD, total, "", *lines, ""])


def read(text: str) -> dict[tuple[str, str], Cell]:
    """The counts on a page."""
    cells = {}
    for line in text.splitlines():
        kind, *row = [part.strip() for part in line.strip("|").split("|")]
        if len(row) != len(COMMANDS) or kind in ("fault", "**all**", "---"):
            continue
        for command, cell in zip(COMMANDS, row, strict=True):
            if cell:
                numbers = [int(number) for number in re.findall(r"\d+", cell)]
                cells[kind, command] = Cell(numbers[0], numbers[-1])
    return cells


def write(held: Iterable[str], path: Path = PAGE) -> None:
    path.write_text(written(counted(held)))

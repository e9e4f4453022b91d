"""Keep cores busy with processes that are none of the training's, and see how busy they are without them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..common import ENVIRONMENT

_SPIN = "import sys; from pipediag.lifeline import end_with; end_with(int(sys.argv[1]))\nwhile True: pass"
#: Columns of a line of ``/proc/stat`` in which a core had nothing to do.
_IDLE = (3, 4)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run ``count`` processes that never pause, on the cores of this thread; they end with it, however it ends.

    Raises:
        RuntimeError: one of them has ended by itself, so the load was less than asked for.
    """
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            # Others' processes have a session of their own, and Linux may share the cores among sessions.
            command = [sys.executable, "-c", _SPIN, str(os.getpid())]
            spinning.append(subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True))
        yield
        if any(process.poll() is not None for process in spinning):
            raise RuntimeError("a busy process ended before its time")
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def in_use(cores: Collection[int], seconds: float = 1.0) -> float | None:
    """Return how many of the cores others use now, or None where Linux does not tell."""
    before = _ticks(cores)
    time.sleep(seconds)
    used = [(all_, idle) for all_, idle in map(_differences, before, _ticks(cores)) if all_]
    return round(sum(1 - idle / all_ for all_, idle in used), 2) if used else None


def _differences(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def _ticks(cores: Collection[int]) -> list[tuple[int, int]]:
    """Return all clock ticks and the idle ones of each core since the machine started."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return []
    rows = [[*map(int, line[1:9])] for line in lines if line and line[0] in {f"cpu{core}" for core in cores}]
    return [(sum(row), sum(row[column] for column in _IDLE)) for row in rows]

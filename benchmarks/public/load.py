"""Read how much of the machine's CPU time this process and its children use, and how much others do (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _machine() -> float:
    """Return the seconds that all CPUs were busy since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / _TICK


def _tree(root: int) -> float:
    """Return the CPU seconds of a process, its living descendants, and those that it has waited for."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) / _TICK
    total, left = 0.0, [root]
    while left:
        current = left.pop()
        total += spent.get(current, 0.0)
        left += [pid for pid, parent in parents.items() if parent == current]
    return total


class Foreign:
    """The cores that others use from its making on."""

    def __init__(self) -> None:
        self._at, self._machine, self._own = time.monotonic(), _machine(), _tree(os.getpid())

    def cores(self) -> float:
        passed = max(1e-6, time.monotonic() - self._at)
        others = _machine() - self._machine - (_tree(os.getpid()) - self._own)
        return max(0.0, others / passed)

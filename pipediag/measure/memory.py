"""How much memory is left, and how much a process takes for itself."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from .machine import CGROUP

#: Where torch hands batches over between processes on Linux.
_SHARED = Path("/dev/shm")


def free_bytes(root: Path = CGROUP) -> int:
    """What the process may still take: the machine's, or what the limit of its control group leaves."""
    free = int(psutil.virtual_memory().available)
    left = _left_of_limit(root)
    return free if left is None else min(free, left)


def _left_of_limit(root: Path) -> int | None:
    """What a control group's limit leaves, from its version 2 or version 1 files; None where there is no limit.

    Pages of files that were not used lately are given back before the limit is felt.
    """
    for limit, used, folder in (
        ("memory.max", "memory.current", root),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", root / "memory"),
    ):
        try:
            most, taken = (folder / limit).read_text().strip(), int((folder / used).read_text())
            counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most == "max":
            return None
        idle = counters.get("total_inactive_file", counters.get("inactive_file", "0"))
        return max(0, int(most) - taken + int(idle))
    return None


def shared_bytes(folder: Path = _SHARED) -> int | None:
    """What is free of the memory that processes share; None where that is not limited by itself."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def own_bytes(pids: Sequence[int]) -> int:
    """The most that any of the processes has for itself alone; 0 where none can be looked at."""
    return max(map(_own, pids), default=0)


def _own(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except (psutil.Error, AttributeError, OSError):
        return 0

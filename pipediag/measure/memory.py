"""Read how much memory is left, and how much a process uses for itself."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from .machine import CGROUP

#: Folder through which torch transfers batches between processes on Linux.
_SHARED = Path("/dev/shm")


def free_bytes(root: Path = CGROUP) -> int:
    """Return the bytes the process may still take: free on the machine, but no more than its control group allows."""
    free = int(psutil.virtual_memory().available)
    left = _left_of_limit(root)
    return free if left is None else min(free, left)


def _left_of_limit(root: Path) -> int | None:
    """Return the bytes left of a control group's limit, from its version 2 or version 1 files, or None if unlimited.

    Inactive file pages count as free: they are reclaimed before the limit is reached.
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
    """Return the free bytes of shared memory, or None if it has no limit of its own."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def own_bytes(pids: Sequence[int]) -> int:
    """Return the maximum of the processes' unshared bytes; 0 if none can be read."""
    return max(map(_own, pids), default=0)


def _own(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except (psutil.Error, AttributeError, OSError):
        return 0

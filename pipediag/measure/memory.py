"""Read how much memory is free, and how much a process uses for itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from .machine import CGROUP

#: Folder through which torch transfers batches between processes on Linux.
_SHARED = Path("/dev/shm")
#: File that lists the control groups of the process on Linux.
_OWN_GROUPS = Path("/proc/self/cgroup")


def free_bytes(root: Path = CGROUP) -> int:
    """Return the bytes the process may still take: free on the machine, but no more than its control groups allow."""
    return min(free for _, free in limits(root))


def limits(root: Path = CGROUP, own: Path = _OWN_GROUPS) -> Iterator[tuple[int, int]]:
    """Yield total and free bytes of the machine, and of each limited control group that the process is in."""
    machine = psutil.virtual_memory()
    yield int(machine.total), int(machine.available)
    try:
        groups = own.read_text()
    except OSError:  # not on this platform
        groups = ""
    for folder in group_folders(groups, root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                texts = [(folder / name).read_text() for name in (limit, used, "memory.stat")]
                found = limit_of(*texts)
            except (OSError, ValueError):  # a root group has no such files
                continue
            if found is not None:
                yield found


def group_folders(groups: str, root: Path) -> list[Path]:
    """Return the folders of the control groups that limit a process's memory.

    Args:
        groups: content of its ``/proc/<pid>/cgroup``.
        root: where control groups are mounted. In a container this may be the process's own group, and the path
            in ``groups`` may not exist below it.
    """
    folders = {root: None, root / "memory": None}  # without duplicates, in order
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            mount = root if number == "0" else root / "memory"
            group = mount / path.strip("/")
            folders.update(dict.fromkeys(folder for folder in (group, *group.parents) if folder.is_relative_to(mount)))
    return list(folders)


def limit_of(limit: str, used: str, stat: str) -> tuple[int, int] | None:
    """Return total and free bytes of a control group from the content of its files, or None if it is unlimited.

    Inactive file pages count as free: they are reclaimed before the limit is reached.
    """
    if limit.strip() == "max":
        return None
    counters = dict(line.split() for line in stat.splitlines())
    idle = counters.get("total_inactive_file", counters.get("inactive_file", "0"))
    return int(limit), max(0, int(limit) - int(used) + int(idle))


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

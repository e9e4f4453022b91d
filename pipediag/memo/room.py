"""Decide how many bytes may be taken of the machine's memory or of a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..measure.machine import limits

#: Share of a memory or disk that stays free for others, and its maximum in bytes.
_RESERVE, _MOST_RESERVED = 1 / 10, 16 << 30
#: The list of the file systems that the process sees on Linux.
_MOUNTS = Path("/proc/self/mountinfo")


def free_memory() -> int:
    """Return the bytes of memory that may be taken; the machine and each control group keep a reserve."""
    return min(_without_reserve(total, free) for total, free in limits())


def free_disk(folder: Path) -> int:
    """Return the bytes that may be taken of the disk that ``folder`` is on, which may be a disk in memory."""
    usage = shutil.disk_usage(folder)
    free = _without_reserve(usage.total, usage.free)
    return min(free, free_memory()) if in_memory(folder.stat().st_dev, _MOUNTS.read_text()) else free


def in_memory(device: int, mounts: str) -> bool:
    """Return whether a file system is in memory, by its device number and the text of ``/proc/self/mountinfo``."""
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = {line.split()[2]: line.partition(" - ")[2].split()[0] for line in mounts.splitlines()}
    return kinds.get(name) in ("tmpfs", "ramfs")


def _without_reserve(total: int, free: int) -> int:
    return max(0, free - int(min(total * _RESERVE, _MOST_RESERVED)))

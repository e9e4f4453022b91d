"""Decide how many bytes may be taken of the machine's memory or of a disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..measure.memory import limits

#: Part of the memory or disk that is left to others, and the most that is.
_RESERVE, _MOST_RESERVED = 1 / 10, 16 << 30


def free_memory() -> int:
    """Return the bytes of memory that may be taken, so that the machine and each control group keep a reserve."""
    return min(_without_reserve(total, free) for total, free in limits())


def free_disk(folder: Path) -> int:
    """Return the bytes that may be taken of the disk that ``folder`` is on."""
    usage = shutil.disk_usage(folder)
    return _without_reserve(usage.total, usage.free)


def _without_reserve(total: int, free: int) -> int:
    return max(0, free - int(min(total * _RESERVE, _MOST_RESERVED)))

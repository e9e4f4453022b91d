"""Facts about the machine that bound what a loader can do: cores, quota, affinity, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

#: Where Linux tells what a control group may use.
CGROUP = Path("/sys/fs/cgroup")


def environment() -> dict[str, Any]:
    """What the process may use. ``cores`` is the smallest of the machine's cores, the affinity and the quota."""
    logical = os.cpu_count() or 1
    affinity = _affinity() or logical
    quota = cgroup_quota()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpus": logical,
        "affinity": affinity,
        "cgroup_quota": quota,
        "cores": min(affinity, quota) if quota else affinity,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


def _affinity() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return None


def cgroup_quota(root: Path = CGROUP) -> float | None:
    """CPU quota of the control group in cores, from its version 2 or version 1 files; None when unlimited."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if limit in ("max", "-1"):
        return None
    return int(limit) / int(period)

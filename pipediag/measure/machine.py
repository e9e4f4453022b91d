"""Read the machine's limits for a loader: cores, quota, affinity, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

#: Folder in which Linux describes the limits of a control group.
CGROUP = Path("/sys/fs/cgroup")


def environment() -> dict[str, Any]:
    """Return the process's resources. ``cores`` is the minimum of the machine's cores, the affinity and the quota."""
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
    """Return the control group's CPU quota in cores, from its version 2 or version 1 files, or None if unlimited."""
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

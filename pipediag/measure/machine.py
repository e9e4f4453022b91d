"""Read the machine's limits for a loader: cores, quota, affinity, memory; and what its GPUs do, if NVML tells."""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

#: Folder in which Linux describes the limits of a control group.
CGROUP = Path("/sys/fs/cgroup")
#: File that lists the control groups of the process on Linux.
_OWN_GROUPS = Path("/proc/self/cgroup")
#: Folder in which Linux describes the NUMA nodes.
NODES = Path("/sys/devices/system/node")


def environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpus": cpus(),
        "affinity": len(allowed_cpus()) or cpus(),
        "cgroup_quota": cgroup_quota(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


def cpus() -> int:
    """Return the number of the machine's logical CPUs."""
    return os.cpu_count() or 1


def cores() -> float:
    """Return the number of CPUs that the process may use: the minimum of the machine's, the affinity and the quota."""
    affinity, quota = len(allowed_cpus()) or cpus(), cgroup_quota()
    return min(affinity, quota) if quota else affinity


def numa_node(root: Path = NODES) -> int | None:
    """Return the NUMA node that holds all CPUs that the process may use, or None if there is not exactly one."""
    allowed = allowed_cpus()
    nodes = [folder for folder in root.glob("node[0-9]*") if allowed & _listed(folder / "cpulist")]
    return int(nodes[0].name.removeprefix("node")) if len(nodes) == 1 else None


def affinity() -> str:
    """Return the numbers of the CPUs that the process may use, as Linux writes them: ``0-3,8``; "" if unknown."""
    allowed = allowed_cpus()
    firsts = sorted(number for number in allowed if number - 1 not in allowed)
    lasts = sorted(number for number in allowed if number + 1 not in allowed)
    spans = zip(firsts, lasts, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def allowed_cpus() -> set[int]:
    """Return the CPUs that the process may use; empty if the platform does not say."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        return set()


def descriptors_left() -> int:
    """Return how many files this process may still open, or a large number if the system does not say."""
    most, unknown = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20
    try:
        return unknown if most == resource.RLIM_INFINITY else most - len(os.listdir("/proc/self/fd"))
    except OSError as error:
        return 0 if error.errno == errno.EMFILE else unknown


def _listed(file: Path) -> set[int]:
    """Return the numbers in one of Linux's lists, such as ``0-3,8``."""
    try:
        spans = [span.partition("-") for span in file.read_text().strip().split(",") if span]
        return {number for low, _, high in spans for number in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        return set()


def cgroup_quota(root: Path = CGROUP, own: Path = _OWN_GROUPS) -> float | None:
    """Return the smallest CPU quota of the control groups that the process is in, in cores, or None if unlimited."""
    quotas = [_quota_of(folder) for folder in group_folders(own, root, "cpu")]
    return min((quota for quota in quotas if quota), default=None)


def _quota_of(group: Path) -> float | None:
    """Return a control group's CPU quota in cores, from its version 2 or version 1 files, or None if unlimited."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            limit, period = " ".join((group / name).read_text() for name in names).split()
            return int(limit) / int(period) if int(limit) > 0 else None
        except (OSError, ValueError, ZeroDivisionError):  # a root group has no such files; "max" is no number
            continue
    return None


#: Folder through which torch transfers batches between processes on Linux.
_SHARED = Path("/dev/shm")


def free_bytes(root: Path = CGROUP) -> int:
    """Return the bytes the process may still take: free on the machine, but no more than its control groups allow."""
    return min(free for _, free in limits(root))


def limits(root: Path = CGROUP, own: Path = _OWN_GROUPS) -> Iterator[tuple[int, int]]:
    """Yield total and free bytes of the machine, and of each limited control group that the process is in."""
    machine = psutil.virtual_memory()
    yield int(machine.total), int(machine.available)
    for folder in group_folders(own, root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                texts = [(folder / name).read_text() for name in (limit, used, "memory.stat")]
                found = limit_of(*texts)
            except (OSError, ValueError):  # a root group has no such files
                continue
            if found is not None:
                yield found


def group_folders(own: Path, root: Path, controller: str) -> list[Path]:
    """Return the folders of the control groups that limit what a process takes.

    Args:
        own: its ``/proc/<pid>/cgroup``.
        controller: ``cpu`` or ``memory``, which version 1 keeps apart.
        root: where control groups are mounted. In a container this may be the process's own group, and the path
            in that file may not exist below it.
    """
    try:
        groups = own.read_text()
    except OSError:  # not on this platform
        groups = ""
    folders = {root: None, root / controller: None}  # without duplicates, in order
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            mount = root if number == "0" else root / controller
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
    most = 0
    for pid in pids:
        with suppress(psutil.Error, AttributeError, OSError):
            most = max(most, int(psutil.Process(pid).memory_full_info().uss))
    return most


class Gpu:
    """A GPU as NVIDIA's management library knows it, if ``nvidia-ml-py`` is installed."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, uuid: str) -> Gpu | None:
        """Return the GPU with this UUID (as torch gives it, without the ``GPU-`` prefix), or None without NVML."""
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except Exception:  # no library, no driver, no such device: evidence is optional
            return None

    @classmethod
    def used_by(cls, pid: int) -> list[Gpu]:
        """Return the GPUs on which a process computes; empty if NVML is missing or does not tell."""
        try:
            import pynvml

            pynvml.nvmlInit()
            every = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [
                cls(pynvml, one)
                for one in every
                if any(user.pid == pid for user in pynvml.nvmlDeviceGetComputeRunningProcesses(one))
            ]
        except Exception:
            return []

    @property
    def name(self) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetName(self._handle))
        except Exception:
            return "GPU"

    def utilization(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100.0
        except Exception:
            return None

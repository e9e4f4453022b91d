"""Gather evidence during a window, outside the clock. Evidence accompanies the verdict; it never determines it.

Keys of :attr:`pipediag.session.Window.evidence`:

``worker_ms``      wall milliseconds a worker took to make one batch, without ``own_ms``
``typical_ms``     the median of those times: a few batches that take far longer leave it as it is
``own_ms``         milliseconds per batch that pipediag itself took in a worker; no other figure contains them
``worker_cpu``     share of that time on a CPU, its own or that of programs that it ran (above 1 if several run)
``worker_blocked`` share of it spent waiting: for storage, the network, a lock, a sleep
``worker_queued``  share of it spent runnable without a core to run on (Linux)
``collate_ms``     milliseconds of ``worker_ms`` spent in the collate function
``copy_ms``        milliseconds per batch spent copying cached items, which training without pipediag does not do
``wait_ms``        milliseconds per step spent waiting for a batch: on a device with events, its idle time (see
                   :class:`.window.StepClock`); otherwise the loop's time in ``next()``
``next_ms``        milliseconds per step that the loop spent in ``next()``, whether the device was busy or not
``late_ms``        the part of ``next_ms`` in which the workers were still making the batch; the rest is its hand-off
``sampler_ms``     the part of ``next_ms`` in which the sampler chose the indices of a later batch, in the loop's thread
``stalled_ms``     the part of ``next_ms`` in which later batches were ready but one slow batch held them up
``beside_ms``      milliseconds per step in ``next()`` of other loaders that the training draws from in its steps
``rare``           number of steps that took far longer than those around them; see :mod:`.rare_steps`
``rare_wait_ms``   milliseconds that these add to a mean step by waiting for a batch; ``rare_train_ms``: by the rest
``rare_wait_root`` square root of the sum of the squares of what each of them waits longer, in milliseconds;
                   ``rare_train_root``: of the rest
``stock``          queued batches at the end minus queued batches at the beginning
``process_cpu``    cores used by the training process itself
``cores_used``     cores used by the training process and its workers together
``cores_busy``     cores used by any process, of those that this process may run on
``disk_read_mb``   megabytes per batch that the workers read from storage rather than from the page cache (Linux)
``gpu_utilization`` share of the last second in which a kernel ran (0 to 1; NVIDIA, with nvidia-ml-py installed)
"""

from __future__ import annotations

import math
import os
import resource
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

from ..clock import time
from .machine import Gpu, allowed_cpus

#: Share of a batch's time up to which pipediag's own part does not matter for the rest.
_LITTLE = 0.1


class BatchCost(NamedTuple):
    """Seconds that a worker spent on one batch: wall, on a CPU, waiting for a core, copying cached items, collating.

    ``own`` is what pipediag itself took besides; neither ``wall`` nor ``cpu`` contains it.
    """

    wall: float = 0.0
    cpu: float = 0.0
    queued: float = 0.0
    copy: float = 0.0
    collate: float = 0.0
    own: float = 0.0


class Evidence:
    """Counters read at both ends of a window, outside the timed stretch.

    Args:
        trains: the process that trains, if it is not this one.
    """

    def __init__(self, worker_pids: Sequence[int], gpu: Gpu | None, trains: int | None = None) -> None:
        self._trains = psutil.Process(trains)
        self._workers = [p for p in map(_process, worker_pids or [self._trains.pid]) if p is not None]
        self._gpu = gpu
        self._before = self._read()

    def _read(self) -> tuple[float, ...]:
        own, programs = self._own()
        # This process's own children are the workers, or without them the programs that make its batches.
        made = sum(_cpu_seconds(w) if w.pid != self._trains.pid else programs for w in self._workers)
        disk = sum(map(_disk_bytes, self._workers))
        return time.perf_counter(), own, own + made, sum(map(_busy, _cpu_times())), disk

    def _own(self) -> tuple[float, float]:
        """Return the CPU time of the process that trains, and of the programs that it has run to their end."""
        if self._trains.pid == os.getpid():
            return time.process_time(), cpu_of_programs()
        try:
            times = self._trains.cpu_times()
        except psutil.Error:
            return 0.0, 0.0
        return times.user + times.system, times.children_user + times.children_system

    def finish(self, steps: int) -> dict[str, float]:
        """Return the figures of the window that ends now."""
        before, after = self._before, self._read()
        wall, process, used, busy, disk = (b - a for a, b in zip(before, after, strict=True))
        if wall <= 0:
            return {}
        figures = {"process_cpu": process / wall, "cores_busy": busy / wall}
        if all(worker.is_running() for worker in self._workers):  # an epoch's end may have ended them
            figures["cores_used"] = used / wall
            if not math.isnan(disk):
                figures["disk_read_mb"] = max(0.0, disk) / 1e6 / max(1, steps)
        utilization = self._gpu.utilization() if self._gpu else None
        if utilization is not None:
            figures["gpu_utilization"] = utilization
        return {key: round(value, 4) for key, value in figures.items()}


def worker_figures(costs: Sequence[BatchCost]) -> dict[str, float]:
    """Return averages of the costs that workers report with every batch.

    Batches of which pipediag took a large part are left out if there are others: code under inspection is not quite the
    user's.
    """
    if not costs:
        return {}
    own_ms = 1000 * sum(cost.own for cost in costs) / len(costs)
    costs = [cost for cost in costs if cost.own <= _LITTLE * cost.wall] or costs
    wall, cpu, queued, copy, collate, _ = (sum(column) for column in zip(*costs, strict=True))
    if wall <= 0:
        return {}
    figures = {
        "worker_ms": 1000 * wall / len(costs),
        "typical_ms": 1000 * statistics.median(cost.wall for cost in costs),
        "worker_cpu": cpu / wall,
        "worker_queued": queued / wall,
        "worker_blocked": max(0.0, wall - cpu - queued) / wall,
    }
    if own_ms > 0:
        figures["own_ms"] = own_ms
    if collate > 0:
        figures["collate_ms"] = 1000 * collate / len(costs)
    if copy > 0:
        figures["copy_ms"] = 1000 * copy / len(costs)
    return {key: round(value, 4) for key, value in figures.items()}


def _cpu_times() -> list[Any]:
    """Return the CPU times of each core that this process may run on; of all cores if that is unknown."""
    cpus, allowed = psutil.cpu_times(percpu=True), allowed_cpus()
    return [times for number, times in enumerate(cpus) if number in allowed] or cpus


def _busy(times: Any) -> float:
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    # On Linux, user time already includes guest time; counting it twice would show cores that do not exist.
    return float(busy - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of the programs that it has run to their end."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def cpu_of_programs() -> float:
    """Return the seconds of CPU time of the programs that this process has run to their end, such as ffmpeg."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _disk_bytes(process: psutil.Process) -> float:
    """Return the bytes the process has read from storage, without reads served by the page cache; NaN if unknown."""
    try:
        return float(process.io_counters().read_bytes)  # type: ignore[attr-defined,unused-ignore]
    except (psutil.Error, AttributeError, OSError):
        return math.nan

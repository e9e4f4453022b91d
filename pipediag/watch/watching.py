"""Watch the processes of a training: sample their stacks for some seconds, and read Linux's counters at both ends."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..analysis.ranks.merging import job_session
from ..errors import PipediagError
from ..measure.account import Counters, Times
from ..measure.evidence import Evidence
from ..measure.machine import cores
from ..session import Rank, Session
from .processes import Training, workers_of
from .sampling import SECONDS_A_SAMPLE, Recording, local_numbers
from .seen import Seen, Stretch, session_of
from .sources import Sources
from .steps import Look

#: Cores that py-spy may take of a machine whose cores are all busy, and of each idle one; and in all.
_BUSY, _IDLE, _MOST = 0.003, 0.05, 0.06
#: Part of that for the loop's thread; the rest is for all other processes.
_LOOP = 0.6
#: Bounds of the samples a second: of the loop's thread, and of all processes together.
_LOOP_RATES, _ALL_RATES = (4.0, 50.0), (1.0, 20.0)
#: The same for the first seconds, which are few: steps are counted in them if the loop keeps no number.
_FIRST_RATES = (50.0, 6.0)
#: Seconds for which idle cores are measured before the rates are chosen.
_GLANCE = 0.3
#: Number of the last stretches from which a live view is drawn.
_KEPT = 8


@dataclass
class _Process:
    """One process that trains, what was seen of it, and its counters at the beginning."""

    training: Training
    evidence: Evidence
    threads: dict[int, Times]
    began: float
    sources: Sources
    stretches: list[Stretch] = field(default_factory=list)
    looks: list[tuple[float, dict[int, Look]]] = field(default_factory=list)
    worker_looks: list[Look] = field(default_factory=list)
    workers: dict[int, tuple[float, Times]] = field(default_factory=dict)
    ended: bool = False


class Watching:
    """A training under watch: call :meth:`look` as often as wanted, and :meth:`session` for what is known by then.

    Args:
        job: the ranks of one training, or its only process.

    Raises:
        PipediagError: a process cannot be read; the message says what to do.
    """

    def __init__(self, job: Sequence[Training]) -> None:
        self._processes = []
        for one in job:
            sources = Sources(f"/proc/{one.pid}/root", one.folder)
            gpu = one.gpus[0] if one.gpus else None
            evidence = Evidence(one.workers, gpu, one.pid)
            self._processes.append(_Process(one, evidence, _times(one.pid), time.monotonic(), sources))
            self._read_numbers(self._processes[-1])
        self._rates = _rates(sum(1 + len(one.workers) for one in job), len(job))

    @property
    def ended(self) -> bool:
        """True if a process has ended."""
        return any(one.ended for one in self._processes)

    def look(self, seconds: float) -> None:
        """Sample all processes for some seconds. Processes that have ended are found, and end it."""
        first = not any(one.stretches for one in self._processes)
        loop_rate, all_rate = map(max, self._rates, _FIRST_RATES) if first else self._rates
        begun, recordings = time.monotonic(), []
        for one in self._processes:
            pid = one.training.pid
            for worker in workers_of(pid):
                one.workers.setdefault(worker, (time.monotonic(), _times(worker).get(worker, Times(0.0, 0.0))))
            recordings.append((Recording(pid, seconds, loop_rate, False), Recording(pid, seconds, all_rate, True)))
        gpu = []
        try:
            while not self.ended and (left := begun + seconds - time.monotonic()) > 0:
                time.sleep(min(0.5, left))
                for one in self._processes:
                    one.ended = not psutil.pid_exists(one.training.pid)
                gpu += [
                    used
                    for one in self._processes
                    for card in one.training.gpus[:1]
                    if (used := card.utilization()) is not None
                ]
        finally:
            for recording in (one for pair in recordings for one in pair):
                recording.stop()
            found = [(of_loop.threads(), of_all.threads()) for of_loop, of_all in recordings]
        for one, (of_loop, of_all) in zip(self._processes, found, strict=True):
            one.stretches.append(
                Stretch(time.monotonic() - begun, of_loop, of_all, sum(gpu) / len(gpu) if gpu else None)
            )
            with suppress(PipediagError):
                self._read_numbers(one)
            del one.stretches[:-_KEPT], one.looks[:-_KEPT], one.worker_looks[:-_KEPT]

    def _read_numbers(self, one: _Process) -> None:
        """Read the numbers on the stacks of a process, and of one of its workers that makes a batch.

        Raises:
            PipediagError: the process cannot be read.
        """
        threads = local_numbers(one.training.pid)
        now = time.monotonic()
        one.looks.append((now, {tid: Look(now, one.training.pid, frames) for tid, frames in threads.items()}))
        before = [look.pid for look in one.worker_looks]
        for worker in sorted(workers_of(one.training.pid), key=lambda pid: pid not in before)[:1]:
            with suppress(PipediagError):  # it has ended
                one.worker_looks.append(Look(time.monotonic(), worker, local_numbers(worker).get(worker, [])))

    def session(self) -> Session:
        """Return what was seen as a session: of a job, that of the rank that waits longest, with all ranks.

        Raises:
            NothingMeasured: no stack was seen.
        """
        sessions = {}
        for number, one in enumerate(self._processes):
            seen = session_of(self._seen(one))
            if len(self._processes) > 1:
                number = one.training.rank if one.training.rank is not None else number
                world = max(one.training.world_size, number + 1, len(self._processes))
                seen.ranks = [Rank(number, world, host=os.uname().nodename, workers=seen.workers, cores=cores())]
            sessions[number] = seen
        return job_session(sessions)

    def _seen(self, one: _Process) -> Seen:
        now = time.monotonic()
        since = {
            tid: times.since(one.threads[tid]) for tid, times in _times(one.training.pid).items() if tid in one.threads
        }
        workers = []
        for pid, (began, before) in one.workers.items():
            if (after := _times(pid).get(pid)) is not None:
                workers.append((now - began, after.since(before)))
        return Seen(
            one.training, one.sources, one.stretches, one.looks, one.worker_looks, one.evidence,
            now - one.began, since, workers, one.ended,
        )  # fmt: skip


def _rates(processes: int, trainings: int) -> tuple[float, float]:
    """Return the samples a second of each loop's thread and of all processes, within the time that is there for it."""
    before = psutil.cpu_times()
    time.sleep(_GLANCE)
    idle = max(0.0, psutil.cpu_times().idle - before.idle) / _GLANCE
    spare = min(_MOST, _BUSY * cores() + _IDLE * max(0.0, idle - 0.5))
    wanted = (_LOOP * spare / trainings, (1 - _LOOP) * spare / processes)
    bounds = (_LOOP_RATES, _ALL_RATES)
    each = [
        min(most, max(least, share / SECONDS_A_SAMPLE)) for share, (least, most) in zip(wanted, bounds, strict=True)
    ]
    return each[0], each[1]


def _times(pid: int) -> dict[int, Times]:
    return Counters(Path(f"/proc/{pid}/task")).others()

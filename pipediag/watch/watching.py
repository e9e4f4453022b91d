"""Watch the processes of a training: sample their stacks for some seconds, and read Linux's counters at both ends."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ..analysis.ranks.merging import job_session
from ..errors import PipediagError
from ..measure.account import Counters, Times
from ..measure.evidence import Evidence
from ..measure.machine import cores
from ..session import Rank, Session
from .processes import Training
from .sampling import SECONDS_A_SAMPLE, Recording, local_numbers
from .seen import Seen, Stretch, session_of
from .sources import Sources
from .steps import READS, Look, middle

#: Cores that py-spy may take of a machine whose cores are all busy, and of each idle one; and in all.
_BUSY, _IDLE, _MOST = 0.003, 0.05, 0.06
#: Part of that for the processes that train; the rest is for workers.
_LOOP = 0.6
#: Bounds of the samples a second: of a process that trains, and of a worker.
_LOOP_RATES, _WORKER_RATES = (4.0, 50.0), (1.0, 20.0)
#: The same for the first seconds, which are few: steps are counted in them if the loop keeps no number.
_FIRST_RATES = (80.0, 6.0)
#: Seconds for which idle cores are measured before the rates are chosen, and between looks whether a process has ended.
_GLANCE = 0.3
#: Seconds that must be left for sampling new workers.
_AGAIN = 2
#: Seconds after which py-spy is ended that was not ready in time.
_LATE = 10.0
#: Number of workers that are sampled: all do the same.
_WORKERS = 4
#: Number of the last stretches and looks that are kept.
_KEPT = 8


class Watching:
    """A training under watch: call :meth:`look` as often as wanted, and :meth:`session` for what is known by then.

    Args:
        job: the ranks of one training, or its only process.

    Raises:
        PipediagError: a process cannot be read; the message says what to do.
    """

    def __init__(self, job: Sequence[Training]) -> None:
        self._seen = []
        for one in job:
            evidence = Evidence(one.workers, one.gpus[0] if one.gpus else None, one.pid)
            seen = Seen(one, Sources(f"/proc/{one.pid}/root", one.folder), evidence, time.monotonic(), _times(one.pid))
            self._read_numbers(seen)
            self._seen.append(seen)
        self._rates = _rates(len(job), sum(min(_WORKERS, len(one.workers)) for one in job))

    @property
    def ended(self) -> bool:
        return any(one.ended for one in self._seen)

    def look(self, seconds: int) -> None:
        """Sample all processes for some seconds, or until one of them ends."""
        first = not self._seen[0].stretches
        loop_rate, worker_rate = map(max, self._rates, _FIRST_RATES) if first else self._rates
        begun, gpu = time.monotonic(), list[float]()
        loops = [Recording(one.training.pid, seconds, loop_rate) for one in self._seen]
        others: list[list[Recording]] = [[] for _ in self._seen]
        numbers = [self._record_workers(*pair, seconds, worker_rate) for pair in zip(self._seen, others, strict=True)]
        cards = [one.training.gpus[0] for one in self._seen if one.training.gpus]
        try:
            late = begun + seconds + _LATE
            while not self.ended and any(one.runs for one in loops) and time.monotonic() < late:
                time.sleep(_GLANCE)
                if (left := round(begun + seconds - time.monotonic())) >= _AGAIN:
                    for pair in zip(self._seen, others, strict=True):  # a new epoch may have begun
                        self._record_workers(*pair, left, worker_rate)
                gpu += [used for card in cards if (used := card.utilization()) is not None]
                for one in self._seen:
                    one.ended = not _runs(one.training.pid)
        finally:
            recordings = [[of_loop, *of_workers] for of_loop, of_workers in zip(loops, others, strict=True)]
            for recording in (one for of_one in recordings for one in of_one):
                recording.stop()
            threads = [[thread for one in of_one for thread in one.threads()] for of_one in recordings]
        busy, took = sum(gpu) / len(gpu) if gpu else None, time.monotonic() - begun
        for one, sampled, number in zip(self._seen, threads, numbers, strict=True):
            one.stretches.append(Stretch(took, sampled, number, busy))
            one.passed, now = time.monotonic() - one.began, _times(one.training.pid)
            one.threads = {tid: now[tid].since(before) for tid, before in one.before.items() if tid in now}
            after = {pid: _times(pid).get(pid) for pid in one.workers}
            one.spent = [
                (time.monotonic() - begun, times.since(before))
                for pid, (begun, before) in one.workers.items()
                if (times := after[pid]) is not None
            ]
            with suppress(PipediagError):  # it has ended
                self._read_numbers(one)
            del one.stretches[:-_KEPT], one.looks[:-_KEPT], one.worker_looks[:-_KEPT]

    def _record_workers(self, seen: Seen, recordings: list[Recording], seconds: int, rate: float) -> int:
        """Sample some workers in place of those that have ended; return the number of all workers."""
        if recordings and sum(one.runs for one in recordings) >= min(_WORKERS, len(recordings)):
            return 0
        workers, known = seen.training.workers, {one.pid for one in recordings}
        for worker in workers:
            seen.workers.setdefault(worker, (time.monotonic(), _times(worker).get(worker, Times(0.0, 0.0))))
            if worker not in known and sum(one.runs for one in recordings) < _WORKERS:
                recordings.append(Recording(worker, seconds, rate))
        return len(workers)

    def _read_numbers(self, seen: Seen) -> None:
        """Read the numbers on the stacks of a process, and of one of its workers.

        Raises:
            PipediagError: the process cannot be read.
        """
        pid = seen.training.pid
        threads, now = local_numbers(pid), time.monotonic()
        seen.looks.append({tid: Look(now, pid, frames) for tid, frames in threads.items()})
        before = [look.pid for look in seen.worker_looks]
        for worker in sorted(seen.training.workers, key=lambda pid: pid not in before)[:1]:
            looks = list[Look]()
            with suppress(PipediagError):
                while len(looks) < 2 * READS and (sure := middle(looks)) is None:
                    looks.append(Look(time.monotonic(), worker, local_numbers(worker).get(worker, [])))
                if sure is not None:
                    seen.worker_looks.append(sure)

    def session(self) -> Session:
        """Return what was seen as a session: of a job, that of the rank that waits longest, with all ranks.

        Raises:
            NothingMeasured: no stack was seen, or a process neither trained nor drew batches.
        """
        sessions = {}
        for number, one in enumerate(self._seen):
            session, rank = session_of(one), one.training.rank
            if len(self._seen) > 1:
                number = rank if rank is not None else number
                world = max(one.training.world_size, number + 1, len(self._seen))
                session.ranks = [Rank(number, world, os.uname().nodename, workers=session.workers, cores=cores())]
            sessions[number] = session
        return job_session(sessions)


def _rates(trainings: int, workers: int) -> tuple[float, float]:
    """Return the samples a second of each loop's thread and of each worker, within the time that is there for it."""
    before = psutil.cpu_times()
    time.sleep(_GLANCE)
    idle = max(0.0, psutil.cpu_times().idle - before.idle) / _GLANCE
    samples = min(_MOST, _BUSY * cores() + _IDLE * max(0.0, idle - 0.5)) / SECONDS_A_SAMPLE
    of_loop, of_worker = _LOOP * samples / trainings, (1 - _LOOP) * samples / max(1, workers)
    return sorted((*_LOOP_RATES, of_loop))[1], sorted((*_WORKER_RATES, of_worker))[1]


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _times(pid: int) -> dict[int, Times]:
    return Counters(Path(f"/proc/{pid}/task")).others()

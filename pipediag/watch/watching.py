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
from .steps import Look

#: Cores that py-spy may take of a machine whose cores are all busy, and of each idle one; and in all.
_BUSY, _IDLE, _MOST = 0.003, 0.05, 0.06
#: Part of that for the loops' threads; the rest is for all other threads and processes.
_LOOP = 0.6
#: Bounds of the samples a second: of a loop's thread, and of all processes.
_LOOP_RATES, _ALL_RATES = (4.0, 50.0), (1.0, 20.0)
#: The same for the first seconds, which are few: steps are counted in them if the loop keeps no number.
_FIRST_RATES = (80.0, 6.0)
#: Seconds for which idle cores are measured before the rates are chosen, and between looks whether a process has ended.
_GLANCE = 0.3
#: Seconds after which py-spy is ended that was not ready in time.
_LATE = 10.0
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
        self._rates = _rates(len(job), sum(1 + len(one.workers) for one in job))

    @property
    def ended(self) -> bool:
        """True if a process has ended."""
        return any(one.ended for one in self._seen)

    def look(self, seconds: int) -> None:
        """Sample all processes for some seconds, or until one of them ends."""
        first = not self._seen[0].stretches
        loop_rate, all_rate = map(max, self._rates, _FIRST_RATES) if first else self._rates
        begun, recordings, gpu = time.monotonic(), [], list[float]()
        for one in self._seen:
            pid = one.training.pid
            for worker in one.training.workers:
                one.workers.setdefault(worker, (time.monotonic(), _times(worker).get(worker, Times(0.0, 0.0))))
            recordings.append((Recording(pid, seconds, loop_rate, False), Recording(pid, seconds, all_rate, True)))
        cards = [one.training.gpus[0] for one in self._seen if one.training.gpus]
        try:
            late = begun + seconds + _LATE
            while not self.ended and any(one.runs for pair in recordings for one in pair) and time.monotonic() < late:
                time.sleep(_GLANCE)
                gpu += [used for card in cards if (used := card.utilization()) is not None]
                for one in self._seen:
                    one.ended = not _runs(one.training.pid)
        finally:
            for pair in recordings:
                for recording in pair:
                    recording.stop()
            threads = [(of_loop.threads(), of_all.threads()) for of_loop, of_all in recordings]
        busy, took = sum(gpu) / len(gpu) if gpu else None, min(seconds, time.monotonic() - begun)
        for one, (of_loop, of_all) in zip(self._seen, threads, strict=True):
            one.stretches.append(Stretch(took, of_loop or of_all, of_all, busy))
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
            with suppress(PipediagError):
                seen.worker_looks.append(Look(time.monotonic(), worker, local_numbers(worker).get(worker, [])))

    def session(self) -> Session:
        """Return what was seen as a session: of a job, that of the rank that waits longest, with all ranks.

        Raises:
            NothingMeasured: no stack was seen.
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


def _rates(trainings: int, processes: int) -> tuple[float, float]:
    """Return the samples a second of each loop's thread and of all processes, within the time that is there for it."""
    before = psutil.cpu_times()
    time.sleep(_GLANCE)
    idle = max(0.0, psutil.cpu_times().idle - before.idle) / _GLANCE
    samples = min(_MOST, _BUSY * cores() + _IDLE * max(0.0, idle - 0.5)) / SECONDS_A_SAMPLE
    of_loop, of_all = _LOOP * samples / trainings, (1 - _LOOP) * samples / processes
    return sorted((*_LOOP_RATES, of_loop))[1], sorted((*_ALL_RATES, of_all))[1]


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _times(pid: int) -> dict[int, Times]:
    return Counters(Path(f"/proc/{pid}/task")).others()

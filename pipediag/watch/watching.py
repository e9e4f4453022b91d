"""Watch the processes of a training for some seconds, and make a session of what was seen."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .._version import __version__
from ..analysis.ranks.merging import job_session
from ..analysis.words import percent
from ..errors import NothingMeasured, PipediagError
from ..measure.account import Counters, Times
from ..measure.evidence import Evidence, Gpu
from ..measure.machine import cores, environment
from ..session import Cost, Inside, Loader, Observed, Rank, Script, Session, Watched
from ..session.private import masked
from . import stacks
from .processes import Training, workers_of
from .sampling import SECONDS_A_SAMPLE, LocalFrame, Recording, Stack, Thread, local_numbers
from .sources import Sources
from .steps import Look, blocks, counted

#: Cores that py-spy may take of a machine whose cores are all busy, and of each idle one; and in all.
_BUSY, _IDLE, _MOST = 0.003, 0.05, 0.06
#: Part of that for the loop's thread; the rest is for all other processes.
_LOOP = 0.6
#: Bounds of the samples a second: of the loop's thread, and of all processes together.
_LOOP_RATES, _ALL_RATES = (4.0, 50.0), (1.0, 20.0)
#: Seconds for which idle cores are measured before the rates are chosen.
_GLANCE = 0.3
#: Cores that other processes must use, and share of the loop's time without a core, to be worth a word.
_OTHERS, _QUEUED = 0.4, 0.05
#: Share of a worker's time in which it waits for storage or the network, from which on it is said.
_BLOCKED = 0.2
_GATE_START = 0.05


@dataclass
class _Process:
    """What is gathered of one process that trains, over all looks."""

    training: Training
    sources: Sources
    evidence: Evidence
    times: dict[int, Times]
    workers: dict[int, dict[int, Times]]
    began: float
    loop: list[Thread] = field(default_factory=list)
    all: list[Thread] = field(default_factory=list)
    seconds: float = 0.0
    looks: list[tuple[float, dict[int, list[LocalFrame]]]] = field(default_factory=list)
    worker_looks: list[Look] = field(default_factory=list)
    gpu: list[float] = field(default_factory=list)
    ended: bool = False


class Watching:
    """A training under watch: call :meth:`look` as often as wanted, and :meth:`session` for what is known by then.

    Args:
        job: the ranks of one training, or its only process.

    Raises:
        PipediagError: a process cannot be read; the message says what to do.
    """

    def __init__(self, job: Sequence[Training]) -> None:
        self._gpus = {one.pid: _gpu_of(one) for one in job}
        self._processes = [self._begun(one) for one in job]
        self._rates = _rates(sum(1 + len(one.workers) for one in job), len(job))

    def _begun(self, training: Training) -> _Process:
        pid = training.pid
        looks = [(time.monotonic(), local_numbers(pid))]
        sources = Sources(f"/proc/{pid}/root", training.folder)
        evidence = Evidence(training.workers, self._gpus[pid], pid)
        found = _Process(training, sources, evidence, _times(pid), {}, time.monotonic(), looks=looks)
        self._look_at_worker(found)
        return found

    @property
    def ended(self) -> bool:
        """True if a process has ended."""
        return any(one.ended for one in self._processes)

    def look(self, seconds: float) -> None:
        """Sample all processes for some seconds."""
        loop_rate, all_rate = self._rates
        begun = time.monotonic()
        recordings = []
        for one in self._processes:
            for worker in workers_of(one.training.pid):
                one.workers.setdefault(worker, _times(worker))
            recordings.append((one, one.loop, Recording(one.training.pid, seconds, loop_rate, False)))
            recordings.append((one, one.all, Recording(one.training.pid, seconds, all_rate, True)))
        try:
            while time.monotonic() - begun < seconds:
                for one in self._processes:
                    gpu = self._gpus[one.training.pid]
                    used = gpu.utilization() if gpu is not None else None
                    one.gpu += [used] if used is not None else []
                    one.ended = one.ended or not psutil.pid_exists(one.training.pid)
                if self.ended:
                    break
                time.sleep(min(0.5, max(0.0, begun + seconds - time.monotonic())))
        finally:
            for _, _, recording in recordings:
                recording.stop()
            for _, kept, recording in recordings:
                kept += recording.threads()
        for one in self._processes:
            one.seconds += time.monotonic() - begun
            with suppress(PipediagError):
                one.looks.append((time.monotonic(), local_numbers(one.training.pid)))
            self._look_at_worker(one)

    def _look_at_worker(self, one: _Process) -> None:
        known = [look.pid for look in one.worker_looks]
        alive = [pid for pid in (*known, *workers_of(one.training.pid)) if psutil.pid_exists(pid)]
        for worker in alive[:1]:
            with suppress(PipediagError):
                frames = local_numbers(worker).get(worker, [])
                one.worker_looks.append(Look(time.monotonic(), worker, frames))

    def session(self) -> Session:
        """Return what was seen as a session: of a job, that of the rank that waits longest, with all ranks.

        Raises:
            NothingMeasured: no stack was seen.
        """
        sessions = {}
        for number, one in enumerate(self._processes):
            seen = _session(one)
            if len(self._processes) > 1:
                rank = one.training.rank if one.training.rank is not None else number
                world = max(one.training.world_size, rank + 1, len(self._processes))
                seen.ranks = [Rank(rank, world, host=os.uname().nodename, workers=seen.workers, cores=cores())]
                number = rank
            sessions[number] = seen
        return job_session(sessions)


def _rates(processes: int, trainings: int) -> tuple[float, float]:
    """Return the samples a second of each loop's thread and of all processes, within the time that is there for it."""
    before = psutil.cpu_times()
    time.sleep(_GLANCE)
    idle = max(0.0, psutil.cpu_times().idle - before.idle) / _GLANCE
    spare = min(_MOST, _BUSY * cores() + _IDLE * max(0.0, idle - 0.5))
    of_loop = _LOOP * spare / (SECONDS_A_SAMPLE * trainings)
    of_all = (1 - _LOOP) * spare / (SECONDS_A_SAMPLE * processes)
    return _within(of_loop, _LOOP_RATES), _within(of_all, _ALL_RATES)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], value))


def _times(pid: int) -> dict[int, Times]:
    return Counters(Path(f"/proc/{pid}/task")).others()


def _gpu_of(training: Training) -> Gpu | None:
    return training.gpus[0] if training.gpus else None


def _merged(threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads of several recordings, each with all its stacks in order."""
    found: dict[tuple[int, int], Thread] = {}
    for one in threads:
        key = (one.pid, one.tid)
        if key in found:
            found[key].stacks.extend(one.stacks)
        else:
            found[key] = one._replace(stacks=list(one.stacks))
    return [*found.values()]


def _session(seen: _Process) -> Session:
    training, source = seen.training, seen.sources
    pid, seconds = training.pid, seen.seconds
    everything = _merged(seen.all)
    loop = stacks.loop_thread(_merged(seen.loop) or everything, pid)
    if loop is None or not loop.stacks:
        raise NothingMeasured(f"process {pid} {'has ended' if seen.ended else 'runs no Python that could be seen'}")
    wraps = stacks.wrappers(loop.stacks)
    moments = [stacks.of_loop(stack, wraps, source) for stack in loop.stacks]
    looks = [Look(at, pid, threads.get(loop.tid, [])) for at, threads in seen.looks]
    count = counted(looks, seen.worker_looks, loop.stacks, seconds)
    steps = max(1, round(count.per_s * seconds)) if count is not None else max(1, round(seconds))
    workers = [one for one in everything if one.tid == one.pid and any(map(stacks.is_worker, one.stacks))]
    number = _simultaneous(workers)
    waiting = [(stack, one) for stack, one in zip(loop.stacks, moments, strict=True) if one.waiting]
    made, busy = _made(waiting, workers, [one for one in everything if one.tid != loop.tid], source)
    share = sum(one.waiting for one in moments) / len(moments)
    worker_ms = 1000 * seconds * (busy * max(1, number) if number else share) / steps
    evidence = seen.evidence.finish(steps)
    if seen.gpu:
        evidence["gpu_utilization"] = round(sum(seen.gpu) / len(seen.gpu), 4)
    evidence |= _worker_times(seen, busy) if number and busy else {}
    session = Session(
        tool_version=__version__,
        script=Script(argv=masked(training.argv), passes=1),
        environment={name: value for name, value in environment().items() if name != "python"},
        device=_device(training),
        loader=_loader(loop.stacks, moments, workers, number, source),
        observed=[
            Observed(here, took, waited, worker_ms, evidence=evidence)
            for here, took, waited in blocks(moments, seconds, steps)
        ],
        watched=Watched(
            pid,
            round(seconds, 1),
            len(moments),
            {kind: round(sum(one.kind == kind for one in moments) / len(moments), 4) for kind in _KINDS},
            count.by if count is not None else "",
            seen.ended,
            _command(training),
        ),
        ended="watched",
    )
    if made:
        whole = Cost(worker_ms, worker_ms * evidence.get("worker_cpu", 1.0))
        session.inside = Inside(len(made), whole, whole, lines=stacks.hot_lines(made, source), looks=len(made))
    _warn(session, seen, loop.tid, evidence)
    return session


_KINDS = (stacks.DATA, stacks.START, stacks.TRAINS, stacks.OTHER)


def _simultaneous(workers: Sequence[Thread]) -> int:
    """Return how many of the workers that were seen there are at a time: each epoch may have started new ones."""
    if not workers:
        return 0
    most = max(len(one.stacks) for one in workers)
    return max(1, round(sum(len(one.stacks) for one in workers) / most))


def _made(
    waiting: Sequence[tuple[Stack, stacks.Moment]],
    workers: Sequence[Thread],
    beside: Sequence[Thread],
    source: Sources,
) -> tuple[list[tuple[Stack, str]], float]:
    """Return the calls that make batches with their stage, and the share of the workers' time in which they work."""
    in_workers, looks = [], 0
    for one in workers:
        looks += len(one.stacks)
        for stack in one.stacks:
            moment = stacks.of_worker(stack, source)
            if moment.kind != stacks.IDLE:
                in_workers.append((stack[moment.at + 1 :], moment.kind))
    busy = len(in_workers) / looks if looks else 0.0
    waits = sum(one.waits for _, one in waiting)
    if waiting and 2 * waits < len(waiting):
        own = [(stack, one) for stack, one in waiting if not one.waits and one.kind == stacks.DATA]
        return [_making(stack[one.at :], source) for stack, one in own], busy
    others = [stack for one in beside for stack in one.stacks if stacks.producing(stack)]
    return [*in_workers, *(_making(stack, source) for stack in others)], busy


def _making(stack: Stack, source: Sources) -> tuple[Stack, str]:
    """Return what is below the fetch of torch's loader, if there is one, with its stage."""
    moment = stacks.of_worker(stack, source)
    return (stack[moment.at + 1 :], moment.kind) if moment.kind != stacks.IDLE else (stack, stacks.LOADS)


def _worker_times(seen: _Process, busy: float) -> dict[str, float]:
    """Return how the workers spend the time in which they make batches; empty if they are gone."""
    cpu = queued = wall = 0.0
    for pid, before in seen.workers.items():
        now = _times(pid)
        if pid in now and pid in before:
            spent = now[pid].since(before[pid])
            cpu, queued, wall = cpu + spent.cpu, queued + spent.queue, wall + seen.seconds
    if not wall:
        return {}
    shares = {"worker_cpu": cpu / (wall * busy), "worker_queued": min(1.0, queued / (wall * busy))}
    shares["worker_blocked"] = max(0.0, 1 - shares["worker_cpu"] - shares["worker_queued"])
    return {name: round(share, 4) for name, share in shares.items()}


def _device(training: Training) -> dict[str, str]:
    if not training.on_gpu:
        return {"type": "cpu"}
    names = [gpu.name for gpu in training.gpus] or ["the GPU"]
    return {"type": "cuda", "name": names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"}


def _loader(
    seen: Sequence[Stack],
    moments: Sequence[stacks.Moment],
    workers: Sequence[Thread],
    number: int,
    source: Sources,
) -> Loader | None:
    """Return what is known of the loader: its workers, the loop's line, the dataset's class."""
    entries = [(stack, one.at) for stack, one in zip(seen, moments, strict=True) if one.waiting]
    if not entries and not workers:
        return None
    where, name, plain = "", "", not workers
    if entries:
        called = [(_line_above(stack, at), stack[at]) for stack, at in entries]
        where = max(called, key=lambda one: sum(one[0] == other[0] for other in called))[0]
        entry = max((frame for _, frame in called), key=lambda f: sum(f.name == other.name for _, other in called))
        torchs = any("torch/utils/data/" in frame.file for stack, _ in entries for frame in stack)
        plain, name = plain and not torchs, entry.name
    fetched = [one for thread in workers for one in thread.stacks] or [stack for stack, _ in entries]
    datasets = [name for stack in fetched if (name := _dataset(stack, source))]
    if datasets:
        name = max(datasets, key=datasets.count)
    elif not plain:
        name = "DataLoader"
    return Loader(name, num_workers=number, where=where, iterated=where, plain_iterable=plain)


def _line_above(stack: Stack, at: int) -> str:
    """Return the user's line that asks for the next batch."""
    above = [frame for frame in stack[:at] if stacks.users(frame)]
    return f"{above[-1].file}:{above[-1].line}" if above else ""


def _dataset(stack: Stack, source: Sources) -> str:
    """Return the class of the dataset whose item is fetched; "" if the names of functions do not tell."""
    moment = stacks.of_worker(stack, source)
    if moment.kind != stacks.LOADS or moment.at + 1 >= len(stack):
        return ""
    owner, _, method = stack[moment.at + 1].name.rpartition(".")
    return owner.rpartition(".")[2] if method.startswith("__") else ""


def _command(training: Training) -> str:
    argv = masked(training.argv)
    if not argv:
        return ""
    command = shlex.join(["pipediag", "analyze", *argv])
    return f"cd {shlex.quote(training.folder)} && {command}" if training.folder not in ("", os.getcwd()) else command


def _warn(session: Session, seen: _Process, loop: int, evidence: dict[str, float]) -> None:
    watched = session.watched
    assert watched is not None
    if watched.ended:
        session.warn("ended", f"process {watched.pid} ended after {watched.seconds:g} s of watching")
    start = watched.shares.get(stacks.START, 0.0)
    if start > _GATE_START:
        session.warn("starts", f"{percent(start)} of the time goes into starting the loader for an epoch")
    now = _times(watched.pid)
    if loop in now and loop in seen.times and watched.seconds:
        queued = now[loop].since(seen.times[loop]).queue / (time.monotonic() - seen.began)
        if queued > _QUEUED:
            session.warn("queued", f"the loop's thread waits {percent(queued)} of the time for a core")
    others = evidence.get("cores_busy", 0.0) - evidence.get("cores_used", evidence.get("cores_busy", 0.0))
    if others > _OTHERS:
        session.warn("foreign-load", f"other processes use {others:.1f} of {cores():g} cores")
    if evidence.get("worker_blocked", 0.0) > _BLOCKED:
        read = evidence.get("disk_read_mb", 0.0)
        how = f"they read {read:.3g} MB a batch from storage" if read >= 0.01 else "they read nothing from storage"
        session.warn("blocked", f"making batches, the workers are blocked {percent(evidence['worker_blocked'])}; {how}")

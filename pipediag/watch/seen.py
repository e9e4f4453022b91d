"""Make a session of what was seen of one process that trains."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .._version import __version__
from ..analysis.words import percent
from ..errors import NothingMeasured
from ..measure.account import Times
from ..measure.evidence import Evidence
from ..measure.machine import cores, environment
from ..session import Cost, Inside, Loader, Observed, Script, Session, Watched
from ..session.private import masked
from . import stacks
from .processes import Training
from .sampling import Stack, Thread
from .sources import Sources
from .stacks import Moment
from .steps import Look, blocks, counted

#: What the loop's thread may do.
_KINDS = (stacks.DATA, stacks.START, stacks.TRAINS, stacks.OTHER)
#: Cores that other processes must use to be worth a word.
_OTHERS = 0.4
#: Shares worth a word: of the loop's time without a core and in starting a loader, of a worker's time blocked.
_QUEUED, _STARTS, _BLOCKED = 0.05, 0.05, 0.2
#: Megabytes that a batch's workers must read from storage to be worth a word.
_READ = 0.01


@dataclass(frozen=True)
class Stretch:
    """Some seconds of sampling: the threads of the process that trains, those of all processes, and how busy its GPU
    was."""

    seconds: float
    loop: Sequence[Thread]
    all: Sequence[Thread]
    gpu: float | None = None


@dataclass(frozen=True)
class Seen:
    """What was seen of one process.

    Attributes:
        looks: single looks at the numbers on its threads' stacks, by time.
        worker_looks: the same for one of its workers.
        passed: seconds since its counters were first read.
        threads: what Linux counted of its threads since then.
        workers: the same for the main threads of its workers, with the seconds since each was first seen.
    """

    training: Training
    source: Sources
    stretches: Sequence[Stretch]
    looks: Sequence[tuple[float, dict[int, Look]]]
    worker_looks: Sequence[Look]
    evidence: Evidence
    passed: float
    threads: dict[int, Times]
    workers: Sequence[tuple[float, Times]]
    ended: bool


def session_of(seen: Seen) -> Session:
    """Return what was seen as a session of level *observed*.

    Raises:
        NothingMeasured: no stack was seen.
    """
    pid, source = seen.training.pid, seen.source
    everything = _merged([thread for one in seen.stretches for thread in one.all])
    own = _merged([thread for one in seen.stretches for thread in one.loop]) or everything
    loop = stacks.loop_thread(own, pid)
    if loop is None:
        raise NothingMeasured(f"process {pid} {'has ended' if seen.ended else 'runs no Python that could be seen'}")
    wraps = stacks.wrappers(loop.stacks)
    stretches = []
    for one in seen.stretches:
        here = [stack for thread in (one.loop or one.all) if thread.tid == loop.tid for stack in thread.stacks]
        stretches += [(one.seconds, here, [stacks.of_loop(stack, wraps, source) for stack in here])] if here else []
    seconds = sum(one[0] for one in stretches)
    moments = [moment for *_, found in stretches for moment in found]
    shares = {
        kind: sum(one[0] * sum(moment.kind == kind for moment in one[2]) / len(one[2]) for one in stretches) / seconds
        for kind in _KINDS
    }
    waits = shares[stacks.DATA] + shares[stacks.START]
    looks = [threads[loop.tid] for _, threads in seen.looks if loop.tid in threads]
    count = counted(looks, seen.worker_looks, [one[:2] for one in stretches])
    steps = max(1, round(count.per_s * seconds if count is not None else seconds))
    workers = [one for one in everything if one.tid == one.pid and any(map(stacks.is_worker, one.stacks))]
    number = round(sum(len(one.stacks) for one in workers) / max(len(one.stacks) for one in workers)) if workers else 0
    waiting = [(stack, one) for stack, one in zip(loop.stacks, moments, strict=False) if one.waiting]
    made, busy = _made(waiting, workers, [one for one in everything if one.tid != loop.tid], source)
    worker_ms = 1000 * seconds * (busy * number if number else waits) / steps
    evidence = seen.evidence.finish(steps)
    if used := [one.gpu for one in seen.stretches if one.gpu is not None]:
        evidence["gpu_utilization"] = round(sum(used) / len(used), 4)
    if number and busy and seen.workers:
        wall, cpu, queue = (sum(column) for column in zip(*((s, *times) for s, times in seen.workers), strict=True))
        on_cpu, queued = cpu / (busy * wall), min(1.0, queue / (busy * wall))
        blocked = max(0.0, 1 - on_cpu - queued)
        evidence |= {"worker_cpu": on_cpu, "worker_queued": queued, "worker_blocked": blocked}
    if made:
        evidence["collate_ms"] = worker_ms * sum(stage == stacks.COLLATES for _, stage in made) / len(made)
    session = Session(
        tool_version=__version__,
        script=Script(argv=masked(seen.training.argv), passes=1),
        environment={name: value for name, value in environment().items() if name != "python"},
        device=_device(seen.training),
        loader=_loader(waiting, workers, number, source),
        observed=[
            Observed(here, took, waited, worker_ms, evidence=evidence)
            for here, took, waited in blocks([(one[0], one[2]) for one in stretches], steps)
        ],
        watched=Watched(
            pid,
            round(seconds, 1),
            len(moments),
            {kind: round(share, 4) for kind, share in shares.items()},
            count.by if count is not None else "",
            seen.ended,
            _command(seen.training),
        ),
        ended="watched",
    )
    if made:
        whole = Cost(worker_ms, worker_ms * evidence.get("worker_cpu", 1.0))
        session.inside = Inside(len(made), whole, whole, lines=stacks.hot_lines(made, source), looks=len(made))
    _warn(session, seen, loop.tid, evidence)
    return session


def _merged(threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads of several recordings, each with all its stacks in order."""
    found: dict[tuple[int, int], Thread] = {}
    for one in threads:
        kept = found.setdefault((one.pid, one.tid), one._replace(stacks=[]))
        kept.stacks.extend(one.stacks)
    return [*found.values()]


def _made(
    waiting: Sequence[tuple[Stack, Moment]],
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


def _device(training: Training) -> dict[str, str]:
    if not training.on_gpu:
        return {"type": "cpu"}
    names = [gpu.name for gpu in training.gpus] or ["the GPU"]
    return {"type": "cuda", "name": names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"}


def _loader(
    waiting: Sequence[tuple[Stack, Moment]],
    workers: Sequence[Thread],
    number: int,
    source: Sources,
) -> Loader | None:
    """Return what is known of the loader: its workers, the loop's line, the dataset's class."""
    entries = [(stack, one.at) for stack, one in waiting]
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


def _warn(session: Session, seen: Seen, loop: int, evidence: dict[str, float]) -> None:
    """Say what else was seen that matters."""
    watched = session.watched
    assert watched is not None
    if watched.ended:
        session.warn("ended", f"process {watched.pid} ended after {watched.seconds:g} s of watching")
    start = watched.shares[stacks.START]
    if start > _STARTS:
        session.warn("starts", f"{percent(start)} of the time goes into starting the loader for an epoch")
    queued = seen.threads[loop].queue / seen.passed if loop in seen.threads else 0.0
    if queued > _QUEUED:
        session.warn("queued", f"the loop's thread waits {percent(queued)} of the time for a core")
    others = evidence.get("cores_busy", 0.0) - evidence.get("cores_used", evidence.get("cores_busy", 0.0))
    if others > _OTHERS:
        session.warn("foreign-load", f"other processes use {others:.1f} of {cores():g} cores")
    blocked, read = evidence.get("worker_blocked", 0.0), evidence.get("disk_read_mb", 0.0)
    if blocked > _BLOCKED:
        how = f"they read {read:.3g} MB a batch from storage" if read >= _READ else "they read nothing from storage"
        session.warn("blocked", f"the workers are blocked {percent(blocked)} of the time that batches take; {how}")

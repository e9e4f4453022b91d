"""Make a session of what was seen of one process that trains."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._version import __version__
from ..analysis.verdict import draws_unseen
from ..analysis.words import percent
from ..errors import NothingMeasured
from ..measure.account import Times
from ..measure.evidence import Evidence
from ..measure.machine import cores, environment
from ..session import Cost, Inside, Loader, Observed, Script, Session, Watched
from ..session.private import masked
from .processes import Training
from .sampling import Frame, Stack, Thread
from .sources import Sources
from .stacks import (
    COLLATES,
    DATA,
    IDLE,
    LOADS,
    OTHER,
    START,
    TRAINS,
    Moment,
    hot_lines,
    is_worker,
    loop_thread,
    of_loop,
    of_worker,
    part_of_loop,
    producing,
    users,
    wrappers,
)
from .steps import Look, blocks, counted

#: Cores that other processes must use to be worth a word, and megabytes that workers read from storage for a batch.
_OTHERS, _READ = 0.4, 0.01
#: Shares worth a word: of the loop's time without a core and in starting a loader, of a worker's time blocked.
_QUEUED, _STARTS, _BLOCKED = 0.05, 0.05, 0.2


@dataclass(frozen=True)
class Stretch:
    """Seconds of sampling: the threads of the process that trains and of some workers, of how many, the GPU's use."""

    seconds: float
    threads: Sequence[Thread]
    workers: int = 0
    gpu: float | None = None


@dataclass
class Seen:
    """What was seen of one process that trains."""

    training: Training
    source: Sources
    evidence: Evidence
    began: float  # when its counters were read ``before``; they are of its threads
    before: dict[int, Times]
    passed: float = 0.0
    #: What Linux has counted of its threads in the seconds that have ``passed`` since then.
    threads: dict[int, Times] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    looks: list[dict[int, Look]] = field(default_factory=list)  # single looks at the numbers on its threads' stacks
    worker_looks: list[Look] = field(default_factory=list)  # those at one worker
    #: For each worker the time at which it was first seen, and what was counted of it by then.
    workers: dict[int, tuple[float, Times]] = field(default_factory=dict)
    #: Seconds since then, and what was counted, of the workers that still run.
    spent: list[tuple[float, Times]] = field(default_factory=list)
    ended: bool = False


def session_of(seen: Seen) -> Session:
    """Return what was seen as a session of level *observed*.

    Raises:
        NothingMeasured: no stack was seen, or the process neither trained nor drew batches.
    """
    pid, source = seen.training.pid, seen.source
    merged: dict[tuple[int, int], Thread] = {}  # each with all its stacks in order
    for one in (thread for stretch in seen.stretches for thread in stretch.threads):
        merged.setdefault((one.pid, one.tid), one._replace(stacks=[])).stacks.extend(one.stacks)
    everything = [*merged.values()]
    loop = loop_thread(everything, pid)
    if loop is None:
        raise NothingMeasured(f"process {pid} {'has ended' if seen.ended else 'runs no Python that could be seen'}")
    sampled = _of_loop(seen, loop)
    if not sampled:
        busy = [frame for stack in loop.stacks for frame in stack if users(frame)][-1:]
        where = f" It is at {source.where(busy[0])}." if busy else ""
        child = seen.training.child
        do = "Watch it later, or longer if that makes its batches"
        do = f"Its process {child} may train: pipediag watch {child}" if child is not None else do
        raise NothingMeasured(f"process {pid} neither trains nor draws batches yet.{where} {do}")
    seconds, shares = sum(one.seconds for one in sampled), defaultdict[str, float](float)
    for part in sampled:
        for moment in part.moments:
            shares[moment.kind] += part.seconds / seconds / len(part.moments)
    count = counted(
        [threads[loop.tid] for threads in seen.looks if loop.tid in threads],
        seen.worker_looks,
        [(one.seconds, one.stacks) for one in sampled],
    )
    steps = max(1, round(count.per_s * seconds if count is not None else seconds))

    workers = [one for one in everything if one.tid == one.pid and any(map(is_worker, one.stacks))]
    sampled_pids = {one.pid for one in everything} - {pid}
    most = max((one.workers for one in seen.stretches), default=0)
    number = max(1, round(most * len(workers) / len(sampled_pids))) if workers else 0
    works = [_making(stack, source) for one in workers for stack in one.stacks]
    in_workers = [made for made in works if made is not None]
    active = len(in_workers) / len(works) if works else 0.0
    waiting = [
        (stack, moment)
        for one in sampled
        for stack, moment in zip(one.stacks, one.moments, strict=True)
        if moment.waiting
    ]
    if 2 * sum(moment.waits for _, moment in waiting) >= len(waiting):  # it waits for others
        own = [one for thread in everything if thread.tid != loop.tid for one in thread.stacks if producing(one)]
    else:  # its own thread makes its batches
        own = [stack[moment.at :] for stack, moment in waiting if not moment.waits and moment.kind == DATA]
        in_workers = []
    made = [*in_workers, *(_making(stack, source) or (stack, LOADS) for stack in own)]
    worker_ms = 1000 * seconds * (number * active if works else shares[DATA] + shares[START]) / steps
    evidence = {**seen.evidence.finish(steps)}
    if used := [one.gpu for one in seen.stretches if one.gpu is not None]:
        evidence["gpu_utilization"] = round(sum(used) / len(used), 4)
    if active and seen.spent:  # in the share of their time that batches take
        wall, cpu, queue = (sum(column) for column in zip(*((s, *times) for s, times in seen.spent), strict=True))
        evidence["worker_cpu"], evidence["worker_queued"] = cpu / (wall * active), min(1.0, queue / (wall * active))
        evidence["worker_blocked"] = max(0.0, 1 - evidence["worker_cpu"] - evidence["worker_queued"])
    if made:
        evidence["collate_ms"] = worker_ms * sum(stage == COLLATES for _, stage in made) / len(made)

    gpus, folder = [one.name for one in seen.training.gpus] or ["the GPU"], seen.training.folder
    session = Session(
        tool_version=__version__,
        script=Script(masked(seen.training.argv), 1),
        environment={name: value for name, value in environment().items() if name != "python"},
        device={"type": "cuda", "name": gpus[0]} if seen.training.on_gpu else {"type": "cpu"},
        loader=_loader(waiting, workers, number, source),
        observed=[
            Observed(here, took, waited, worker_ms, evidence=evidence)
            for here, took, waited in blocks([(one.seconds, one.moments) for one in sampled], steps)
        ],
        watched=Watched(
            pid,
            round(seconds, 1),
            sum(len(one.moments) for one in sampled),
            {kind: round(shares[kind], 4) for kind in (DATA, START, TRAINS, OTHER)},
            count.by if count is not None else "",
            seen.ended,
            "" if folder == os.getcwd() else folder,
        ),
        ended="watched",
    )
    if made:
        whole = Cost(worker_ms, worker_ms * evidence.get("worker_cpu", 1.0))
        session.inside = Inside(len(made), whole, whole, lines=hot_lines(made, source), looks=len(made))
    queued = seen.threads[loop.tid].queue / seen.passed if loop.tid in seen.threads else 0.0
    _warn(session, shares[START], queued, evidence)
    if draws_unseen(session):
        _say_where(session, sampled, wrappers(loop.stacks), source)
    return session


class _Sampled(NamedTuple):
    """The stacks of the loop's thread in some seconds, and what it did at each of these moments."""

    seconds: float
    stacks: list[Stack]
    moments: list[Moment]


def _of_loop(seen: Seen, loop: Thread) -> list[_Sampled]:
    """Return what the loop's thread did from the first moment on that shows a loop."""
    # A stack that was read while it changed may lack its outer calls: it does not begin where the others do.
    root = _most(Counter(stack[0].name for stack in loop.stacks if stack))
    wraps, found = wrappers(loop.stacks), list[_Sampled]()
    for one in seen.stretches:
        stacks = [stack for thread in one.threads if thread.tid == loop.tid for stack in thread.stacks]
        stacks = [stack for stack in stacks if stack and stack[0].name == root]
        if stacks:
            moments = [of_loop(stack, wraps, seen.source) for stack in stacks]
            shows = (number for number, one in enumerate(moments) if part_of_loop(stacks[number], one))
            begins = 0 if found else next(shows, len(moments))
            if begins < len(moments):
                seconds = one.seconds * (1 - begins / len(moments))
                found.append(_Sampled(seconds, stacks[begins:], moments[begins:]))
    return found


def _making(stack: Stack, source: Sources) -> tuple[Stack, str] | None:
    """Return what runs below the fetch of torch's loader, with its stage; None if no batch is made there."""
    moment = of_worker(stack, source)
    return (stack[moment.at + 1 :], moment.kind) if moment.kind != IDLE else None


def _loader(
    waiting: Sequence[tuple[Stack, Moment]], workers: Sequence[Thread], number: int, source: Sources
) -> Loader | None:
    """Return what is known of the loader: its workers, the user's line that draws from it, the dataset's class."""
    if not waiting and not workers:
        return None
    lines, entries, datasets = Counter[str](), Counter[str](), Counter[str]()
    for stack, moment in waiting:
        above = [frame for frame in stack[: moment.at] if users(frame)]
        lines.update(map(source.where, above[-1:]))
        entries[stack[moment.at].name] += 1
    for stack in [one for thread in workers for one in thread.stacks] or [stack for stack, _ in waiting]:
        moment = of_worker(stack, source)
        for frame in stack[moment.at + 1 : moment.at + 2] if moment.kind == LOADS else ():
            owner, _, method = frame.name.rpartition(".")
            datasets.update([owner.rpartition(".")[2]] if owner and method.startswith("__") else [])
    plain = not workers and not any("torch/utils/data/" in one.file for stack, _ in waiting for one in stack)
    name = _most(datasets) or (_most(entries) if plain else "DataLoader")
    return Loader(name, num_workers=number, where=_most(lines), iterated=_most(lines), plain_iterable=plain)


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda name: counts[name], default="")


def _say_where(
    session: Session, sampled: Sequence[_Sampled], training: Collection[tuple[str, str]], source: Sources
) -> None:
    """Say which line of the loop takes most of the time in which it does not train: it may make the batches."""
    lines, looks = Counter[Frame](), 0
    for one in sampled:
        looks += len(one.moments)
        for stack, moment in zip(one.stacks, one.moments, strict=True):
            own = [frame for frame in stack if users(frame)] if moment.kind == OTHER else []
            lines.update([frame for frame in own if (frame.file, frame.name) in training][-1:] or own[-1:])
    if lines:
        (frame, count), *_ = lines.most_common(1)
        session.warn(
            "elsewhere",
            f"{percent(count / looks)} of the time it runs {source.text(frame)} ({source.where(frame)}): if that makes "
            "its batches, the loop waits for data that long",
        )


def _warn(session: Session, starts: float, queued: float, evidence: dict[str, float]) -> None:
    """Say what else was seen that matters."""
    watched = session.watched
    assert watched is not None
    if watched.ended:
        session.warn("ended", f"process {watched.pid} ended after {watched.seconds:g} s of watching")
    if starts > _STARTS:
        session.warn("starts", f"{percent(starts)} of the time goes into starting the loader for an epoch")
    if queued > _QUEUED:
        session.warn("queued", f"the loop's thread waits {percent(queued)} of the time for a core")
    others = evidence.get("cores_busy", 0.0) - evidence.get("cores_used", evidence.get("cores_busy", 0.0))
    if others > _OTHERS:
        session.warn("foreign-load", f"other processes use {others:.1f} of {cores():g} cores")
    blocked, read = evidence.get("worker_blocked", 0.0), evidence.get("disk_read_mb")
    if blocked > _BLOCKED:
        how = ""
        if read is not None:  # no counter was seen at both ends of a worker that has ended
            how = f"; they read {f'{read:.3g} MB a batch' if read >= _READ else 'next to nothing'} from storage"
        session.warn("blocked", f"the workers are blocked {percent(blocked)} of the time that batches take{how}")

"""Make sessions from a table of milliseconds per step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

from pipediag.analysis.ranks.merging import job_session
from pipediag.analysis.ranks.stragglers import Change, next_trial
from pipediag.session import (
    CONTROLS,
    REMEDIES,
    RUNGS,
    Account,
    BatchFacts,
    Cost,
    Inside,
    Leaf,
    Link,
    Loader,
    Observed,
    Place,
    Rank,
    RankTrial,
    Remedy,
    Rung,
    Script,
    Session,
    Startup,
    Window,
    cut_rung,
    ordered,
)

_T = TypeVar("_T")
#: A ladder on which every stage costs next to nothing.
FLAT = dict.fromkeys(RUNGS, 100.0)
#: Formats of reports that say in words, or as data, what there is to say of any subject.
DOCUMENTS = (".json", ".md", ".txt")


def but(made: _T, **facts: Any) -> _T:
    """Set facts of what was made by their paths, as ``loader__iterable=True`` or ``links__0__origin="aug"``."""
    for path, value in facts.items():
        *owners, name = path.split("__")
        owner = reduce(lambda one, part: one[int(part)] if part.isdecimal() else getattr(one, part), owners, made)
        assert hasattr(owner, name), path
        setattr(owner, name, value)
    return made


def lacking(session: Session, *rungs: str, after: int = 0) -> Session:
    """Take the windows of these rungs out of a session, but for its first ``after`` rounds."""
    session.windows = [window for window in session.windows if window.rung not in rungs or window.round < after]
    return session


def then_tried(
    session: Session, rung: str, ratio: float, rounds: int = 6, seconds: float = 1.2, remedy: Remedy | None = None
) -> Session:
    """Add rounds in which ten steps under a rung, as that of a remedy, take ``ratio`` times less than ``seconds``."""
    if remedy is not None:
        setattr(session, REMEDIES[rung], remedy)
        session.rungs[rung] = Rung(rung)
    first = max(10, 1 + max((window.round for window in session.windows), default=0))
    for round_ in range(first, first + rounds):
        session.windows += [Window("baseline", round_, 10, seconds), Window(rung, round_, 10, seconds / ratio)]
    return session


def climbing(**costs: float) -> dict[str, float]:
    """A whole ladder above 50 ms of compute; ``costs`` are milliseconds by rung, by default 0.2."""
    ladder, ms = {}, 50.0
    for rung in RUNGS:
        ms += costs.get(rung, 0.0 if rung == "device" else 0.2)
        ladder[rung] = ms
    return ladder


def cut(ladder: Mapping[str, float], costs: Sequence[float], *places: int) -> dict[str, float]:
    """A ladder in which a chain of transforms is cut after the links in ``places``, by default after each.

    ``costs`` are milliseconds of the loop by link, in the order in which a sample passes through. Other stages cost as
    much as before.
    """
    more = ladder["sample"] + sum(costs) - ladder["raw"]
    rungs = {name: ms + (more if name in ("raw", "warm", "baseline") else 0.0) for name, ms in ladder.items()}
    for links in places or range(1, len(costs)):
        rungs[cut_rung(links)] = ladder["sample"] + sum(costs[links:])
    return {name: rungs[name] for name in ordered(rungs)}


def inside(*costs: float, load: float = 2.0, between: float = 0.0, samples: int = 32, **more: Any) -> Inside:
    """A worker's view of a chain ``A``, ``B``, ... defined at ``aug.py:10``, ``:20``, ..., with their milliseconds."""
    links = [Link(chr(65 + n), f"aug.py:{10 * (n + 1)}", Cost(ms, ms)) for n, ms in enumerate(costs)]
    whole = sum(costs) + load + between
    return Inside(samples, Cost(whole, whole), Cost(load, load), Cost(between, between), links, **more)


def torchvisions(found: Inside, *names: str, given: str = "tensor", new: bool = True, first: int = 0) -> Inside:
    """Rename the links from ``first`` on, and let them be torchvision's: of v2, or of v1 if not ``new``."""
    origin = "torchvision.transforms.v2._geometry" if new else "torchvision.transforms.transforms"
    for link, name in zip(found.links[first:], names, strict=False):
        link.name, link.origin, link.given = name, origin, given
    return found


def views(found: Inside, count: int) -> Inside:
    """Let a sample pass through the chain ``count`` times, each call as a link of its own."""
    once = sum(link.cost.wall_ms for link in found.links)
    found.links = [replace(link) for _ in range(count) for link in found.links]
    found.whole = Cost(found.whole.wall_ms + (count - 1) * once, found.whole.cpu_ms + (count - 1) * once)
    return found


def leaf(path: str = "[0]", dtype: str = "float32", nbytes: int = 1 << 20, itemsize: int = 4, **more: Any) -> Leaf:
    """A tensor of 64 rows that is copied to the device and read there."""
    shape = [64, nbytes // itemsize // 64]
    seen = {"copied": True, "non_blocking": True, "arrives": dtype, "read": True}
    return Leaf(path, shape, dtype, itemsize, nbytes, **{**seen, **more})


def waits(baseline: float, worker: float | None = None, **more: float) -> dict[str, dict[str, float]]:
    """Evidence of how long the loop waits for batches, in ms a step, in the baseline and under the rung ``worker``.

    ``more`` is other evidence of the baseline: ``worker_ms``, ``collate_ms`` and so on.
    """
    seen = {"baseline": {"wait_ms": baseline, **more}}
    return seen if worker is None else {**seen, "worker": {"wait_ms": worker}}


def blocks(
    count: int, ms: float, wait_ms: float, worker_ms: float = 0.0, *, steps: int = 4, noise: float = 0.0, seed: int = 1
) -> list[Observed]:
    """Return ``count`` blocks of observed steps of the unchanged loop, which waits ``wait_ms`` of a step's ``ms``."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        longer = max(0.0, wait_ms * (1 + draw.gauss(0, noise)))
        found.append(Observed(steps, steps * (ms - wait_ms + longer) / 1000, steps * longer / 1000, worker_ms))
    return found


def make(
    ladder: Mapping[str, float],
    *,
    rounds: int = 5,
    noise: float = 0.002,
    seed: int = 1,
    workers: int = 4,
    length: int | None = 1000,
    persistent: bool = False,
    startups: Sequence[float | Startup] = (),
    absent: Sequence[str] = (),
    unavailable: Mapping[str, str] | None = None,
    evidence: Mapping[str, Mapping[str, float]] | None = None,
    accounts: Mapping[str, Account] | None = None,
    environment: Mapping[str, Any] | None = None,
    device: str = "cuda",
    inside: Inside | None = None,
    leaves: Sequence[Leaf] | None = None,
    observed: Sequence[Observed] = (),
) -> Session:
    """A session in which each rung of ``ladder`` has one window a round, ``noise`` being the relative deviation.

    ``absent`` rungs do not exist in the pipeline; ``unavailable`` ones could not be measured.
    """
    draw = random.Random(seed)
    session = Session(
        tool_version="0.0.0",
        script=Script(["train.py"], passes=1, exit_code=0),
        environment=dict(environment or {"cores": 16}),
        device={"type": device},
        loader=Loader(
            dataset="Photos",
            batch_size=32,
            num_workers=workers,
            persistent_workers=persistent,
            length=length,
            where="train.py:10",
            dataset_code=Place("Photos.__getitem__", "data.py:5"),
            transform=Place("Compose(Crop, Flip)", "data.py:40"),
            collate=Place("pad", "data.py:60"),
        ),
        startups=[one if isinstance(one, Startup) else Startup(one) for one in startups],
        inside=inside,
        batch=None if leaves is None else BatchFacts(list(leaves)),
        observed=list(observed),
    )
    for round_ in range(rounds):
        for rung, ms in ladder.items():
            seconds = 10 * ms * max(0.1, 1 + draw.gauss(0, noise)) / 1000
            seen = dict((evidence or {}).get(rung, {}))
            account = (accounts or {}).get(rung)
            session.windows.append(Window(rung, round_, 10, seconds, 10, evidence=seen, account=account))
    for rung in ordered({*RUNGS, *CONTROLS, *ladder, *(unavailable or {})}):
        why = (unavailable or {}).get(rung, "")
        if rung in absent:
            session.rungs[rung] = Rung(rung, False, "no such stage", exists=False)
        elif why:
            session.rungs[rung] = Rung(rung, False, why)
        elif rung in ladder:
            session.rungs[rung] = Rung(rung)
    return session


def without(ladder: Mapping[str, float], *rungs: str) -> dict[str, float]:
    return {name: ms for name, ms in ladder.items() if name not in rungs}


def tried(session: Session, ranks: Sequence[Rank], ms: Callable[[Change], float], most: int = 200) -> int:
    """Make the trials of ranks that the analysis asks for, with ``ms`` milliseconds a step; return their number."""
    for count in range(most):
        change = next_trial(session, ranks)
        if change is None:
            return count
        fed, delayed, seconds = list(change.fed), list(change.delayed), 5 * ms(change) / 1000
        session.rank_trials.append(RankTrial(fed, delayed, change.delay_ms, count, 5, seconds))
    raise AssertionError("the trials do not end")


def job(count: int, late: int | None = 2, *, hosts: int = 1, cores: int = 32, **more: Any) -> Session:
    """A job of ``count`` ranks, in which the input of the rank ``late`` takes twice as long as that of the others.

    If ``late`` is None, the input of all ranks is as slow.
    """
    ladder = climbing(host=2.0, worker=1.0, raw=12.0, warm=33.0, baseline=9.0)
    step, ready, sessions = ladder["baseline"], ladder["worker"], {}
    for rank in range(count):
        slow = late is None or rank == late
        took = 4 * (step if slow else 0.5 * step)
        seen = waits(step - ready if slow else 0.6, 0.4, worker_ms=took, worker_cpu=0.4, cores_used=1.5, cores_busy=6.2)
        chain = inside(1.5, load=9.0 if slow else 3.0)
        session = make(ladder, rounds=4, noise=0.004, seed=7, evidence=seen, inside=chain, length=500, **more)
        session.environment = {"cores": cores, "cpus": cores}
        session.script.argv, session.ended = ["train.py"], "settled"
        session.device = {"type": "cuda", "index": rank, "name": "NVIDIA H200"}
        place = {"host": f"node{rank * hosts // count}", "local_rank": rank, "device": f"cuda:{rank}"}
        on_host = {"cpus": cores, "cores": float(cores), "affinity": f"0-{cores - 1}", "numa_node": None}
        session.ranks = [Rank(rank, count, workers=4, worker_ms=took, **place, **on_host)]
        sessions[rank] = session
    draw = random.Random(5)

    def ms(change: Change) -> float:
        late_ones = {late} if late is not None else {*range(count)}
        took = step if late_ones - {*change.fed} else ready if len(change.fed) < count else ladder["device"]
        return (took + change.delay_ms * bool(change.delayed)) * (1 + draw.gauss(0, 0.01))

    tried(sessions[0], [rank for session in sessions.values() for rank in session.ranks], ms)
    return job_session(sessions)

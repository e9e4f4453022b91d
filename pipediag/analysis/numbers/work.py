"""Divide one worker's time for a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ...session import Inside
from .intervals import Interval
from .ladder import LadderView

#: Worker time that a change saves, as a fraction of the removed code's time. It can be below 1: the remaining code may
#: become slower, since it finds other cache and memory contents. With cheaper transforms in the caching article,
#: loading took 1.7 times as long, which left 0.58 of the saving (benchmarks/results/caching_article-h200.json).
SAVED = Interval(1.0, 0.55, 1.1)


@dataclass(frozen=True)
class Work:
    """One worker's time for one batch: the baseline's figures, divided by the shares seen inside a worker.

    ``run`` is wall time without waiting for a core, ``cpu`` the CPU time in it (more than ``run`` if a worker uses
    threads). ``run`` is the sum of ``collate``, ``load``, ``between`` and the ``links``.
    """

    run: float
    cpu: float
    collate: float = 0.0
    load: float = 0.0
    between: float = 0.0
    links: tuple[float, ...] = ()

    @property
    def samples(self) -> float:
        """Milliseconds that make the samples: all but collating."""
        return self.run - self.collate


def work_of(ladder: LadderView) -> Work | None:
    """Return a worker's time for a batch, or None if unknown.

    The total is the worker's own time for a batch under the baseline, less its waiting for a core; without that figure,
    the time per sample times the batch size. The collate time comes from the workers, or else from the rung ``sample``,
    where samples are ready. The rest is divided by the shares that loading and each transform took of a probed sample.
    """
    inside, loader = ladder.session.inside, ladder.session.loader
    seen = ladder.evidence("baseline")
    if seen.get("worker_ms", 0.0) > 0:
        run = seen["worker_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
        cpu = seen["worker_ms"] * seen.get("worker_cpu", 1.0)
    elif inside is not None and inside.timed and loader is not None and loader.batch_size:
        run, cpu = inside.whole.wall_ms * loader.batch_size, inside.whole.cpu_ms * loader.batch_size
    else:
        return None
    if run <= 0:
        return None
    if "collate_ms" in seen:
        collate = seen["collate_ms"] * max(0.0, 1 - seen.get("worker_queued", 0.0))
    else:
        collate = collating_apart(ladder) or 0.0
    return divided(run, cpu, collate, inside)


def divided(run: float, cpu: float, collate: float, inside: Inside | None) -> Work:
    """Return ``run`` milliseconds divided: ``collate`` of them, the rest by the shares of a probed sample's time."""
    collate = min(collate, run)
    if inside is None or not inside.timed:
        return Work(run, cpu, collate, run - collate)
    each = (run - collate) / inside.whole.wall_ms
    links = tuple(each * link.cost.wall_ms for link in inside.links)
    between = each * inside.between.wall_ms
    return Work(run, cpu, collate, max(0.0, run - collate - between - sum(links)), between, links)


def collating_apart(ladder: LadderView) -> float | None:
    """Return a worker's milliseconds for a batch of ready samples under the rung ``sample``, or None if unknown.

    It replaces the collate time if the workers did not report that.
    """
    seen = ladder.evidence("sample") if ladder.has("sample") else {}
    if "worker_ms" not in seen:
        return None
    return max(0.0, seen["worker_ms"] * (1 - seen.get("worker_queued", 0.0)) - seen.get("copy_ms", 0.0))


def saving(ms: float, sure: float | None = None) -> Interval:
    """Return the saving if work of ``ms`` is removed, as uncertain as :data:`SAVED`; ``sure`` is the certain part."""
    return Interval(ms * SAVED.value, (ms if sure is None else sure) * SAVED.low, ms * SAVED.high)

"""Collect the batches that the cached rungs serve."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..measure.clock import Clock
from ..usercode import tree
from .caches import CachePlan, plan_caches
from .loop_side import LoopSide

#: Seconds after which no more distinct batches are collected.
_SECONDS = 5.0


def collected(
    loop_side: LoopSide, clock: Clock, workers: int, on_cpu: bool
) -> Generator[Any, None, tuple[list[Any], CachePlan]]:
    """Return distinct batches from the workers, as many as time and memory allow, and the cache plan they follow."""
    loop_side.feed.rung_switch.set("baseline")
    batches: list[Any] = []
    plan: CachePlan | None = None
    until = clock.now() + _SECONDS
    while plan is None or len(batches) < plan.distinct:
        delivery = yield from loop_side.take_fitting("baseline")
        if delivery is None:
            continue
        batches.append(delivery.batch)
        if plan is None:
            plan = plan_caches(tree.nbytes(delivery.batch), workers, on_cpu)
        if clock.now() > until and len(batches) >= 2:
            break
    return batches, plan

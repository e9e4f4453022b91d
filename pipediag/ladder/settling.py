"""Bring the running loop into the steady state of a rung, and collect the batches that cached rungs serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..session import CACHED
from ..usercode import tree
from .availability import NOTHING_TO_MOVE
from .caches import WRITES_IN_PLACE, CachePlan, Caches, plan_caches
from .loop_side import LoopSide, Turn
from .probes.batchfacts import describe
from .ranks.lockstep import CACHES
from .switching import Switcher

#: Settling steps under a rung before its window if the loop does not wait for workers.
_WARM = 2
#: Minimum seconds of settling before the first window of a rung, and maximum steps of that settling.
_FIRST_SECONDS, _FIRST_STEPS = 1.0, 12
#: Seconds after which no more distinct batches are collected.
_COLLECTING = 5.0
#: Number of cached batches that are described.
_DESCRIBED = 2


class Settler:
    """Brings the loop into the steady state of a rung, and fills the caches.

    ``unavailable`` is called with a rung that cannot be served, and the reason.

    Attributes:
        switcher: the rung that feeds the loop, and its pace under each.
        seconds: seconds that settling took the last time.
    """

    def __init__(self, loop_side: LoopSide, unavailable: Callable[[str, str], None]) -> None:
        self.switcher = Switcher(loop_side, unavailable)
        self.seconds = 0.0
        self._loop_side = loop_side
        self._clock = loop_side.clock
        self._setting = loop_side.setting
        self._unavailable = unavailable

    def settle(self, rung: str) -> Turn[str]:
        """Bring loop and workers into the rung's steady state; return why that is impossible, or "".

        While settling, only the rung's own workers make batches. Batches queued or begun for another rung are discarded
        without a step; requests that the workers have not begun are served under the new rung. Workers faster than the
        loop first fill their queues, as in training: this takes no step, and one-time work such as pinning memory is
        then done. Otherwise the loop takes one round of the workers, so that it is at the same phase as one round
        later.
        """
        switcher, loop_side = self.switcher, self._loop_side
        if switcher.is_on(rung) and rung in switcher.pace:
            return ""
        yield from self.take_granted()
        switched = self._clock.now()
        loop_side.lockstep.do(rung)
        loop_side.agree()  # the other ranks switch at the same time
        trouble, first, made = yield from switcher.to(rung)
        if trouble:
            return trouble
        at_pace = rung in CACHED or switcher.keeps_up
        # A loop that never waits for its device runs ahead of it: without synchronizing, a step would seem to take no
        # time.
        loop_side.device.synchronize()
        began, steps = self._clock.now(), 0
        wanted = _WARM if at_pace else self._settling_round(loop_side.source(rung).workers)
        warm = began
        short = loop_side.epochs.horizon is not None or self._setting.plan.attempt > 1
        if rung not in switcher.pace and not short:  # one-time work makes the first steps slower
            warm += min(_FIRST_SECONDS, switcher.patience)
        # A short script needs its steps for its windows.
        most = wanted if short else max(wanted, _FIRST_STEPS)
        while steps < wanted or (steps < most and self._clock.now() < warm):
            if first is not None:
                batch, first = loop_side.own(first.batch, rung), None
            elif rung == "supply":
                batch = yield from loop_side.take(rung)
            else:
                batch = yield from loop_side.next_batch(rung)
            if batch is None:
                continue
            steps += 1
            if rung != "supply":
                yield from loop_side.hand(batch)
            if switcher.look_at_queues(rung, made) and steps >= _WARM and self._clock.now() >= warm:
                break
        loop_side.device.synchronize()
        switcher.estimate(rung, self._clock.now() - began, steps, made)
        self.seconds = self._clock.now() - switched
        if rung in CACHED and loop_side.cache(rung).writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)
        return ""

    def _settling_round(self, workers: int) -> int:
        """Return one batch per worker, or fewer if the loop leaves its epochs too early for that."""
        horizon = self._loop_side.epochs.horizon
        whole = max(_WARM, workers)
        return whole if horizon is None else min(whole, max(1, (horizon - 2) // 3))

    def drop_stock(self, rung: str) -> Turn[None]:
        """In a job, drop the batches that queued up while this rank waited for another, if its workers are slow."""
        if not self._loop_side.lockstep.in_job or rung in CACHED or self.switcher.keeps_up:
            return
        for _ in range(self._loop_side.source(rung).ready):
            yield from self._loop_side.take(rung)

    def take_granted(self) -> Turn[None]:
        """Take the steps that were granted to the other ranks for what they do now."""
        loop_side = self._loop_side
        loop_side.lockstep.reserve(0, 1)  # a window that has ended early needs no more than these
        if loop_side.granted <= 0:
            return
        rung = self.switcher.for_steps()
        while loop_side.granted > 0:
            batch = yield from loop_side.next_batch(rung)
            if batch is not None:
                yield from loop_side.hand(batch)

    def fill_caches(self) -> Turn[None]:
        """Collect and cache batches of the loop, once."""
        loop_side = self._loop_side
        if loop_side.caches is not None:
            return
        yield from self.take_granted()
        loop_side.lockstep.do("baseline", prepares=CACHES)
        loop_side.agree()  # the other ranks collect at the same time
        self.switcher.disturb()
        batches, plan = yield from self._collected()
        feed, device = loop_side.feed, loop_side.device
        feed.rung_switch.pool_bytes = plan.pool_bytes
        self._setting.send("caches", {**vars(plan), "held_bytes": plan.held_bytes})
        if self._setting.session.batch is None and plan.device:
            self._setting.send("batch", asdict(describe(batches[:_DESCRIBED], device, self._clock)))
        loop_side.caches = caches = Caches(batches, plan, device.torch_device, loop_side.writes_in_place)
        if caches.device and not caches.moves:
            self._unavailable("device", NOTHING_TO_MOVE)
        if caches.shared:
            feed.share(caches.shared)

    def _collected(self) -> Turn[tuple[list[Any], CachePlan]]:
        """Return distinct batches from the workers, as many as time and memory allow, and the plan of the caches."""
        feed = self._loop_side.feed
        feed.rung_switch.set("baseline")
        batches: list[Any] = []
        plan: CachePlan | None = None
        until = self._clock.now() + _COLLECTING
        while plan is None or len(batches) < plan.distinct:
            delivery = yield from self._loop_side.take_fitting("baseline")
            if delivery is None:
                continue
            batches.append(delivery.batch)
            if plan is None:
                plan = plan_caches(tree.nbytes(delivery.batch), feed.workers, self._loop_side.device.is_cpu)
            if self._clock.now() > until and len(batches) >= 2:
                break
        return batches, plan

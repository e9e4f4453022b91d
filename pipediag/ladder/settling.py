"""Bring the running loop into the steady state of a rung, and collect the batches that cached rungs serve.

Only the rung's own workers run then, and their queues are filled as in training. :mod:`.steering` decides how long the
loop settles.
"""

from __future__ import annotations

from dataclasses import asdict

from ..session import CACHED, fed_apart, made_under
from ..usercode import tree
from .caches import WRITES_IN_PLACE, CachePlan, Caches, plan_caches
from .feed import Source
from .loop_side import LoopSide, Turn
from .probes.batchfacts import describe
from .ranks.lockstep import CACHES
from .workers.delivery import NO_COST, Delivery

#: Seconds between two polls of the workers, and seconds without a new batch after which they count as idle.
_POLL, _STILL = 0.02, 0.1
#: Batches to drop while waiting for a stable one before the rung is given up.
_PATIENCE = 200
#: Seconds after which no more distinct batches are collected.
_COLLECTING = 5.0
#: Number of cached batches that are described.
_DESCRIBED = 2
NOTHING_TO_MOVE = "the batch holds no tensor that could be moved to the device"


class Settler:
    """Switches the loop to a rung, lets it settle, and fills the caches."""

    def __init__(self, loop_side: LoopSide) -> None:
        self._loop_side = loop_side
        self._steering = loop_side.steering
        self._feed = loop_side.feed
        self._clock = loop_side.clock
        self._setting = loop_side.setting

    def settle(self, rung: str) -> Turn[str]:
        """Bring loop and workers into the rung's steady state; return why that is impossible, or "".

        While settling, only the rung's own workers make batches. Batches queued or begun for another rung are discarded
        without a step; requests that the workers have not begun are served under the new rung. Workers faster than the
        loop first fill their queues, as in training: this takes no step, and one-time work such as pinning memory is
        then done. Otherwise the loop takes one round of the workers, so that it is at the same phase as one round
        later.
        """
        steering, loop_side = self._steering, self._loop_side
        if steering.has_settled(rung):
            return ""
        yield from self.take_granted()
        switched, source = self._clock.now(), loop_side.source(rung)
        loop_side.lockstep.do(rung)
        loop_side.agree()  # the other ranks switch at the same time
        trouble, first, made = yield from self.to(rung)
        if trouble:
            return trouble
        # A loop that never waits for its device runs ahead of it: without synchronizing, a step would seem to take no
        # time.
        loop_side.device.synchronize()
        steering.begin_settling(rung, switched, made, source.workers)
        steps, goes_on = 0, True
        while goes_on:
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
            goes_on = steering.settles(steps, source)
        loop_side.device.synchronize()
        steering.end_settling(rung, steps, source.workers)
        if rung in CACHED and loop_side.cache(rung).writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)
        return ""

    def to(self, rung: str) -> Turn[tuple[str, Delivery | None, float]]:
        """Let only the rung's own workers make batches from now on, and fill their queues if they are fast.

        Returns why that is impossible, or ""; the first batch, if workers make it; and a worker's seconds for a batch.
        """
        steering, loop_side = self._steering, self._loop_side
        if steering.is_on(rung):
            return "", None, steering.makes(rung)
        switched, before = self._clock.now(), steering.switch(rung)
        source = None if rung in CACHED else loop_side.source(rung)
        self._feed.rung_switch.set(rung)
        loop_side.only(source)
        self._wait_until_idle(before, source)
        if source is None:
            return "", None, 0.0
        first = yield from self._first_of(rung, source, switched)
        if not first.fits(made_under(rung)):
            return first.why_not, None, 0.0
        made = steering.makes(rung, first.cost.wall)
        if steering.fills(rung, made, source):
            until = self._clock.now() + steering.patience
            while source.ready < source.backlog - 1 and self._clock.now() < until:
                self._clock.sleep(_POLL)
            steering.fill(source)
        return "", first, made

    def switch(self, rung: str) -> Turn[str]:
        """Switch to a rung in a job, and hand the loop its first batch; return why that is impossible, or ""."""
        trouble, first, _ = yield from self.to(rung)
        if first is not None:
            yield from self._loop_side.hand(self._loop_side.own(first.batch, rung))
        return trouble

    def _first_of(self, rung: str, source: Source, switched: float) -> Turn[Delivery]:
        """Discard queued batches up to the first one made under ``rung`` since the switch at ``switched``; return it.

        If the rung cannot be served, return a delivery that does not fit and says why.
        """
        in_flight, taken = source.backlog + source.workers, 0
        while True:
            delivery = yield from self._loop_side.take(rung)
            if delivery is None:
                continue
            taken += 1
            why_not = delivery.why_not if delivery.rung == rung else ""
            if why_not:
                self._loop_side.unavailable(rung, why_not)
            elif delivery.fits(made_under(rung)):
                if delivery.made >= switched or taken > in_flight:
                    return delivery
                continue
            elif taken > _PATIENCE + 4 * in_flight:
                why_not = "the workers did not follow the switch"
            if why_not:
                return Delivery(None, rung, False, NO_COST, delivery.worker, why_not)

    def _wait_until_idle(self, before: str | None, fed_by: Source | None) -> None:
        """Let the workers that fed the loop before finish their batches: they share its cores."""
        steering, other = self._steering, self._loop_side.source(before or "baseline")
        if other is fed_by or before in CACHED or not other.workers:
            return
        # For workers whose activity cannot be seen, the time to fill their queues is known.
        unseen = before is not None and fed_apart(before)
        refilled = other.backlog * steering.pace.get(before or "", 0.0) if unseen else 0.0
        began = idle = self._clock.now()
        ready = other.ready
        while (now := self._clock.now()) < min(began + steering.patience, max(idle + _STILL, began + refilled)):
            self._clock.sleep(_POLL)
            if other.at_work or other.ready != ready:  # finished batches are still in transit
                idle, ready = now, other.ready

    # In a job

    def drop_stock(self, rung: str) -> Turn[None]:
        """In a job, drop the batches that queued up while this rank waited for another, if its workers are slow."""
        if not self._loop_side.lockstep.in_job or rung in CACHED or self._steering.keeps_up:
            return
        for _ in range(self._loop_side.source(rung).ready):
            yield from self._loop_side.take(rung)

    def take_granted(self) -> Turn[None]:
        """Take the steps that were granted to the other ranks for what they do now."""
        loop_side, rung = self._loop_side, self._steering.fed_by
        loop_side.lockstep.reserve(0, 1)  # a window that has ended early needs no more than these
        if loop_side.granted <= 0:
            return
        if rung is None or rung == "supply":  # the loop has no batches to train on
            rung = "baseline"
            self._feed.rung_switch.set(rung)
            loop_side.only(loop_side.source(rung))
        while loop_side.granted > 0:
            yield from loop_side.step(rung)

    # Caches

    def fill_caches(self) -> Turn[None]:
        """Collect and cache batches of the loop, once: as many distinct ones as time and memory allow."""
        loop_side, feed = self._loop_side, self._feed
        if loop_side.caches is not None:
            return
        yield from self.take_granted()
        loop_side.lockstep.do("baseline", prepares=CACHES)
        loop_side.agree()  # the other ranks collect at the same time
        self._steering.disturb()
        feed.rung_switch.set("baseline")
        batches: list[object] = []
        plan: CachePlan | None = None
        until = self._clock.now() + _COLLECTING
        while plan is None or len(batches) < plan.distinct:
            delivery = yield from loop_side.take_fitting("baseline")
            if delivery is None:
                continue
            batches.append(delivery.batch)
            plan = plan or plan_caches(tree.nbytes(delivery.batch), feed.workers, loop_side.device.is_cpu)
            if self._clock.now() > until and len(batches) >= 2:
                break
        feed.rung_switch.pool_bytes = plan.pool_bytes
        self._setting.send("caches", {**vars(plan), "held_bytes": plan.held_bytes})
        if self._setting.session.batch is None and plan.device:
            facts = describe(batches[:_DESCRIBED], loop_side.device, self._clock)
            self._setting.send("batch", asdict(facts))
        loop_side.caches = caches = Caches(batches, plan, loop_side.device.torch_device, loop_side.writes_in_place)
        if caches.device and not caches.moves:
            loop_side.unavailable("device", NOTHING_TO_MOVE)
        if caches.shared:
            feed.share(caches.shared)

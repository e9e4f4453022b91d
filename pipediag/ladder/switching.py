"""Switch the loop to another rung: only that rung's workers run, and their queues are filled as in training."""

from __future__ import annotations

from collections.abc import Callable

from ..session import CACHED, REMEDIES, Window, fed_apart, made_under
from .feed import Source
from .loop_side import LoopSide, Turn
from .workers.delivery import NO_COST, Delivery

#: Maximum share of the budget for one wait until workers are idle or have filled their queues.
_QUIET_SHARE = 0.05
#: Seconds between two polls of the workers, and seconds without a new batch after which they count as idle.
_POLL, _STILL = 0.02, 0.1
#: Workers fill their queues if they need less than this share of the time in which the loop takes a batch.
_FASTER = 0.9
#: Rungs under which the queues are not filled first: queued batches would hide the loader's own pace, or the queues
#: cannot be seen.
_UNFILLED = ("supply", *REMEDIES)
#: Batches to drop while waiting for a stable one before the rung is given up.
_PATIENCE = 200


class Switcher:
    """The rung that feeds the loop, and how fast the loop and the workers are known to be under each.

    ``unavailable`` is called with a rung that cannot be served, and the reason.

    Attributes:
        fed_by: rung that feeds the loop, or None if it was fed by other means since.
        keeps_up: True if a round of the workers is queued, although the loop takes batches.
        pace: latest seconds per step under each rung.
        patience: maximum seconds of one wait for workers.
    """

    def __init__(self, loop_side: LoopSide, unavailable: Callable[[str, str], None]) -> None:
        self.fed_by: str | None = None
        self.keeps_up = False
        self.pace: dict[str, float] = {}
        self.patience = _QUIET_SHARE * loop_side.setting.plan.budget
        self._filled = False  # the workers filled their queues before the loop took a batch
        self._made: dict[str, float] = {}  # a worker's seconds for a batch in the latest window of each rung
        self._slower: set[str] = set()  # rungs under which the workers are known to be slower than the loop
        self._loop_side = loop_side
        self._feed = loop_side.feed
        self._clock = loop_side.clock
        self._unavailable = unavailable
        for window in loop_side.setting.session.windows:
            self.learn(window)

    def learn(self, window: Window) -> None:
        """Remember the pace of a recorded window, of this pass or an earlier one."""
        self.pace[window.rung] = window.seconds / window.steps
        self._made[window.rung] = window.evidence.get("worker_ms", 0.0) / 1000

    def estimate(self, rung: str, seconds: float, steps: int, made: float) -> None:
        """Estimate an unknown pace from ``steps`` steps that took ``seconds``.

        Before them, a worker took ``made`` seconds for the first batch.
        """
        workers = self._loop_side.source(rung).workers
        each = max(seconds / max(1, steps), made / workers) if workers else (made + seconds) / max(1, steps)
        self.pace.setdefault(rung, each)

    def forget(self, rung: str) -> None:
        """Forget a pace that included the workers' startup. The loop has to settle again."""
        self.pace.pop(rung, None)
        self.disturb()

    def used_up_stock(self, rung: str) -> None:
        """Note that full queues hid how slow the rung's workers are. The loop has to settle again."""
        self._slower.add(rung)
        self.disturb()

    def disturb(self) -> None:
        """Mark the loop as unsettled: it was fed by other means."""
        self.fed_by = None

    def is_on(self, rung: str) -> bool:
        """Return whether the rung feeds the loop, and the epoch goes on."""
        return self.fed_by == rung and not self._loop_side.epochs.complete

    def for_steps(self) -> str:
        """Return the rung that feeds the loop; if none gives it batches to train on, the baseline does from now on."""
        if self.fed_by is not None and self.fed_by != "supply":
            return self.fed_by
        self._feed.rung_switch.set("baseline")
        self._loop_side.only(self._loop_side.source("baseline"))
        return "baseline"

    def to(self, rung: str) -> Turn[tuple[str, Delivery | None, float]]:
        """Let only the rung's own workers make batches from now on, and fill their queues if they are fast.

        Returns why that is impossible, or ""; the first batch, if workers make it; and a worker's seconds for a batch.
        """
        if self.is_on(rung):
            return "", None, self._made.get(rung, 0.0)
        switched = self._clock.now()
        before, self.fed_by = self.fed_by, rung
        source = self._loop_side.source(rung)
        cached = rung in CACHED
        self._feed.rung_switch.set(rung)
        self._loop_side.only(None if cached else source)
        self._wait_until_idle(before, None if cached else source)
        self.keeps_up = False
        first: Delivery | None = None
        if not cached:
            first = yield from self._first_of(rung, source, switched)
            if not first.fits(made_under(rung)):
                return first.why_not, None, 0.0
        # The first batch to arrive after a switch is the fastest of a round.
        made = max(first.cost.wall, self._made.get(rung, 0.0)) if first is not None else 0.0
        fills = not cached and rung not in _UNFILLED and rung not in self._slower
        self._filled = self.keeps_up = fills and self._outpaces_loop(made, source) and self._fill_up(source)
        return "", first, made

    def look_at_queues(self, rung: str, made: float) -> bool:
        """Find out again whether the workers keep up with the loop, and return it.

        They do if they filled their queues before the loop began. ``made`` is a worker's seconds for a batch.
        """
        self.keeps_up = self._filled or self._queues_are_full(rung, made)
        return self.keeps_up

    def _queues_are_full(self, rung: str, made: float) -> bool:
        """Return whether more than a round of the workers is queued: a single round arrives all at once."""
        source = self._loop_side.source(rung)
        slower = rung in self._slower or (bool(self._own_paces) and not self._outpaces_loop(made, source))
        return not slower and 0 < max(source.workers + 1, source.backlog - 1) <= source.ready

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
                self._unavailable(rung, why_not)
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
        other = self._loop_side.source(before or "baseline")
        if other is fed_by or before in CACHED or not other.workers:
            return
        # For workers whose activity cannot be seen, the time to fill their queues is known.
        refilled = other.backlog * self.pace.get(before, 0.0) if before is not None and fed_apart(before) else 0.0
        began = idle = self._clock.now()
        ready = other.ready
        while (now := self._clock.now()) < min(began + self.patience, max(idle + _STILL, began + refilled)):
            self._clock.sleep(_POLL)
            if other.at_work or other.ready != ready:  # finished batches are still in transit
                idle, ready = now, other.ready

    def _outpaces_loop(self, made: float, source: Source) -> bool:
        """Return whether workers that take ``made`` seconds per batch are known to be faster than the loop."""
        own = self._own_paces
        return source.workers > 0 and bool(own) and made < _FASTER * source.workers * max(own)

    @property
    def _own_paces(self) -> list[float]:
        """Seconds per step under the rungs where the loop never waited for work to be done."""
        return [self.pace[rung] for rung in ("worker", *CACHED) if rung in self.pace]

    def _fill_up(self, source: Source) -> bool:
        """Wait until the workers have filled their queues; return whether they have, in time."""
        until = self._clock.now() + self.patience
        while source.ready < source.backlog - 1 and self._clock.now() < until:
            self._clock.sleep(_POLL)
        return source.ready >= source.backlog - 1

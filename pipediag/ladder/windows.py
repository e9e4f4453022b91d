"""Windows of the ladder's rungs on a running loop: brought into its steady state under a rung, and timed there.

What a window stands for, and which comes next, is decided elsewhere (:mod:`.climb`, :mod:`pipediag.measure.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.schedule import Schedule
from ..measure.window import MIN_STEPS, window_steps
from ..session import Rung, cut_of, fed_apart
from . import tree
from .batchfacts import describe
from .caches import BatchCache, Caches
from .caveats import OTHER_LOADERS, WRITES_IN_PLACE
from .collecting import collected
from .deadline import Deadline, OutOfTime
from .feed import Drain, Feed, Source
from .plan import Plan
from .standing import NOTHING_TO_MOVE, TOO_LARGE
from .timing import Cost, OpenWindow
from .training import Training
from .turns import Turn, Turns

#: Rungs whose batches the loop gets from a cache in this process.
_CACHED = ("device", "host", "device+load")
#: Windows thrown away because something else ran in them, before such windows are taken as they are.
_TOLERATED = 3
#: How many times as long as it is meant to be a window may become, when its steps are slower than expected.
_LONGEST = 3.0
#: Batches dropped in search of a stable one before a rung is given up.
_PATIENCE = 200
#: Cached batches whose contents are looked at.
_DESCRIBED = 2


class Setting(Protocol):
    """What windows need of the analysis they are part of."""

    plan: Plan
    training: Training
    clock: Clock

    def send(self, kind: str, data: dict[str, Any]) -> None: ...
    def draws_of_others(self, ordinal: int) -> int: ...


@dataclass
class Rounds:
    """Which windows are wanted.

    Attributes:
        schedule: says which rung comes next, and in which round.
        target: seconds that a window is to last.
    """

    schedule: Schedule
    target: float


class Windows:
    """Measures one window after the other on the loop behind ``turns``.

    Args:
        ordinal: of the loader among all that the script has iterated.
        writes_in_place: whether the loop writes into its batches.
        recorded: is told of every window, by its rung.

    Attributes:
        rounds: what the windows belong to now.
        pace: seconds a step under each rung, as seen last.
        caches: of batches, once a rung has needed one.
    """

    def __init__(
        self,
        feed: Feed,
        turns: Turns,
        setting: Setting,
        device: Device,
        deadline: Deadline,
        rounds: Rounds,
        ordinal: int,
        writes_in_place: bool,
        recorded: Callable[[str], None],
    ) -> None:
        self.rounds = rounds
        self.pace = {w.rung: w.seconds / w.steps for w in rounds.schedule.session.windows}
        self.caches: Caches | None = None
        self._feed = feed
        self._turns = turns
        self._epochs = turns.epochs
        self._setting = setting
        self._clock = setting.clock
        self._device = device
        self._gpu = device.gpu()
        self._deadline = deadline
        self._ordinal = ordinal
        self._workers: int = feed.loader.num_workers
        self._writes_in_place = writes_in_place
        self._recorded = recorded
        self._drain: Drain | None = None
        self._thrown_away = 0
        self._fed_by: str | None = None  # the rung that the loop was settled under last

    def measure(self, rung: str) -> Generator[Any, None, str]:
        """One window of ``rung``; returns why there is none, or the empty string."""
        if rung != "baseline" and not fed_apart(rung):
            yield from self.fill_caches()
        if rung in _CACHED and not self.cache(rung):
            self.unavailable(rung, TOO_LARGE)
        if rung == "worker" and self.caches is not None:
            if self.caches.shared:
                self._feed.share(self.caches.shared)
            else:
                self.unavailable(rung, TOO_LARGE)
        if not self.rounds.schedule.allows(rung):
            return ""
        if rung == "supply":
            return (yield from self._measure_supply())
        return (yield from self._measure_loop(rung))

    def _measure_loop(self, rung: str) -> Generator[Any, None, str]:
        window: OpenWindow | None = None
        try:
            while window is None or not window.full:
                rested = window is None and (self._turns.alternate or self._fed_by is None)
                trouble = yield from self.settle(rung, rested)
                if trouble:
                    return trouble
                drained: list[Cost] = []
                try:
                    if rung == "device+load":
                        self._drain, self._turns.feed_is_lent = Drain(self._feed), True
                        yield from self._hand_cached(rung, max(2, self._workers))
                    window = window or self._open(rung)
                    yield from self._stretch(window)
                finally:
                    drained = self._stop_drain()
                    if window is not None:
                        window.costs += drained
        except (GeneratorExit, OutOfTime):  # the script has ended, or the time; what was timed in full is worth keeping
            if window is not None and window.watch.steps >= MIN_STEPS:
                self._close(window)
            raise
        return self._close(window)

    def _open(self, rung: str) -> OpenWindow:
        # The pace of a rung's first window is guessed from its settling, and often guessed too fast.
        measured = bool(self.rounds.schedule.session.windows_of(rung))
        target = self.rounds.target if measured or rung == "supply" else self.rounds.target / 2
        if rung == "device+load":  # the workers' queues are full when it begins; what follows is what counts
            target *= 2
        return OpenWindow(
            rung,
            window_steps(self.pace[rung], target, self._turns.source(rung).workers),
            _LONGEST * target,
            self._turns.source(rung),
            self._clock,
            self._device,
            self._gpu,
            self._setting.training.steps,
            self._setting.draws_of_others(self._ordinal),
        )

    def _close(self, window: OpenWindow) -> str:
        """Record the window, unless other code than the training loop ran in it; returns why not, or ""."""
        evidence = window.evidence(waits=window.rung not in _CACHED)
        steps = self._setting.training.steps - window.optimizer_steps
        interrupted = self._setting.draws_of_others(self._ordinal) != window.draws_of_others
        if interrupted or (steps == 0 and not self._setting.plan.inference):
            self._thrown_away += 1
            if self._thrown_away <= _TOLERATED:
                return "other code ran in every window"
            if interrupted:
                self._setting.send("warning", OTHER_LOADERS)
        self._record(window, steps, evidence)
        return ""

    def _stretch(self, window: OpenWindow) -> Turn:
        """Time the loop until the window is full or the epoch ends; a stretch whose end is not seen is dropped."""
        watch, rung = window.watch, window.rung
        watch.start()
        began = self._clock.now()
        while not window.full and not self._epochs.last_chance:
            if rung in _CACHED:
                batch = self.cache(rung).next()
                self._let_drain()
            else:
                delivery = yield from self._turns.take_fitting(rung)
                if delivery is None:
                    watch.drop()
                    return
                window.costs.append(delivery.cost)
                batch = self._own(delivery.batch, rung)
            back = yield from self._turns.hand(batch)
            if not back:
                watch.drop()
                return
            watch.count()
            self._end_in_time(window, began)
        watch.stop()

    def _measure_supply(self) -> Generator[Any, None, str]:
        """The loader alone: batches are taken and dropped while the loop waits in one ``next()``."""
        trouble = yield from self.settle("supply")
        if trouble:
            return str(trouble)
        window = self._open("supply")
        window.watch.start()
        began = self._clock.now()
        while not window.full:
            delivery = yield from self._turns.take("supply")
            if delivery is None:
                return "the data ended"
            window.costs.append(delivery.cost)
            window.watch.count()
            self._end_in_time(window, began)
            if self._deadline.passed:
                break
        window.watch.stop()
        self._record(window, 0, window.evidence(waits=True))
        return ""

    def _end_in_time(self, window: OpenWindow, began: float) -> None:
        """Be content with the whole rounds of the workers that there are where their pace was guessed too fast."""
        workers = max(1, self._turns.source(window.rung).workers)
        if self._clock.now() - began > window.longest and window.watch.total_steps % workers == 0:
            window.shorten()

    # Before a window

    def settle(self, rung: str, rested: bool = False) -> Generator[Any, None, str]:
        """Bring loop and workers into the rung's steady state; returns why that cannot be done, or "".

        ``rested``: batches lie ready, because the loop was fed from elsewhere, or was slow as long as its device warmed
        up; they are taken out of the way first, and the queues get the time to be as full as this rung keeps them.
        Where it was fed from elsewhere, the workers there fill theirs meanwhile, on cores that the window's own workers
        are to have to themselves.
        """
        if not self._setting.plan.inference:
            yield from self._turns.await_training()
        self._feed.cell.switch(rung)
        before, self._fed_by = self._fed_by, rung
        if rung in ("device", "host"):
            yield from self._hand_cached(rung, 2)
            return ""
        expected = "baseline" if rung in ("supply", "device+load") else rung
        handing = rung not in ("supply", "device+load")
        source = self._turns.source(rung)
        backlog = source.backlog
        if rested and self._epochs.horizon is None:
            yield from self._take_what_lies_ready(source, rung)
        needed, stable, dropped = self._settling_round(source.workers, backlog if rested else 0), 0, 0
        quiet = self._clock.now() + (self._refilling(before, source) if rested else 0.0)
        # A loop that never waits for its device runs ahead of it: without these, a step would seem to take no time.
        self._device.synchronize()
        began = self._clock.now()
        while stable < needed or self._clock.now() < quiet:
            delivery = yield from self._turns.take(rung)
            if delivery is None:
                continue
            if delivery.why_not and delivery.rung == rung:
                self.unavailable(rung, delivery.why_not)
                return delivery.why_not
            if not delivery.fits(expected):
                stable, dropped, began = 0, dropped + 1, self._clock.now()
                if dropped > _PATIENCE + 4 * backlog:
                    return "the workers did not follow the switch"
                continue
            stable += 1
            if handing:
                yield from self._turns.hand(self._own(delivery.batch, rung))
        if handing:
            self._device.synchronize()
        if rung != "device+load":  # there the loop sets the pace, which has not been asked yet
            self.pace.setdefault(rung, (self._clock.now() - began) / max(1, stable))
        return ""

    def _take_what_lies_ready(self, source: Source, rung: str) -> Turn:
        """Empty the queues without a step for each batch.

        A loop hardly faster than its workers would use up for minutes what lies ready, and look as fast as if it always
        did. Workers that are the faster ones have filled the queues again when the window begins.
        """
        for _ in range(source.backlog):
            delivery = yield from self._turns.take(rung)
            if delivery is not None and delivery.why_not:
                return

    def _refilling(self, before: str | None, source: Source) -> float:
        """Seconds until the queues are full that the loop was fed from under ``before``."""
        if before is None or self._epochs.horizon is not None:
            return 0.0
        other = self._turns.source(before)
        if other is source:
            return 0.0
        return other.backlog * self.pace.get(before, 0.0)

    def _settling_round(self, workers: int, backlog: int) -> int:
        """One batch of each worker beyond the backlog; fewer where the loop leaves too early for that."""
        whole, horizon = backlog + max(1, workers), self._epochs.horizon
        return whole if horizon is None else min(whole, max(1, (horizon - 2) // 3))

    def _stop_drain(self) -> list[Cost]:
        """End the draining thread, if there is one, and return what the batches it took have cost."""
        drain, self._drain = self._drain, None
        self._turns.feed_is_lent = False
        if drain is None:
            return []
        drain.stop()
        return drain.costs

    def _let_drain(self) -> None:
        if self._drain is not None:
            self._drain.step()

    def _hand_cached(self, rung: str, count: int) -> Turn:
        self._device.synchronize()
        began = self._clock.now()
        for _ in range(count):
            self._let_drain()
            yield from self._turns.hand(self.cache(rung).next())
        self._device.synchronize()
        self.pace.setdefault(rung, (self._clock.now() - began) / count)
        if self.cache(rung).writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)

    def cache(self, rung: str) -> BatchCache:
        assert self.caches is not None
        return self.caches.host if rung == "host" else self.caches.device

    def _own(self, batch: Any, rung: str) -> Any:
        """The workers' shared batch is one memory for all: a loop that writes into it gets a copy."""
        return tree.clone_pinned(batch) if rung == "worker" and self._writes_in_place else batch

    def fill_caches(self) -> Turn:
        """Keep batches of the loop's, once."""
        if self.caches is not None:
            return
        batches, plan = yield from collected(self._turns, self._clock, self._workers, self._device.is_cpu)
        self._feed.cell.pool_bytes = plan.pool_bytes
        self._setting.send("caches", {**vars(plan), "held_bytes": plan.held_bytes})
        if self.rounds.schedule.session.batch is None and plan.device:
            self._setting.send("batch", asdict(describe(batches[:_DESCRIBED], self._device, self._clock)))
        self.caches = caches = Caches(batches, plan, self._device.torch_device, self._writes_in_place)
        if caches.device and not caches.moves:
            for rung in ("device", "device+load"):
                self.unavailable(rung, NOTHING_TO_MOVE)

    # Reporting

    def _record(self, open_: OpenWindow, optimizer_steps: int, evidence: dict[str, float]) -> None:
        window = open_.closed(self.rounds.schedule.round, self._setting.plan.attempt, optimizer_steps, evidence)
        self.pace[window.rung] = window.seconds / window.steps
        self._setting.send("window", vars(window))
        self._recorded(window.rung)

    def unavailable(self, name: str, why: str) -> None:
        dissected = name == "raw" or cut_of(name) is not None
        prefix = "not separable: " if dissected and not why.startswith("not separable") else ""
        self.announce(Rung(name, False, prefix + why))

    def announce(self, rung: Rung) -> None:
        if not rung.available:
            self.rounds.schedule.withdraw(rung.name)
        self._setting.send("rung", vars(rung))

"""Climbing the ladder on one loader, driven by the training loop's own calls of ``next()``.

:class:`Climb` is a generator at heart: each ``yield`` hands the loop one batch, and what stands after the yield runs
when the loop comes back for the next. So a window is a plain loop with a stopwatch around it, although it is the
user's code that turns the handle.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from ..analysis.thresholds import GATE
from ..analysis.whatif import transfer_matters
from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.schedule import Schedule
from ..measure.window import MIN_STEPS, window_steps
from ..session import REMEDIED, Rung, cut_of
from . import tree
from .batchfacts import describe
from .batchsteps import batch_steps
from .caches import BatchCache, Caches
from .caveats import OTHER_LOADERS, WRITES_IN_PLACE
from .collecting import collected
from .epochs import Epochs
from .feed import Drain, Feed, epoch_length
from .findings import Findings
from .plan import Plan
from .remedied import Trial
from .standing import NOTHING_TO_MOVE, TOO_LARGE, standings
from .timing import Cost, OpenWindow
from .training import Training
from .turns import Turn, Turns
from .uses import watch_uses

#: Rungs whose batches the loop gets from a cache in this process.
_CACHED = ("device", "host", "device+load")
#: Windows thrown away because something else ran in them, before such windows are taken as they are.
_TOLERATED = 3
#: How many times as long as it is meant to be a window may become, when its steps are slower than expected.
_LONGEST = 3.0
#: Batches dropped in search of a stable one before a rung is given up.
_PATIENCE = 200
#: The longest that comparing single batches may take, in seconds and as a part of the budget.
_COMPARE_SECONDS, _COMPARE_SHARE = 3.0, 0.05
#: Cached batches whose contents are looked at.
_DESCRIBED = 2


class Setting(Protocol):
    """What a climb needs of the analysis it is part of."""

    plan: Plan
    training: Training
    schedule: Schedule
    clock: Clock

    @property
    def looks_inside(self) -> bool: ...
    def trial_schedule(self, begins: bool) -> Schedule: ...
    def aside(self) -> AbstractContextManager[None]: ...
    def send(self, kind: str, data: dict[str, Any]) -> None: ...
    def draws_of_others(self, ordinal: int) -> int: ...
    def finish(self, reason: str) -> None: ...


class OutOfTime(Exception):
    """The budget of what is being measured is spent."""


class Climb:
    """The measurement on the training loader. ``handed`` is how far the loop is in its epoch when it begins."""

    def __init__(
        self,
        feed: Feed,
        ordinal: int,
        setting: Setting,
        device: torch.device,
        handed: int,
        writes_in_place: bool,
    ) -> None:
        self.feed = feed
        self.rung = "baseline"
        self._epochs = Epochs(epoch_length(feed.loader), handed, setting.plan.horizon)
        self._turns = Turns(feed, self._epochs, setting.training, ordinal, self._check_deadline)
        self._ordinal = ordinal
        self._setting = setting
        self._plan = setting.plan
        self._clock = setting.clock
        self._schedule = setting.schedule
        self._workers: int = feed.loader.num_workers
        self._device = Device(device)
        self._gpu = self._device.gpu()
        self._writes_in_place = writes_in_place
        self._caches: Caches | None = None
        self._drain: Drain | None = None
        self._trial: Trial | None = None
        self._pace = {w.rung: w.seconds / w.steps for w in setting.schedule.session.windows}
        self._thrown_away = 0
        self._findings = Findings(feed, setting.send, setting.plan.attempt, not setting.looks_inside)
        self._compares_batches = not setting.schedule.session.batch_steps
        self._deadline = self._clock.now() + self._plan.budget
        self._target = _window_seconds(self._plan.budget, len(self._schedule.rungs))
        feed.endless = self._epochs.length is not None
        self._climbing = self._run()

    @property
    def horizon(self) -> int | None:
        """After how many batches the loop leaves its epochs early, if it does; see :class:`Epochs`."""
        return self._epochs.seen_horizon

    # Called by the loop's iterator

    def next(self) -> Any:
        """One turn of the loop: a batch, :data:`END`, or a :class:`Failure`."""
        if self._clock.now() > self._deadline:
            return self._climbing.throw(OutOfTime())
        return next(self._climbing)

    def close(self) -> None:
        """Undo what a window under way has started."""
        try:
            self._climbing.close()
        except ValueError:  # it is the climb itself that is ending the analysis
            pass

    def _check_deadline(self) -> None:
        if self._clock.now() > self._deadline:
            raise OutOfTime

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """The loop has called ``iter()``, perhaps on a loader rebuilt for the new epoch."""
        self.feed.loader = loader
        self._turns.begin_epoch(epoch_length(loader))
        self.feed.endless = self._epochs.length is not None

    # The climb itself

    def _run(self) -> Turn:
        ended = "settled"
        if not self._plan.climbed:
            for standing in standings(self.feed.loader, self._device.is_cpu, self._plan.excluded, self._schedule.rungs):
                self._announce(standing)
            ended = yield from self._rounds()
        if self._plan.apply and self._schedule.session.windows:
            yield from self._try_remedy(ended)
        self._setting.finish(ended)

    def _rounds(self) -> Generator[Any, None, str]:
        """Window after window, as the schedule wants them; returns why there are no more."""
        try:
            while (rung := self._schedule.next_rung()) is not None:
                self._setting.send("progress", {"rung": rung, "round": self._schedule.round + 1})
                if cut_of(rung) is not None and rung not in self._schedule.session.rungs:
                    self._announce(Rung(rung))
                self.rung = rung
                failed = yield from self._measure(rung)
                self.rung = "baseline"
                self._findings.tell()
                if failed and self._schedule.allows(rung) and self._schedule.failed(rung):
                    self._unavailable(rung, failed)
        except OutOfTime:
            self.rung = "baseline"
            return "budget"
        return "settled"

    def _try_remedy(self, ended: str) -> Turn:
        """The loop under the remedy against the loop as it is, in rounds and with a budget of their own."""
        self._deadline = math.inf  # a trial in the workers takes the time that it takes
        self._setting.send("applying", {"ended": ended})
        session = self._schedule.session
        begins = session.remedy is None
        if begins:
            self._device.forget_peak()
            yield from self._settle("baseline")
        trial = Trial(self.feed.loader, self.feed.endless, self._device, self._setting.aside, self._clock, session)
        self._setting.send("remedy", asdict(trial.remedy))
        if trial.feed is None:
            return
        self._trial = trial
        self._turns.serve(REMEDIED, trial.feed)
        self._schedule = self._setting.trial_schedule(begins)
        self._announce(Rung(REMEDIED))
        self._target = _window_seconds(self._plan.apply, len(self._schedule.rungs))
        try:
            if REMEDIED not in self._pace:
                self.rung = REMEDIED
                yield from self._settle(REMEDIED)
                self._pace.pop(REMEDIED, None)  # the workers had to start, and kernels to be built
            self._setting.send("applying", {"budget": self._plan.apply})
            self._deadline = self._clock.now() + self._plan.apply
            yield from self._rounds()
        finally:
            trial.feed.close()

    def _measure(self, rung: str) -> Generator[Any, None, str]:
        """One window of ``rung``; returns why there is none, or the empty string."""
        if rung not in ("baseline", REMEDIED) and self._caches is None:
            self._caches = yield from self._fill_caches()
        if rung in _CACHED and not self._cache(rung):
            self._unavailable(rung, TOO_LARGE)
        if rung == "worker" and self._caches is not None:
            if self._caches.shared:
                self.feed.share(self._caches.shared)
            else:
                self._unavailable(rung, TOO_LARGE)
        if not self._schedule.allows(rung):
            return ""
        if rung == "supply":
            return (yield from self._measure_supply())
        trouble = yield from self._measure_loop(rung)
        if rung in ("device", "host") and not trouble:
            yield from self._watch_uses()
        if rung == "device" and not trouble and self._compares_batches:
            self._compares_batches = False
            yield from self._compare_batches()
        return trouble

    def _measure_loop(self, rung: str) -> Generator[Any, None, str]:
        window: OpenWindow | None = None
        try:
            while window is None or not window.full:
                trouble = yield from self._settle(rung, self._trial is not None and window is None)
                if trouble:
                    return trouble
                drained: list[Cost] = []
                try:
                    if rung == "device+load":
                        self._drain, self._turns.feed_is_lent = Drain(self.feed), True
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
        measured = bool(self._schedule.session.windows_of(rung))
        target = self._target if measured or rung == "supply" else self._target / 2
        if rung == "device+load":  # the workers' queues are full when it begins; what follows is what counts
            target *= 2
        return OpenWindow(
            rung,
            window_steps(self._pace[rung], target, self._workers),
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
        if interrupted or (steps == 0 and not self._plan.inference):
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
                batch = self._cache(rung).next()
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
            if self._clock.now() - began > window.longest and watch.total_steps % max(1, self._workers) == 0:
                window.shorten()
        watch.stop()

    def _measure_supply(self) -> Generator[Any, None, str]:
        """The loader alone: batches are taken and dropped while the loop waits in one ``next()``."""
        trouble = yield from self._settle("supply")
        if trouble:
            return str(trouble)
        window = self._open("supply")
        window.watch.start()
        while not window.full:
            delivery = yield from self._turns.take("supply")
            if delivery is None:
                return "the data ended"
            window.costs.append(delivery.cost)
            window.watch.count()
            if self._clock.now() > self._deadline:
                break
        window.watch.stop()
        self._record(window, 0, window.evidence(waits=True))
        return ""

    def _watch_uses(self) -> Turn:
        """What the loop does with each tensor of a batch, once, where copying to the device may matter to it."""
        session = self._schedule.session
        facts = session.batch
        if facts is None or facts.unwatched or facts.autocast is not None or not transfer_matters(session, GATE / 2):
            return
        yield from watch_uses(self._turns, self._cache("host"), facts, self._device.torch_device)
        self._setting.send("batch", asdict(facts))

    def _compare_batches(self) -> Turn:
        """Single steps on each cached batch, once: does the model's step depend on the batch?"""
        seconds = min(_COMPARE_SECONDS, _COMPARE_SHARE * self._plan.budget)
        cache, pace = self._cache("device"), self._pace["device"]
        found = yield from batch_steps(self._turns, cache, self._device, self._clock, pace, seconds)
        for one in found:
            self._setting.send("batch-step", one)

    # Before a window

    def _settle(self, rung: str, rested: bool = False) -> Generator[Any, None, str]:
        """Bring loop and workers into the rung's steady state; returns why that cannot be done, or "".

        ``rested``: batches lie ready, because the loop was fed from elsewhere; they are used up first.
        """
        if not self._plan.inference:
            yield from self._turns.await_training()
        self.feed.cell.switch(rung)
        if rung in ("device", "host"):
            yield from self._hand_cached(rung, 2)
            return ""
        expected = "baseline" if rung in ("supply", "device+load") else rung
        handing = rung not in ("supply", "device+load")
        backlog = self._turns.source(rung).backlog
        needed, stable, dropped = self._settling_round(backlog if rested else 0), 0, 0
        # A loop that never waits for its device runs ahead of it: without these, a step would seem to take no time.
        self._device.synchronize()
        began = self._clock.now()
        while stable < needed:
            delivery = yield from self._turns.take(rung)
            if delivery is None:
                continue
            if delivery.why_not and delivery.rung == rung:
                self._unavailable(rung, delivery.why_not)
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
            self._pace.setdefault(rung, (self._clock.now() - began) / max(1, stable))
        return ""

    def _settling_round(self, backlog: int) -> int:
        """One batch of each worker beyond the backlog; fewer where the loop leaves too early for that."""
        whole, horizon = backlog + max(1, self._workers), self._epochs.horizon
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
            yield from self._turns.hand(self._cache(rung).next())
        self._device.synchronize()
        self._pace.setdefault(rung, (self._clock.now() - began) / count)
        if self._cache(rung).writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)

    def _cache(self, rung: str) -> BatchCache:
        assert self._caches is not None
        return self._caches.host if rung == "host" else self._caches.device

    def _own(self, batch: Any, rung: str) -> Any:
        """The workers' shared batch is one memory for all: a loop that writes into it gets a copy."""
        return tree.clone_pinned(batch) if rung == "worker" and self._writes_in_place else batch

    def _fill_caches(self) -> Generator[Any, None, Caches]:
        batches, plan = yield from collected(self._turns, self._clock, self._workers, self._device.is_cpu)
        self.feed.cell.pool_bytes = plan.pool_bytes
        self._setting.send("caches", {**vars(plan), "held_bytes": plan.held_bytes})
        if self._schedule.session.batch is None and plan.device:
            self._setting.send("batch", asdict(describe(batches[:_DESCRIBED], self._device, self._clock)))
        caches = Caches(batches, plan, self._device.torch_device, self._writes_in_place)
        if caches.device and not caches.moves:
            for rung in ("device", "device+load"):
                self._unavailable(rung, NOTHING_TO_MOVE)
        return caches

    # Reporting

    def _record(self, open_: OpenWindow, optimizer_steps: int, evidence: dict[str, float]) -> None:
        window = open_.closed(self._schedule.round, self._plan.attempt, optimizer_steps, evidence)
        self._findings.tell()
        self._pace[window.rung] = window.seconds / window.steps
        self._setting.send("window", vars(window))
        if window.rung == REMEDIED and self._trial is not None:
            self._setting.send("remedy", asdict(self._trial.measured()))

    def _unavailable(self, name: str, why: str) -> None:
        dissected = name == "raw" or cut_of(name) is not None
        prefix = "not separable: " if dissected and not why.startswith("not separable") else ""
        self._announce(Rung(name, False, prefix + why))

    def _announce(self, rung: Rung) -> None:
        if not rung.available:
            self._schedule.withdraw(rung.name)
        self._setting.send("rung", vars(rung))


def _window_seconds(budget: float, rungs: int) -> float:
    """A window's share of the budget when every rung gets five rounds and half the time goes into settling."""
    return min(1.0, max(0.2, budget / (10 * max(1, rungs))))

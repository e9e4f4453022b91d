"""Climbing the ladder on one loader, driven by the training loop's own calls of ``next()``.

:class:`Climb` is a generator at heart: each ``yield`` hands the loop one batch, and what stands after the yield runs
when the loop comes back for the next. So a window is a plain loop with a stopwatch around it, although it is the
user's code that turns the handle.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import torch

from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.evidence import Evidence, Gpu, worker_figures
from ..measure.schedule import Schedule
from ..measure.window import Stopwatch, window_steps
from ..session import Rung, Window
from . import tree
from .caches import BatchCache, CachePlan, plan_caches
from .delivery import Delivery
from .feed import Drain, Feed, epoch_length, is_iterable
from .plan import Plan
from .training import Training

#: Handed to the loop's iterator in place of a batch: the epoch ends here.
END = object()
#: Rungs whose batches the loop gets from a cache in this process.
_CACHED = ("device", "host", "device+load")
#: Iterators built for the sake of measuring their startup, before the workers are simply kept.
_STARTUPS = 3
#: Windows thrown away because something else ran in them, before such windows are taken as they are.
_TOLERATED = 3
#: Batches dropped in search of a stable one before a rung is given up.
_PATIENCE = 200
#: Seconds spent on collecting distinct batches for the caches; what is there by then has to do.
_CACHE_SECONDS = 5.0

WRITES_IN_PLACE = {
    "code": "writes-in-place",
    "message": "the training loop changes its batches in place",
    "help": "cached rungs hand out copies of their batches, and include making them",
}

Turn = Generator[Any, None, Any]


class Failure:
    """An exception of the loader's, to be raised from the loop's ``next()`` without ending the climb."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Setting(Protocol):
    """What a climb needs of the analysis it is part of."""

    plan: Plan
    training: Training
    schedule: Schedule
    clock: Clock

    def send(self, kind: str, data: dict[str, Any]) -> None: ...
    def draws_of_others(self, ordinal: int) -> int: ...
    def finish(self, reason: str) -> None: ...


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
        self.loader = feed.loader
        self.length = epoch_length(self.loader)
        self.epoch = 0
        self.handed = handed
        self.rung = "baseline"
        self._ordinal = ordinal
        self._setting = setting
        self._plan = setting.plan
        self._clock = setting.clock
        self._schedule = setting.schedule
        self._workers: int = self.loader.num_workers
        self._device = Device(device)
        self._gpu = _gpu(device)
        self._writes_in_place = writes_in_place
        self._horizon = setting.plan.horizon
        self._steps_before_epoch = setting.training.steps
        self._caches: dict[str, BatchCache] = {}
        self._cache_plan: CachePlan | None = None
        self._shared: list[Any] = []
        self._drain: Drain | None = None
        self._pace = {w.rung: w.seconds / w.steps for w in setting.schedule.session.windows}
        self._thrown_away = 0
        self._reported_startups = 0
        self._deadline = self._clock.now() + self._plan.budget
        # A window's share of the budget when every rung gets five rounds and half the time goes into settling.
        self._target = min(1.0, max(0.2, self._plan.budget / (10 * max(1, len(self._schedule.rungs)))))
        feed.endless = True
        self._turns = self._run()

    @property
    def horizon(self) -> int | None:
        """Batches after which the loop left its epochs early, if it ever did; so far, in the present epoch."""
        unfinished = self.length is None or self.handed < self.length
        return max(self._horizon or 0, self.handed) or None if unfinished else self._horizon

    # Called by the loop's iterator

    def next(self) -> Any:
        """One turn of the loop: a batch, :data:`END`, or a :class:`Failure`."""
        self._check_deadline()
        return next(self._turns)

    def close(self) -> None:
        """Undo what a window under way has started."""
        try:
            self._turns.close()
        except ValueError:  # it is the climb itself that is ending the analysis
            pass

    def _check_deadline(self) -> None:
        if self._clock.now() > self._deadline:
            self._setting.finish("budget")

    def begin_epoch(self, loader: Any = None) -> None:
        """The loop has called ``iter()``. Where it left its last epoch early, that is how far it goes."""
        left_early = self.handed > 0 and (self.length is None or self.handed < self.length)
        if left_early:
            self._horizon = max(self._horizon or 0, self.handed)
        if loader is not None and loader is not self.loader:  # rebuilt by the script for the new epoch
            self.loader = self.feed.loader = loader
            self.length = epoch_length(loader)
        self.epoch += 1
        self.handed = 0
        self._steps_before_epoch = self._setting.training.steps

    # The climb itself

    def _run(self) -> Turn:
        self._rule_out()
        while True:
            rung = self._schedule.next_rung()
            if rung is None:
                self._setting.finish("settled")
                return
            self._setting.send("progress", {"rung": rung, "round": self._schedule.round_of(rung) + 1})
            self.rung = rung
            failed = yield from self._measure(rung)
            self.rung = "baseline"
            if failed and rung in self._schedule.rungs and self._schedule.failed(rung):
                self._unavailable(rung, failed)

    def _measure(self, rung: str) -> Generator[Any, None, str]:
        """One window of ``rung``; returns why there is none, or the empty string."""
        if rung != "baseline" and self._cache_plan is None:
            trouble = yield from self._fill_caches()
            if trouble:
                return str(trouble)
        if rung in ("device", "host", "device+load") and not self._caches.get(_cache_of(rung)):
            self._unavailable(rung, self._too_large())
            return ""
        if rung == "worker":
            if not self._shared:
                self._unavailable(rung, self._too_large())
                return ""
            self.feed.share(self._shared)
        if rung == "supply":
            return (yield from self._measure_supply())
        return (yield from self._measure_loop(rung))

    def _measure_loop(self, rung: str) -> Generator[Any, None, str]:
        watch = Stopwatch(self._clock, self._device.synchronize)
        costs: list[tuple[float, float, float, float]] = []
        evidence: Evidence | None = None
        wanted = steps = others = 0
        while evidence is None or watch.total_steps < wanted:
            trouble = yield from self._settle(rung)
            if trouble:
                return "" if rung not in self._schedule.rungs else trouble
            try:
                if rung == "device+load":
                    self._drain = Drain(self.feed)
                    yield from self._hand_cached(rung, max(2, self._workers))
                if evidence is None:
                    wanted = window_steps(self._pace[rung], self._target, self._workers)
                    evidence = Evidence(self.feed.worker_pids, self._gpu)
                    steps = self._setting.training.steps
                    others = self._setting.draws_of_others(self._ordinal)
                yield from self._stretch(rung, watch, wanted, costs)
            finally:
                costs += self._stop_drain()
        figures = {**evidence.finish(watch.steps), **worker_figures(costs)}
        steps = self._setting.training.steps - steps
        interrupted = self._setting.draws_of_others(self._ordinal) != others
        if interrupted or (steps == 0 and not self._plan.inference):
            self._thrown_away += 1
            if self._thrown_away <= _TOLERATED:
                return "other code ran in every window"
            if interrupted:
                self._warn_of_others()
        self._record(rung, watch, steps, figures)
        return ""

    def _stretch(
        self,
        rung: str,
        watch: Stopwatch,
        wanted: int,
        costs: list[tuple[float, float, float, float]],
    ) -> Turn:
        """Time the loop until the window is full or the epoch ends; a stretch whose end is not seen is dropped."""
        watch.start()
        while watch.total_steps < wanted and not self._epoch_is_over():
            if rung in _CACHED:
                batch = self._caches[_cache_of(rung)].next()
                self._let_drain()
            else:
                delivery = yield from self._take()
                if delivery is None or not _fits(delivery, rung):
                    watch.drop()
                    return
                costs.append(delivery.cost)
                batch = self._own(delivery.batch, rung)
            back = yield from self._hand(batch)
            if not back:
                watch.drop()
                return
            watch.count()
        watch.stop()

    def _measure_supply(self) -> Generator[Any, None, str]:
        """The loader alone: batches are taken and dropped while the loop waits in one ``next()``."""
        trouble = yield from self._settle("supply")
        if trouble:
            return str(trouble)
        wanted = window_steps(self._pace["supply"], self._target, self._workers)
        watch = Stopwatch(self._clock, self._device.synchronize)
        evidence = Evidence(self.feed.worker_pids, self._gpu)
        costs = []
        watch.start()
        for _ in range(wanted):
            delivery = yield from self._take()
            if delivery is None:
                return "the data ended"
            costs.append(delivery.cost)
            watch.count()
            if self._clock.now() > self._deadline:
                break
        watch.stop()
        self._record("supply", watch, 0, {**evidence.finish(watch.steps), **worker_figures(costs)})
        return ""

    # Before a window

    def _await_training(self) -> Turn:
        """Plain batches until an optimizer has stepped in this epoch: the loop may be evaluating."""
        while not self._plan.inference and self._setting.training.steps == self._steps_before_epoch:
            self.feed.cell.switch("baseline")
            delivery = yield from self._take()
            if delivery is None or delivery.rung != "baseline":
                continue
            yield from self._hand(delivery.batch)

    def _settle(self, rung: str) -> Generator[Any, None, str]:
        """Bring loop and workers into the rung's steady state; returns why that cannot be done, or ""."""
        yield from self._await_training()
        self.feed.cell.switch(rung)
        if rung in ("device", "host"):
            yield from self._hand_cached(rung, 2)
            return ""
        expected = "baseline" if rung in ("supply", "device+load") else rung
        handing = rung not in ("supply", "device+load")
        needed, stable, dropped = self._settling_round(), 0, 0
        began = self._clock.now()
        while stable < needed:
            delivery = yield from self._take()
            if delivery is None:
                continue
            if delivery.why_not and delivery.rung == rung:
                self._unavailable(rung, delivery.why_not)
                return delivery.why_not
            if not _fits(delivery, expected):
                stable, dropped, began = 0, dropped + 1, self._clock.now()
                if dropped > _PATIENCE + 4 * self._in_flight():
                    return "the workers did not follow the switch"
                continue
            stable += 1
            if handing:
                yield from self._hand(self._own(delivery.batch, rung))
        self._pace.setdefault(rung, (self._clock.now() - began) / max(1, stable))
        return ""

    def _settling_round(self) -> int:
        """One batch of each worker; fewer where the loop leaves too early for that."""
        whole = max(1, self._workers)
        return whole if self._horizon is None else min(whole, max(1, (self._horizon - 2) // 3))

    def _stop_drain(self) -> list[tuple[float, float, float, float]]:
        """End the draining thread, if there is one, and return what the batches it took have cost."""
        drain, self._drain = self._drain, None
        if drain is None:
            return []
        drain.stop()
        return drain.costs

    def _let_drain(self) -> None:
        if self._drain is not None:
            self._drain.step()

    def _hand_cached(self, rung: str, count: int) -> Turn:
        began = self._clock.now()
        for _ in range(count):
            self._let_drain()
            yield from self._hand(self._caches[_cache_of(rung)].next())
        self._device.synchronize()
        self._pace.setdefault(rung, (self._clock.now() - began) / count)
        if self._caches[_cache_of(rung)].writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)

    # Batches

    def _hand(self, batch: Any) -> Generator[Any, None, bool]:
        """Give the loop a batch, ending its epoch first when that is due; False when it did not come back for more
        in the same epoch.
        """
        if self.length is not None and self.handed >= self.length:
            yield from self._end_epoch()
        epoch = self.epoch
        self.handed += 1
        self._setting.training.drew(self._ordinal)
        yield batch
        return self.epoch == epoch

    def _end_epoch(self) -> Turn:
        ended = self.epoch
        while self.epoch == ended:
            yield END
        fresh = self._workers and not self.loader.persistent_workers and self._drain is None
        if fresh and len(self.feed.startups) < _STARTUPS:
            self.feed.open()

    def _epoch_is_over(self) -> bool:
        """Whether the loop's present call of ``next()`` is the last one of this epoch that will be seen."""
        if self.length is not None and self.handed >= self.length:
            return True
        return self._horizon is not None and self.handed >= max(1, self._horizon - 1)

    def _take(self) -> Generator[Any, None, Delivery | None]:
        """The next delivery; None when the data had to be begun anew, which ends an epoch of unknown length."""
        self._check_deadline()
        try:
            delivery = self.feed.take()
        except Exception as error:
            yield Failure(error)
            return None
        self._report_startups()
        if delivery is None:
            if self.length is None:
                yield from self._end_epoch()
            self.feed.renew()
        return delivery

    def _own(self, batch: Any, rung: str) -> Any:
        """The workers' shared batch is one memory for all: a loop that writes into it gets a copy."""
        return tree.clone(batch) if rung == "worker" and self._writes_in_place else batch

    def _fill_caches(self) -> Generator[Any, None, str]:
        """Collect distinct batches straight from the workers, as many as time and memory allow."""
        self.feed.cell.switch("baseline")
        batches: list[Any] = []
        plan: CachePlan | None = None
        size = 0
        until = self._clock.now() + _CACHE_SECONDS
        while plan is None or (len(batches) < max(plan.device, plan.host, plan.shared)):
            delivery = yield from self._take()
            if delivery is None or not _fits(delivery, "baseline"):
                continue
            batches.append(delivery.batch)
            if plan is None:
                size = max(1, tree.nbytes(delivery.batch))
                plan = plan_caches(size, self._workers, self._device.is_cpu)
            if self._clock.now() > until and len(batches) >= 2:
                break
        device = self._device.torch_device
        writes = self._writes_in_place
        moved = [b if self._device.is_cpu else tree.move(b, device) for b in batches[: plan.device]]
        self._caches = {"device": BatchCache(moved, writes), "host": BatchCache(batches[: plan.host], writes)}
        self._shared = batches[: plan.shared]
        self._cache_plan = plan
        self.feed.cell.pool_bytes = plan.pool_bytes
        held = plan.total_bytes(size, self._workers)
        self._setting.send("caches", {"batch_bytes": size, "limit_bytes": held, **vars(plan)})
        if not self._device.is_cpu and not any(t.device.type == device.type for t in tree.tensors(moved)):
            self._unavailable("device", "the batch holds no tensor that could be moved to the device")
            self._unavailable("device+load", "the batch holds no tensor that could be moved to the device")
        return ""

    # Reporting

    def _record(self, rung: str, watch: Stopwatch, optimizer_steps: int, evidence: dict[str, float]) -> None:
        window = Window(
            rung=rung,
            round=self._schedule.round_of(rung),
            steps=watch.steps,
            seconds=watch.seconds,
            optimizer_steps=optimizer_steps,
            attempt=self._plan.attempt,
            evidence=evidence,
        )
        self._pace[rung] = watch.seconds / watch.steps
        self._setting.send("window", vars(window))

    def _report_startups(self) -> None:
        for seconds in self.feed.startups[self._reported_startups :]:
            self._setting.send("startup", {"seconds": seconds, "attempt": self._plan.attempt})
        self._reported_startups = len(self.feed.startups)

    def _rule_out(self) -> None:
        """Rungs that make no sense for this loader; every rung's standing is announced once."""
        reasons = dict(self._plan.excluded)
        nowhere: dict[str, str] = {}
        if self._workers == 0:
            nowhere["worker"] = "num_workers=0: batches are made in the training process, nothing is handed over"
            nowhere["device+load"] = "num_workers=0: there are no workers beside the training process"
        if self._device.is_cpu:
            nowhere["host"] = "training runs on the CPU: there is no transfer"
        if is_iterable(self.loader):
            for name in ("raw", "warm"):
                reasons[name] = (
                    "not separable: an iterable dataset has no index to fetch again; "
                    "a map-style dataset would show loading and transforms apart"
                )
        for name in self._schedule.rungs:
            if name in nowhere:
                self._unavailable(name, nowhere[name], exists=False)
            elif name in reasons:
                self._unavailable(name, reasons[name])
            else:
                self._setting.send("rung", vars(Rung(name)))

    def _unavailable(self, rung: str, why: str, exists: bool = True) -> None:
        why = why if rung != "raw" or why.startswith("not separable") else f"not separable: {why}"
        self._schedule.withdraw(rung)
        self._setting.send("rung", vars(Rung(rung, False, why, exists)))

    def _too_large(self) -> str:
        return "the batch is too large to be cached within 1 GiB"

    def _warn_of_others(self) -> None:
        self._setting.send(
            "warning",
            {
                "code": "other-loaders",
                "message": "other loaders are iterated between the training steps; their time is part of every window",
                "help": "analyse a run without validation inside the epoch for cleaner shares",
            },
        )

    def _in_flight(self) -> int:
        return self._workers * int(self.loader.prefetch_factor or 1)


def _cache_of(rung: str) -> str:
    return "host" if rung == "host" else "device"


def _fits(delivery: Delivery, rung: str) -> bool:
    return delivery.rung == rung and delivery.stable


def _gpu(device: torch.device) -> Gpu | None:
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return Gpu.open(str(uuid)) if uuid is not None else None

"""Settle the running loop under a rung and time windows of it.

:mod:`.climb` and :mod:`pipediag.measure.schedule` decide which window comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..loop.training import Training
from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.schedule import Schedule
from ..measure.window import window_steps
from ..session import CACHED, Rung, cut_of, fed_apart
from ..usercode import tree
from .availability import NOTHING_TO_MOVE, TOO_LARGE
from .caches import BatchCache, Caches
from .caveats import OTHER_LOADERS, WRITES_IN_PLACE
from .collecting import collected
from .deadline import Deadline, OutOfTime
from .feed import Feed
from .lockstep import CACHES
from .loop_side import LoopSide, Turn
from .open_window import OpenWindow
from .plan import Plan
from .probes.batchfacts import describe
from .step_recorder import StepRecorder
from .switching import Switcher

#: Number of disturbed windows (other code ran in them) that are discarded before such windows are accepted.
_TOLERATED = 3
#: Maximum window length, as a multiple of the target, if steps are slower than expected.
_LONGEST = 3.0
#: Rounds of the workers in a window of a loop that waits for them. Workers stay in phase, so one round is one
#: observation, however many batches it holds.
_ROUNDS = 3
#: Maximum share of the budget for these rounds; a window with slower workers has fewer rounds.
_SHARE = 0.15
#: Settling steps under a rung before its window if the loop does not wait for workers.
_WARM = 2
#: Minimum seconds of settling before the first window of a rung.
_FIRST_SECONDS = 1.0
#: Maximum steps of that settling.
_FIRST_STEPS = 12
#: Maximum share of the budget for one wait until workers are idle or have filled their queues.
_QUIET_SHARE = 0.05
#: Seconds of steps that rank 0 of a job grants at a time within a window.
_AHEAD = 0.5
#: Number of cached batches that are described.
_DESCRIBED = 2


class Setting(Protocol):
    """The parts of the analysis that windows use."""

    plan: Plan
    training: Training
    clock: Clock

    def send(self, kind: str, data: dict[str, Any]) -> None: ...
    def draws_of_others(self, ordinal: int) -> int: ...


@dataclass
class Rounds:
    """The windows to measure.

    Attributes:
        schedule: selects the next rung and its round.
        target: target length of a window in seconds.
    """

    schedule: Schedule
    target: float


class Windows:
    """Measurement of one window after another on a loop.

    Args:
        ordinal: number of the loader among all that the script has iterated.
        writes_in_place: True if the loop writes into its batches.
        recorded: called with the rung of every recorded window.

    Attributes:
        rounds: the rounds that the current windows belong to.
        switcher: the rung that feeds the loop, and its pace under each.
        caches: caches of batches, or None before a rung has needed them.
    """

    def __init__(
        self,
        feed: Feed,
        loop_side: LoopSide,
        setting: Setting,
        device: Device,
        deadline: Deadline,
        rounds: Rounds,
        ordinal: int,
        writes_in_place: bool,
        recorded: Callable[[str], None],
    ) -> None:
        self.rounds = rounds
        self.caches: Caches | None = None
        self._feed = feed
        self._loop_side = loop_side
        self._epochs = loop_side.epochs
        self._setting = setting
        self._clock = setting.clock
        self._device = device
        self._gpu = device.gpu()
        self._deadline = deadline
        self._ordinal = ordinal
        self._workers: int = feed.loader.num_workers
        self._writes_in_place = writes_in_place
        self._recorded = recorded
        self._thrown_away = 0
        self._settled_for = 0.0  # seconds that settling took
        patience = _QUIET_SHARE * setting.plan.budget
        self.switcher = Switcher(feed, loop_side, setting.clock, patience, self.unavailable)
        for window in rounds.schedule.session.windows:
            self.switcher.learn(window)

    def measure(self, rung: str) -> Generator[Any, None, str]:
        """Measure one window of ``rung``; return why there is none, or ""."""
        if rung != "baseline" and not fed_apart(rung):
            yield from self.fill_caches()
        if rung in CACHED and not self.cache(rung):
            self.unavailable(rung, TOO_LARGE)
        if rung == "worker" and self.caches is not None and not self.caches.shared:
            self.unavailable(rung, TOO_LARGE)
        if not self.rounds.schedule.allows(rung):
            return ""
        if rung == "supply":
            return (yield from self._measure_supply())
        return (yield from self._measure_loop(rung))

    def _measure_loop(self, rung: str) -> Generator[Any, None, str]:
        window: OpenWindow | None = None
        settled = False
        try:
            while window is None or not window.full:
                if not settled:
                    trouble = yield from self.settle(rung)
                    if trouble:
                        return trouble
                    window = window or self._open(rung)
                    self._announce(window)
                    yield from self.drop_stock(rung)
                assert window is not None, "settling opens it"
                settled = yield from self.stretch(window)
                if window.full and self.switcher.keeps_up and window.used_up_stock:
                    self.switcher.used_up_stock(rung)  # start again without queued batches
                    window, settled = None, False
                elif not settled:
                    self.switcher.disturb()
                    if window.worth_keeping and 2 * window.steps >= window.wanted:
                        break  # settling again would take longer than the missing steps
        except (GeneratorExit, OutOfTime):  # the script or the time is over: keep the complete stretches
            if window is not None and window.worth_keeping:
                self.close(window)
            raise
        return self.close(window)

    def _announce(self, window: OpenWindow) -> None:
        """Tell the other ranks that their next steps belong to this window."""
        left = window.wanted - window.steps
        self._loop_side.lockstep.do(window.rung, window=left, round=self.rounds.schedule.round)
        # An epoch of unknown length may end at any step.
        known = self._epochs.length is not None
        ahead = max(2, self._workers, round(_AHEAD / self.switcher.pace[window.rung])) if known else 1
        self._loop_side.lockstep.reserve(left, ahead)

    def _open(self, rung: str) -> OpenWindow:
        quiet = rung in CACHED or self.switcher.keeps_up  # the length of such windows does not affect their pace
        target = self.rounds.target if quiet else max(self.rounds.target, self._settled_for)
        return self.opened(rung, self._wanted(rung, target), _LONGEST * target)

    def opened(self, rung: str, steps: int, longest: float) -> OpenWindow:
        """Open a window of ``steps`` steps that take at most ``longest`` seconds."""
        return OpenWindow(
            rung,
            steps,
            longest,
            self._loop_side.source(rung),
            self._clock,
            self._device,
            self._gpu,
            StepRecorder.within(self.rounds.schedule.session, rung, self._setting.plan.attempt),
            self._setting.training.steps,
        )

    def _wanted(self, rung: str, target: float) -> int:
        """Return the batches in a window of ``target`` seconds: whole rounds if the loop waits for workers."""
        pace = self.switcher.pace[rung]
        if rung in CACHED or self.switcher.keeps_up:
            return window_steps(pace, target, 0)
        workers = max(1, self._loop_side.source(rung).workers)
        rounds = min(float(_ROUNDS), _SHARE * self._setting.plan.budget / max(1e-6, workers * pace))
        return window_steps(pace, max(target, max(1.0, rounds) * workers * pace), workers)

    def close(self, window: OpenWindow) -> str:
        """Record the window, unless other code than the training loop ran in it; return why not, or ""."""
        training = self._setting.training
        evidence = window.evidence(waits=window.rung not in CACHED and not training.drawn_ahead(self._ordinal))
        steps = training.steps - window.optimizer_steps
        if window.interrupted or (steps == 0 and not self._setting.plan.inference):
            self._thrown_away += 1
            if self._thrown_away <= _TOLERATED:
                return "other code ran in every window"
            if window.interrupted:
                self._setting.send("warning", OTHER_LOADERS)
        if why := self._loop_side.lockstep.unserved(window.rung):
            self.unavailable(window.rung, why)
            return ""
        self._record(window, steps, evidence)
        return ""

    def stretch(self, window: OpenWindow) -> Generator[Any, None, bool]:
        """Time the loop until the window is full or the epoch ends; drop a stretch whose end is not seen.

        Returns whether the loop is still in the rung's steady state.
        """
        rung, trained = window.rung, self._setting.training.steps
        others = self._setting.draws_of_others(self._ordinal)
        window.start()
        began = self._clock.now()
        while not window.full and not self._epochs.last_chance:
            batch = yield from self.next_batch(rung, window)
            if batch is None:
                window.drop()
                return False
            window.gets()
            back = yield from self._loop_side.hand(batch)
            del batch  # releasing shared memory takes time, which must not count towards the next wait
            if not back:
                window.drop()
                return rung in CACHED
            window.count()
            self._end_in_time(window, began)
        window.interrupted |= self._setting.draws_of_others(self._ordinal) != others
        evaluates = self._epochs.complete and trained == self._setting.training.steps
        if evaluates and not self._setting.plan.inference:
            window.drop()  # a whole epoch without an optimizer step
        else:
            window.stop()
        return window.full or (yield from self._into_next_epoch(rung))

    def next_batch(self, rung: str, window: OpenWindow | None = None) -> Turn:
        """Return a batch as the loop gets it under ``rung``, or None if the workers sent one of another kind.

        It counts towards ``window``.
        """
        lockstep = self._loop_side.lockstep
        self._loop_side.agree()
        if delay := lockstep.activity.delay_of(lockstep.rank):
            self._device.delay(delay)
        if rung in CACHED:
            return self.cache(rung).next()
        delivery = yield from self._loop_side.take_fitting(rung)
        if delivery is None:
            return None
        if window is not None:
            window.takes(delivery)
        return self.own(delivery.batch, rung)

    def _into_next_epoch(self, rung: str) -> Generator[Any, None, bool]:
        """Let the loop end its epoch and begin another, and restore the fill level of the queues.

        Unlike in training, workers continue between these epochs: the batches they add are taken out of the queues.
        Return False if the workers were restarted instead: the loop has to settle again.
        """
        serial, ready = self._epochs.serial, self._loop_side.source(rung).ready
        while self._epochs.serial == serial and self._epochs.last_chance:
            if self._epochs.complete:
                if (yield from self._loop_side.end_epoch()) and rung not in CACHED:
                    return False
            elif (batch := (yield from self.next_batch(rung))) is not None:  # the loop is about to leave by itself
                yield from self._loop_side.hand(batch)
        if rung not in CACHED:
            for _ in range(self._loop_side.source(rung).ready - ready):
                yield from self._loop_side.take(rung)
        return True

    def _measure_supply(self) -> Generator[Any, None, str]:
        """Measure the loader alone: take and drop batches while the loop waits in one ``next()``."""
        trouble = yield from self.settle("supply")
        if trouble:
            return str(trouble)
        window = self._open("supply")
        window.start()
        began = self._clock.now()
        while not window.full:
            delivery = yield from self._loop_side.take("supply")
            if delivery is None:
                return "the data ended"
            window.takes(delivery)
            window.count()
            self._end_in_time(window, began)
            if self._deadline.passed:
                break
        window.stop()
        self._record(window, 0, window.evidence(waits=False))
        return ""

    def _end_in_time(self, window: OpenWindow, began: float) -> None:
        """End the window early, after a whole round of the workers, if it has run longer than allowed."""
        workers = max(1, self._loop_side.source(window.rung).workers)
        if self._clock.now() - began > window.longest and window.steps % workers == 0:
            window.shorten()

    # Before a window

    def settle(self, rung: str) -> Generator[Any, None, str]:
        """Bring loop and workers into the rung's steady state; return why that is impossible, or "".

        While settling, only the rung's own workers make batches. Batches queued or begun for another rung are discarded
        without a step; requests that the workers have not begun are served under the new rung. Workers faster than the
        loop first fill their queues, as in training: this takes no step, and one-time work such as pinning memory is
        then done. Otherwise the loop takes one round of the workers, so that it is at the same phase as one round
        later.
        """
        switcher = self.switcher
        if switcher.is_on(rung) and rung in switcher.pace:
            return ""
        yield from self.take_granted()
        switched = self._clock.now()
        self._loop_side.lockstep.do(rung)
        self._loop_side.agree()  # the other ranks switch at the same time
        trouble, first, made = yield from switcher.to(rung)
        if trouble:
            return trouble
        workers, at_pace = self._loop_side.source(rung).workers, rung in CACHED or switcher.keeps_up
        # A loop that never waits for its device runs ahead of it: without synchronizing, a step would seem to take no
        # time.
        self._device.synchronize()
        began, steps = self._clock.now(), 0
        wanted = _WARM if at_pace else self._settling_round(workers)
        warm = began
        short = self._epochs.horizon is not None or self._setting.plan.attempt > 1
        if rung not in switcher.pace and not short:  # one-time work makes the first steps slower
            warm += min(_FIRST_SECONDS, _QUIET_SHARE * self._setting.plan.budget)
        # A short script needs its steps for its windows.
        most = wanted if short else max(wanted, _FIRST_STEPS)
        while steps < wanted or (steps < most and self._clock.now() < warm):
            if first is not None:
                batch, first = self.own(first.batch, rung), None
            elif rung == "supply":
                batch = yield from self._loop_side.take(rung)
            else:
                batch = yield from self.next_batch(rung)
            if batch is None:
                continue
            steps += 1
            if rung != "supply":
                yield from self._loop_side.hand(batch)
            if switcher.look_at_queues(rung, made) and steps >= _WARM and self._clock.now() >= warm:
                break
        self._device.synchronize()
        switcher.pace.setdefault(rung, self._pace(self._clock.now() - began, steps, made, workers))
        self._settled_for = self._clock.now() - switched
        if rung in CACHED and self.cache(rung).writes_in_place:
            self._setting.send("warning", WRITES_IN_PLACE)
        return ""

    def drop_stock(self, rung: str) -> Turn:
        """In a job, drop the batches that queued up while this rank waited for another, if its workers are slow."""
        if not self._loop_side.lockstep.in_job or rung in CACHED or self.switcher.keeps_up:
            return
        for _ in range(self._loop_side.source(rung).ready):
            yield from self._loop_side.take(rung)

    def take_granted(self) -> Turn:
        """Take the steps that were granted to the other ranks for what they do now."""
        self._loop_side.lockstep.reserve(0, 1)  # a window that has ended early needs no more than these
        if self._loop_side.granted <= 0:
            return
        rung = self.switcher.for_steps()
        while self._loop_side.granted > 0:
            batch = yield from self.next_batch(rung)
            if batch is not None:
                yield from self._loop_side.hand(batch)

    @staticmethod
    def _pace(seconds: float, steps: int, made: float, workers: int) -> float:
        """Return the seconds per step while settling; making the first batch took ``made`` seconds before that."""
        if not workers:
            return (made + seconds) / max(1, steps)
        return max(seconds / max(1, steps), made / workers)

    def _settling_round(self, workers: int) -> int:
        """Return one batch per worker, or fewer if the loop leaves its epochs too early for that."""
        horizon = self._epochs.horizon
        whole = max(_WARM, workers)
        return whole if horizon is None else min(whole, max(1, (horizon - 2) // 3))

    def cache(self, rung: str) -> BatchCache:
        assert self.caches is not None
        return self.caches.host if rung == "host" else self.caches.device

    def own(self, batch: Any, rung: str) -> Any:
        """Return a copy of the workers' shared batch if the loop writes into it, otherwise the batch itself."""
        return tree.clone_pinned(batch) if rung == "worker" and self._writes_in_place else batch

    def fill_caches(self) -> Turn:
        """Collect and cache batches of the loop, once."""
        if self.caches is not None:
            return
        yield from self.take_granted()
        self._loop_side.lockstep.do("baseline", prepares=CACHES)
        self._loop_side.agree()  # the other ranks collect at the same time
        self.switcher.disturb()
        batches, plan = yield from collected(self._loop_side, self._clock, self._workers, self._device.is_cpu)
        self._feed.rung_switch.pool_bytes = plan.pool_bytes
        self._setting.send("caches", {**vars(plan), "held_bytes": plan.held_bytes})
        if self.rounds.schedule.session.batch is None and plan.device:
            self._setting.send("batch", asdict(describe(batches[:_DESCRIBED], self._device, self._clock)))
        self.caches = caches = Caches(batches, plan, self._device.torch_device, self._writes_in_place)
        if caches.device and not caches.moves:
            self.unavailable("device", NOTHING_TO_MOVE)
        if caches.shared:
            self._feed.share(caches.shared)

    # Reporting

    def _record(self, open_: OpenWindow, optimizer_steps: int, evidence: dict[str, float]) -> None:
        window = open_.closed(self.rounds.schedule.round, self._setting.plan.attempt, optimizer_steps, evidence)
        self.switcher.learn(window)
        self._setting.send("window", vars(window))
        for stretch in open_.stretches(window.round):
            self._setting.send("stretch", vars(stretch))
        self._recorded(window.rung)

    def unavailable(self, name: str, why: str) -> None:
        dissected = name == "raw" or cut_of(name) is not None
        prefix = "not separable: " if dissected and not why.startswith("not separable") else ""
        self.announce(Rung(name, False, prefix + why))

    def announce(self, rung: Rung) -> None:
        if not rung.available:
            self.rounds.schedule.withdraw(rung.name)
        self._setting.send("rung", vars(rung))

"""Climb the ladder on one loader, driven by the training loop's own ``next()`` calls.

:class:`Climb` wraps a generator: each ``yield`` hands the loop one batch, and the code after it runs when the loop asks
for the next. A window is thus a plain timed loop, although the user's code drives it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from ..analysis.knobs import makes_way
from ..analysis.remedy import remedy_of, under_way
from ..analysis.thresholds import GATE
from ..analysis.trials import following, in_any_case
from ..analysis.whatif import transfer_matters
from ..loop.epochs import Epochs
from ..measure.device import Device
from ..measure.schedule import Schedule
from ..measure.window import window_seconds
from ..session import CACHED, Rung, Session, cut_of
from . import windows
from .availability import availability
from .deadline import Deadline, OutOfTime
from .delivery import Delivery
from .feed import Feed, epoch_length
from .findings import Findings
from .loop_side import LoopSide, Turn
from .probes import modelside
from .probes.batchsteps import batch_steps
from .probes.sync_watch import watch_syncs
from .probes.tensor_uses import watch_uses
from .remedy_trial import Trial
from .settings_trial import SettingsTrial, proposal
from .windows import Rounds, Windows

#: Maximum time for comparing single batches, in seconds and as a share of the budget.
_COMPARE_SECONDS, _COMPARE_SHARE = 3.0, 0.05
#: Steps of the loop before anything is cached (at least one round of the workers), and their maximum time, in seconds
#: and as a share of the budget.
_OBSERVE_STEPS, _OBSERVE_SECONDS, _OBSERVE_SHARE = 4, 6.0, 0.1


class Setting(windows.Setting, Protocol):
    """The parts of the analysis that a climb uses."""

    schedule: Schedule

    @property
    def looks_inside(self) -> bool: ...
    def trial_schedule(self, rung: str, begins: bool) -> Schedule: ...
    def aside(self) -> AbstractContextManager[None]: ...
    def send_observed(self) -> None: ...
    def send_first_steps(self) -> None: ...
    def finish(self, reason: str) -> None: ...


class Climb:
    """The measurement on the training loader. ``handed`` is the number of batches already yielded in the epoch."""

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
        self._setting = setting
        self._plan = setting.plan
        self._clock = setting.clock
        self._session: Session = setting.schedule.session
        self._deadline = Deadline(setting.clock, setting.plan.budget)
        self._epochs = Epochs(epoch_length(feed.loader), handed, setting.plan.horizon)
        self._loop_side = LoopSide(feed, self._epochs, setting.training, ordinal, self._deadline.check)
        self._device = Device(device)
        ladder = Rounds(setting.schedule, window_seconds(setting.plan.budget, len(setting.schedule.rungs)))
        self._windows = Windows(
            feed,
            self._loop_side,
            setting,
            self._device,
            self._deadline,
            ladder,
            ordinal,
            writes_in_place,
            self._recorded,
        )
        self._findings = Findings(feed, setting.send, setting.plan.attempt, not setting.looks_inside)
        self._trial: Trial | None = None
        self._peak: int | None = None  # device memory in bytes that the loop takes at most without a remedy
        self._compares_batches = not self._session.batch_steps
        feed.endless = self._epochs.length is not None
        self._climbing = self._run()

    @property
    def horizon(self) -> int | None:
        """Number of batches after which the loop leaves its epochs early, or None; see :class:`Epochs`."""
        return self._epochs.seen_horizon

    @property
    def plain(self) -> Delivery | None:
        """The batch that the loop has just received, if it came as in training."""
        return self._loop_side.plain

    # Called by the loop's iterator

    def next(self) -> Any:
        """Return the loop's next turn: a batch, :data:`END`, or a :class:`Failure`."""
        if self._deadline.passed:
            return self._climbing.throw(OutOfTime())
        return next(self._climbing)

    def close(self) -> None:
        """Undo what an open window has started."""
        try:
            self._climbing.close()
        except ValueError:  # the climb itself is ending the analysis
            pass

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Note that the loop has called ``iter()``, perhaps on a loader rebuilt for the new epoch."""
        self.feed.loader = loader
        self._loop_side.begin_epoch(epoch_length(loader))
        self.feed.endless = self._epochs.length is not None

    # The climb itself

    def _run(self) -> Turn:
        ended, until = "settled", self._deadline.at
        if not self._plan.climbed:
            rungs = self._windows.rounds.schedule.rungs
            for rung in availability(self.feed.loader, self._device.is_cpu, self._plan.excluded, rungs):
                self._windows.announce(rung)
            if not self._session.windows and not self._session.observed:
                yield from self._observe()
            ended = yield from self._rounds(until - self._plan.knobs)
            yield from self._look_at_model()
        if self._plan.knobs:
            yield from self._try_settings(until)
        if self._plan.apply and self._session.windows:
            yield from self._try_remedies(ended)
        self._setting.finish(ended)

    def _observe(self) -> Turn:
        """Let the loop train as it does, for the first answer: how long it waits, and what its workers do."""
        self._setting.send("progress", {"rung": "baseline", "round": 0})
        until = self._clock.now() + min(_OBSERVE_SECONDS, _OBSERVE_SHARE * self._plan.budget)
        steps = max(_OBSERVE_STEPS, self.feed.workers)
        while steps > 0 and self._clock.now() < until:
            delivery = yield from self._loop_side.take_fitting("baseline")
            if delivery is not None:
                yield from self._loop_side.hand(delivery.batch)
                steps -= 1
        self._send_findings()

    def _send_findings(self) -> None:
        self._findings.send_new()
        self._setting.send_observed()

    def _rounds(self, makes_way_from: float = math.inf) -> Generator[Any, None, str]:
        """Measure window after window as the schedule asks; return why there are no more.

        From the time ``makes_way_from`` on, the ladder ends after a round if trying other settings is worth more.
        """
        self._setting.send_first_steps()
        schedule = self._windows.rounds.schedule
        round_ = schedule.round
        try:
            while (rung := schedule.next_rung()) is not None:
                if schedule.round != round_ and self._clock.now() > makes_way_from:
                    round_ = schedule.round
                    if makes_way(self._session):
                        return "budget"
                self._setting.send("progress", {"rung": rung, "round": schedule.round + 1})
                if cut_of(rung) is not None and rung not in self._session.rungs:
                    self._windows.announce(Rung(rung))
                self.rung = rung
                failed = yield from self._measure(rung)
                self.rung = "baseline"
                self._send_findings()
                if failed and schedule.allows(rung) and schedule.failed(rung):
                    self._windows.unavailable(rung, failed)
        except OutOfTime:
            self.rung = "baseline"
            return "budget"
        return "settled"

    def _look_at_model(self) -> Turn:
        """Analyze the step that is fed from the device; see :mod:`.modelside`."""
        session, plan, send = self._session, self._plan, self._setting.send
        if not modelside.wanted(plan, session) or modelside.why_not(plan, session, send):
            return
        self._deadline.lift()  # each part limits its own time
        self.rung = "device"
        yield from self._windows.fill_caches()
        yield from self._windows.settle("device")
        cache = self._windows.cache("device")
        self._windows.disturb()
        yield from modelside.look_at_model(self._loop_side, cache, self._device, self._clock, plan, session, send)
        self.rung = "baseline"

    def _try_settings(self, until: float) -> Turn:
        """Compare the loop under other loader settings with the loop as it is, in rounds of their own.

        ``until`` is when the budget ends. See :mod:`.settings_trial`.
        """
        session, ladder, before = self._session, self._windows.rounds, self._deadline.at
        seconds = min(self._plan.knobs, until - self._clock.now())
        if session.knobs is None:
            for kind, data in proposal(self.feed, session, seconds):
                self._setting.send(kind, data)
        trial = SettingsTrial(self.feed, session, seconds)
        if not trial.feeds:
            return
        self._setting.send("trying", {"budget": seconds})
        self._windows.rounds = Rounds(trial.schedule(), window_seconds(seconds, 1 + len(trial.feeds)))
        self._deadline.put(seconds)
        try:
            for rung, feed in trial.feeds.items():
                self.rung = rung
                self._loop_side.serve(rung, feed)
                yield from self._begin(rung)
                self._setting.send("knobs", asdict(trial.started(rung)))
            yield from self._rounds()
        except OutOfTime:
            pass  # keep what was measured until then
        finally:
            trial.close()
            for rung in trial.feeds:
                self._loop_side.dismiss(rung)
            self._windows.rounds, self._deadline.at = ladder, before
        self.rung = "baseline"  # a later failure of the script is not attributed to a setting

    def _try_remedies(self, ended: str) -> Turn:
        """Compare the loop under one remedy after the other with the loop as it is."""
        session, left = self._session, self._plan.apply
        first = under_way(session)
        self._prepare_remedy(ended, first)
        if session.remedy is None:
            self._device.forget_peak()
            yield from self._windows.settle("baseline")
            self._peak = self._device.peak_bytes()
        rung: str | None = first
        while rung is not None:
            seconds = left / (1 + len(in_any_case(session, rung, self._plan.approximate)))
            left -= seconds - (yield from self._try_remedy(rung, seconds))
            rung = following(session, rung, self._plan.approximate) if left > 0 else None
            if rung is not None:
                self._prepare_remedy(ended, rung)

    def _prepare_remedy(self, ended: str, rung: str) -> None:
        self._deadline.lift()  # a trial in the workers is not limited by the budget
        self._setting.send("applying", {"ended": ended, "rung": rung})

    def _try_remedy(self, rung: str, seconds: float) -> Generator[Any, None, float]:
        """Compare the loop under one remedy with the loop as it is, in rounds of their own, for at most ``seconds``.

        Return the seconds that are left.
        """
        session = self._session
        begins = remedy_of(session, rung) is None
        self._trial = trial = Trial(
            rung,
            self.feed.loader,
            self.feed.endless,
            self._device,
            self._setting.aside,
            self._clock,
            session,
            self._peak,
        )
        trial.send(self._setting.send)
        if trial.feed is None:
            return seconds
        self._loop_side.serve(rung, trial.feed)
        schedule = self._setting.trial_schedule(rung, begins)
        self._windows.rounds = Rounds(schedule, window_seconds(seconds, len(schedule.rungs)))
        self._windows.announce(Rung(rung))
        try:
            if rung not in self._windows.pace:
                self.rung = rung
                yield from self._begin(rung)
            self._setting.send("applying", {"budget": seconds})
            self._deadline.put(seconds)
            yield from self._rounds()
        finally:
            trial.feed.close()
            self._loop_side.dismiss(rung)  # it may hold memory of the device
        return self._deadline.left

    def _begin(self, rung: str) -> Turn:
        """Start the workers of a separate source; their start-up does not count as pace."""
        yield from self._windows.settle(rung)
        self._windows.pace.pop(rung, None)
        self._windows.disturb()

    def _measure(self, rung: str) -> Generator[Any, None, str]:
        """Measure a window of ``rung`` and its side measurements; return why there is none, or ""."""
        measured, session = self._windows, self._session
        trouble = yield from measured.measure(rung)
        if trouble or not measured.rounds.schedule.allows(rung):
            measured.disturb()
            return trouble
        if rung in CACHED:
            yield from self._watch_uses()
        if rung == "host" and self._plan.audit is not None and session.syncs is None:
            measured.disturb()
            found = yield from watch_syncs(self._loop_side, measured.cache("host"), self._device, measured.pace["host"])
            self._setting.send("syncs", asdict(found))
        if rung == "device" and self._compares_batches:
            self._compares_batches = False
            yield from self._compare_batches()
        return ""

    def _watch_uses(self) -> Turn:
        """Watch how the loop uses each tensor of a batch, once, if the copy to the device may matter."""
        session = self._session
        facts = session.batch
        if facts is None or facts.unwatched or facts.autocast is not None:
            return
        asked = self._plan.audit is not None and "host" in session.measured()
        if not asked and not transfer_matters(session, GATE / 2):
            return
        self._windows.disturb()
        yield from watch_uses(self._loop_side, self._windows.cache("host"), facts, self._device.torch_device)
        self._setting.send("batch", asdict(facts))

    def _compare_batches(self) -> Turn:
        """Time single steps on each cached batch, once, to find whether the model's step depends on the batch."""
        seconds = min(_COMPARE_SECONDS, _COMPARE_SHARE * self._plan.budget)
        cache, pace = self._windows.cache("device"), self._windows.pace["device"]
        self._windows.disturb()
        found = yield from batch_steps(self._loop_side, cache, self._device, self._clock, pace, seconds)
        for one in found:
            self._setting.send("batch-step", one)

    def _recorded(self, rung: str) -> None:
        self._send_findings()
        if self._trial is not None and rung == self._trial.rung:
            self._trial.measured()
            self._trial.send(self._setting.send)

"""Drive a training loop through its own ``next()`` calls.

:class:`Driven` wraps a generator: each ``yield`` hands the loop one batch, and the code after it runs when the loop
asks for the next. A window is thus a plain timed loop, although the user's code drives it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from ..loop.epochs import Epochs
from ..measure.device import Device
from ..measure.schedule import Schedule
from ..measure.window import window_seconds
from ..session import Session
from . import windows
from .availability import availability
from .deadline import Deadline, OutOfTime
from .delivery import Delivery
from .feed import Feed, epoch_length
from .findings import Findings
from .lockstep import Lockstep
from .loop_side import LoopSide, Turn
from .remedy_trial import Trial
from .windows import Rounds, Windows

_RANKS_WAIT = "the ranks of a job wait for each other in each step, so no loader runs without steps"


class Setting(windows.Setting, Protocol):
    """The parts of the analysis that a driven loop uses."""

    schedule: Schedule

    @property
    def looks_inside(self) -> bool: ...
    def trial_schedule(self, rung: str, begins: bool) -> Schedule: ...
    def aside(self) -> AbstractContextManager[None]: ...
    def send_observed(self) -> None: ...
    def send_first_steps(self) -> None: ...
    def finish(self, reason: str) -> None: ...
    def report(self) -> str:
        """Return what a rank of a job hands in at its end."""

    def take_reports(self, reports: dict[int, str]) -> None:
        """Take in what the other ranks have handed in."""


@dataclass(frozen=True)
class Loop:
    """A training loop as it is found.

    Attributes:
        feed: the batches of its loader.
        ordinal: number of that loader among all that the script has iterated.
        handed: number of batches already yielded in the epoch.
        writes_in_place: True if the loop writes into its batches.
    """

    feed: Feed
    ordinal: int
    setting: Setting
    device: torch.device
    handed: int
    writes_in_place: bool


class Driven(ABC):
    """The training loop of one process under measurement.

    Args:
        seconds: time limit; infinite if another process keeps it.
        lockstep: this process's part among the ranks of a job.

    Attributes:
        feed: the measured loader's batches.
        rung: the rung under way, to which an error of the script may be due.
    """

    def __init__(self, loop: Loop, seconds: float, lockstep: Lockstep) -> None:
        feed, setting = loop.feed, loop.setting
        self.feed = feed
        self.rung = "baseline"
        self._setting = setting
        self._plan = setting.plan
        self._clock = setting.clock
        self._session: Session = setting.schedule.session
        self._lockstep = lockstep
        self._deadline = Deadline(setting.clock, seconds)
        self._epochs = Epochs(epoch_length(feed.loader), loop.handed, setting.plan.horizon)
        self._loop_side = LoopSide(feed, self._epochs, setting.training, loop.ordinal, self._deadline.check, lockstep)
        self._device = Device(loop.device)
        self._windows = Windows(
            feed,
            self._loop_side,
            setting,
            self._device,
            self._deadline,
            Rounds(setting.schedule, window_seconds(setting.plan.budget, len(setting.schedule.rungs))),
            loop.ordinal,
            loop.writes_in_place,
            self._recorded,
        )
        self._findings = Findings(feed, setting.send, setting.plan.attempt, not setting.looks_inside)
        self._peak: int | None = None  # device memory in bytes that the loop takes at most without a remedy
        feed.endless = self._epochs.length is not None
        self._driving = self._run()

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
            return self._driving.throw(OutOfTime())
        return next(self._driving)

    def close(self) -> None:
        """Undo what an open window has started."""
        try:
            self._driving.close()
        except ValueError:  # the loop is ending the analysis itself
            pass

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Note that the loop has called ``iter()``, perhaps on a loader rebuilt for the new epoch."""
        self.feed.loader = loader
        self._loop_side.begin_epoch(epoch_length(loader))
        self.feed.endless = self._epochs.length is not None

    @abstractmethod
    def _run(self) -> Turn:
        """Hand the loop its batches until the analysis is over."""

    @abstractmethod
    def _recorded(self, rung: str) -> None:
        """Note that a window of ``rung`` was recorded."""

    def _announce_rungs(self) -> None:
        """Say which rungs can be measured, as far as it is known beforehand."""
        excluded = {**self._plan.excluded, **({"supply": _RANKS_WAIT} if self._lockstep.in_job else {})}
        rungs = self._windows.rounds.schedule.rungs
        for rung in availability(self.feed.loader, self._device.is_cpu, excluded, rungs):
            self._windows.announce(rung)

    def _send_findings(self) -> None:
        self._findings.send_new()
        self._setting.send_observed()

    def _trial_of(self, rung: str, seconds: float) -> Trial:
        """Prepare the remedy of a rung within its ``seconds``, and serve the rung if it can be tried."""
        trial = Trial(
            rung,
            self.feed.loader,
            self.feed.endless,
            self._device,
            self._setting.aside,
            self._clock,
            self._session,
            self._peak,
            seconds,
        )
        trial.send(self._setting.send)
        if trial.feed is not None:
            self._loop_side.serve(rung, trial.feed)
        return trial

"""Drive a training loop through its own ``next()`` calls.

:class:`Driven` wraps a generator: each ``yield`` hands the loop one batch, and the code after it runs when the loop
asks for the next. A window is thus a plain timed loop, although the user's code drives it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, replace
from typing import Any

from torch.utils.data import DataLoader

from ..session import CONTROLS, Rung
from .feed import epoch_length
from .loader_facts import availability
from .loop_side import Loop, LoopSide, Turn
from .ranks.lockstep import Lockstep
from .remedy_trial import Trial
from .steering import Epochs, OutOfTime, Steering
from .windows import Windows

_RANKS_WAIT = "the ranks of a job wait for each other in each step, so none is measured apart from the others"


class Driven(ABC):
    """The training loop of one process under measurement.

    Args:
        seconds: time limit; infinite if another process keeps it.
        lockstep: this process's part among the ranks of a job.
    """

    def __init__(self, loop: Loop, seconds: float, lockstep: Lockstep) -> None:
        setting = loop.setting
        self.feed = loop.feed  # the measured loader's batches
        self._setting = setting
        self._plan = setting.plan
        self._clock = setting.clock
        self._session = setting.session
        self._lockstep = lockstep
        length, joined = epoch_length(loop.feed.loader), not lockstep.in_job  # ranks count epochs and steps together
        epochs = Epochs(length, loop.handed, setting.plan.horizon, joined)
        budget, short = setting.plan.budget, setting.plan.attempt > 1
        #: What feeds the loop, and how far it is.
        self.steering = Steering(setting.clock, budget, epochs, setting.schedule, seconds, short)
        self.loop_side = LoopSide(loop, self.steering, lockstep)  # the loop, which is fed
        self._device = self.loop_side.device
        self._windows = Windows(self.loop_side, self._recorded)
        self._settler = self._windows.settler
        self._looks_inside = setting.looks_inside
        self._trial: Trial | None = None  # of the remedy tried last
        self._peak: int | None = None  # device memory in bytes that the loop takes at most without a remedy
        self.feed.endless = length is not None
        self._driving = self._run()

    # Called by the loop's iterator

    def next(self) -> Any:
        """Return the loop's next turn: a batch, :data:`END`, or a :class:`Failure`."""
        if self.steering.is_late:
            return self._driving.throw(OutOfTime())
        return next(self._driving)

    def abandon(self) -> None:
        """End everything but the loader's feed, after an error."""
        self.close()
        self._end_trial()

    def close(self) -> None:
        """Undo what an open window has started."""
        try:
            self._driving.close()
        except ValueError:  # the loop is ending the analysis itself
            pass

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Note that the loop has called ``iter()``, perhaps on a loader rebuilt for the new epoch."""
        self.feed.loader = loader
        epochs, facts = self.steering.epochs, self._session.loader
        epochs.begin(epoch_length(loader))
        self.feed.endless = epochs.length is not None
        if facts is not None and epochs.length is not None and epochs.horizon != facts.left_after:
            self._setting.send("loader", asdict(replace(facts, left_after=epochs.horizon)))

    @abstractmethod
    def _run(self) -> Turn[None]:
        """Hand the loop its batches until the analysis is over."""

    def _recorded(self, rung: str) -> None:
        self._send_findings()
        if self._trial is not None and rung == self._trial.rung:
            self._trial.measured()
            self._trial.send(self._setting.send)

    def _announce_rungs(self) -> None:
        """Report which rungs can be measured, as far as it is known beforehand."""
        alone = dict.fromkeys(CONTROLS, _RANKS_WAIT) if self._lockstep.in_job else {}
        excluded = {**self._plan.excluded, **alone}
        for rung in availability(self.feed.loader, self._device.is_cpu, excluded, self.steering.schedule.rungs):
            self.loop_side.announce(rung)

    def _send_findings(self) -> None:
        self.feed.findings.send_new(self._setting.send, self._plan.attempt, self._looks_inside)
        self._setting.send_observed()

    def _prepare_trial(self, rung: str, seconds: float) -> bool:
        """Prepare the remedy of a rung within its ``seconds``, and serve the rung; return whether it can be tried."""
        self._trial = Trial(rung, self.loop_side, self._peak, seconds)
        self._trial.send(self._setting.send)
        if self._trial.feed is None:
            return False
        self.loop_side.serve(rung, self._trial.feed)
        self.loop_side.announce(Rung(rung))
        return True

    def _end_trial(self) -> None:
        """End the workers of the remedy tried last, and release its memory on the device."""
        if self._trial is not None and self._trial.feed is not None:
            self._trial.feed.close()
            self.loop_side.dismiss(self._trial.rung)
            self.steering.disturb()
        self._trial = None

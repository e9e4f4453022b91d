"""Steer the measurement of a loop: which rung feeds it, how fast it is, when it has settled, how long a window is.

:class:`Steering` does no I/O. It is told of windows, steps and queues, and asked what comes next; of time it knows what
its clock shows. :mod:`.settling` and :mod:`.windows` do what it says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..clock import Clock
from ..measure.schedule import Schedule
from ..measure.window import MIN_STEPS, window_seconds, window_steps
from ..session import CACHED, LONGER, REMEDIES, Window

#: Maximum share of the budget for one wait until workers are idle or have filled their queues.
_QUIET_SHARE = 0.05
#: Workers fill their queues if they need less than this share of the time in which the loop takes a batch.
_FASTER = 0.9
#: Rungs under which the queues are not filled first: queued batches would hide the loader's own pace, or the queues
#: cannot be seen.
_UNFILLED = ("supply", *REMEDIES)
#: Settling steps under a rung before its window if the loop does not wait for workers.
_WARM = 2
#: Minimum seconds of settling before the first window of a rung, and maximum steps of that settling.
_FIRST_SECONDS, _FIRST_STEPS = 1.0, 12
#: Rounds of the workers in a window of a loop that waits for them. Workers stay in phase, so one round is one
#: observation, however many batches it holds.
_ROUNDS = 3
#: Maximum time for these rounds: seconds, or a share of the budget if that is longer, but no more than the last share.
#: Windows of slower workers have fewer rounds: one is enough to know the workers' time for a batch.
_ROUNDS_SECONDS, _ROUNDS_SHARE, _SHARE = 3.0, 0.025, 0.15
#: Share of the budget for the long window of the loop as it is, and seconds of budget below which it gets a smaller
#: share: the ladder needs most of a short budget.
_LONGER_SHARE, _SHORT_BUDGET = 1 / 12, 120.0
#: Maximum window length, as a multiple of the target, if steps are slower than expected.
_LONGEST = 3.0


class OutOfTime(Exception):
    """Error: the time for a measurement is over."""


class Queues(Protocol):
    """What can be seen of the workers that feed the loop; see :class:`.feed.Source`."""

    @property
    def workers(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    @property
    def ready(self) -> int: ...


class Steering:
    """The state of a measured loop.

    Args:
        budget: seconds of the whole measurement, of which waits and windows get shares.
        seconds: time limit from now on; infinite if another process keeps it.
        short: True if the script is too short for long settling, which takes steps from its windows.

    Attributes:
        rung: the rung under way, to which an error of the script may be due.
        fed_by: rung that feeds the loop, or None if it was fed by other means since.
        keeps_up: True if a round of the workers is queued, although the loop takes batches.
        pace: latest seconds per step under each rung.
        schedule: selects the next rung and its round.
        target: target length of a window in seconds.
        settled_in: seconds that settling took the last time.
        patience: maximum seconds of one wait for workers.
        until: the time limit by the clock; infinite while what is done now limits its own time.
    """

    def __init__(
        self,
        clock: Clock,
        budget: float,
        epochs: Epochs,
        schedule: Schedule,
        seconds: float = math.inf,
        short: bool = False,
    ) -> None:
        self.rung = "baseline"
        self.fed_by: str | None = None
        self.keeps_up = False
        self.pace: dict[str, float] = {}
        self.settled_in = 0.0
        self.patience = _QUIET_SHARE * budget
        self.epochs = epochs
        self._clock = clock
        self._budget = budget
        self._short = short
        self._filled = False  # the workers filled their queues before the loop took a batch
        self._made: dict[str, float] = {}  # a worker's seconds for a batch in the latest window of each rung
        self._slower: set[str] = set()  # rungs under which the workers are known to be slower than the loop
        self._switched = self._began = self._warm = 0.0  # when the loop switched and began to settle, and is warm
        self._wanted = self._most = 0  # settling steps
        self._first = 0.0  # a worker's seconds for a batch, as far as they are known since the switch
        self.limit(seconds)
        self.begin_rounds(schedule, budget)
        for window in schedule.session.windows:
            self.learn(window)

    @contextmanager
    def under(self, rung: str) -> Iterator[None]:
        """Attribute errors of the script to ``rung`` within the context; also after it if the script ends there."""
        self.rung = rung
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self.rung = "baseline"
            raise
        self.rung = "baseline"

    # Time

    @property
    def is_late(self) -> bool:
        return self._clock.now() > self.until

    def check_time(self) -> None:
        if self.is_late:
            raise OutOfTime

    def limit(self, seconds: float) -> None:
        """Set the time limit to ``seconds`` from now."""
        self.until = self._clock.now() + seconds

    # Switching

    def is_on(self, rung: str) -> bool:
        """Return whether the rung feeds the loop, and the epoch goes on."""
        return self.fed_by == rung and not self.epochs.complete

    def switch(self, rung: str) -> str | None:
        """Let ``rung`` feed the loop from now on; return what fed it before."""
        before, self.fed_by, self.keeps_up, self._filled = self.fed_by, rung, False, False
        return before

    def disturb(self) -> None:
        """Mark the loop as unsettled: it was fed by other means."""
        self.fed_by = None

    def forget(self, rung: str) -> None:
        """Forget a pace that included the workers' startup. The loop has to settle again."""
        self.pace.pop(rung, None)
        self.disturb()

    def used_up_stock(self, rung: str) -> None:
        """Note that full queues hid how slow the rung's workers are. The loop has to settle again."""
        self._slower.add(rung)
        self.disturb()

    def learn(self, window: Window) -> None:
        """Remember the pace of a recorded window, of this pass or an earlier one."""
        self.pace[window.rung] = window.seconds / window.steps
        self._made[window.rung] = window.evidence.get("worker_ms", 0.0) / 1000

    # The workers' queues

    def makes(self, rung: str, first: float = 0.0) -> float:
        """Return a worker's seconds for a batch: the first one to arrive after a switch is the fastest of a round."""
        return max(first, self._made.get(rung, 0.0))

    def fills(self, rung: str, made: float, queues: Queues) -> bool:
        """Return whether workers that take ``made`` seconds per batch fill their queues before the loop goes on."""
        return rung not in (*_UNFILLED, *self._slower) and self._outpace_loop(made, queues)

    def fill(self, queues: Queues) -> None:
        """Note how full the queues are that were to be filled."""
        self._filled = self.keeps_up = queues.ready >= queues.backlog - 1

    def _outpace_loop(self, made: float, queues: Queues) -> bool:
        """Return whether workers that take ``made`` seconds per batch are known to be faster than the loop."""
        own = self._own_paces
        return queues.workers > 0 and bool(own) and made < _FASTER * queues.workers * max(own)

    @property
    def _own_paces(self) -> list[float]:
        """Seconds per step under the rungs where the loop never waited for work to be done."""
        return [self.pace[rung] for rung in ("worker", *CACHED) if rung in self.pace]

    def _look_at(self, queues: Queues) -> None:
        """Find out again whether the workers keep up with the loop.

        They do if they filled their queues before the loop began, or if more than a round of them is queued: a single
        round arrives all at once.
        """
        rung = self.fed_by
        slower = rung in self._slower or (bool(self._own_paces) and not self._outpace_loop(self._first, queues))
        full = 0 < max(queues.workers + 1, queues.backlog - 1) <= queues.ready
        self.keeps_up = self._filled or (full and not slower)

    # Settling

    def has_settled(self, rung: str) -> bool:
        """Return whether the loop is in the rung's steady state."""
        return self.is_on(rung) and rung in self.pace

    def begin_settling(self, rung: str, switched: float, made: float, workers: int) -> None:
        """Note that the loop takes its first batch of ``rung`` now, having switched to it at ``switched``."""
        now, horizon = self._clock.now(), self.epochs.horizon
        self._switched, self._began, self._first = switched, now, made
        self._wanted = _WARM
        if rung not in CACHED and not self.keeps_up:  # one batch per worker, or fewer if the loop leaves early
            whole = max(_WARM, workers)
            self._wanted = whole if horizon is None else min(whole, max(1, (horizon - 2) // 3))
        short = self._short or horizon is not None  # it needs its steps for its windows
        first = rung not in self.pace and not short  # one-time work makes the first steps slower
        self._warm = now + (min(_FIRST_SECONDS, self.patience) if first else 0.0)
        self._most = self._wanted if short else max(self._wanted, _FIRST_STEPS)

    def settles(self, steps: int, queues: Queues) -> bool:
        """Return whether the loop goes on settling after ``steps`` steps."""
        self._look_at(queues)
        warm = self._clock.now() >= self._warm
        if self.keeps_up and warm and steps >= _WARM:
            return False
        return steps < self._wanted or (steps < self._most and not warm)

    def end_settling(self, rung: str, steps: int, workers: int) -> None:
        """Note that the loop is in the rung's steady state, and estimate its pace if it is unknown."""
        now = self._clock.now()
        self.settled_in, seconds, steps = now - self._switched, now - self._began, max(1, steps)
        self.pace.setdefault(
            rung, max(seconds / steps, self._first / workers) if workers else (self._first + seconds) / steps
        )

    # Windows

    def begin_rounds(self, schedule: Schedule, seconds: float) -> None:
        """Let the next windows follow ``schedule``, which has ``seconds`` for all its rounds."""
        self.schedule = schedule
        self.target = window_seconds(seconds, len(schedule.rungs))

    def window(self, rung: str, workers: int) -> tuple[int, float]:
        """Return the steps of a window, and its maximum seconds: whole rounds if the loop waits for workers."""
        pace = self.pace[rung]
        if rung == LONGER:
            seconds = _LONGER_SHARE * self._budget * min(1.0, self._budget / _SHORT_BUDGET)
            # A rare long step may lie among those that showed the pace.
            return max(MIN_STEPS, round(seconds / min(pace, self.pace.get("baseline", pace)))), seconds
        if rung in CACHED or self.keeps_up:  # the length of such windows does not affect their pace
            return window_steps(pace, self.target, 0), _LONGEST * self.target
        seconds = min(_SHARE * self._budget, max(_ROUNDS_SECONDS, _ROUNDS_SHARE * self._budget))
        target = max(self.target, min(self.settled_in, seconds))
        round_ = max(1, workers) * pace
        rounds = max(1.0, min(float(_ROUNDS), seconds / max(1e-6, round_)))
        return window_steps(pace, max(target, rounds * round_), max(1, workers)), _LONGEST * target


class Epochs:
    """A counter of the batches handed to the loop in each epoch.

    ``length`` is ``len(loader)``, or None if unknown. ``horizon`` is the number of batches after which the loop has
    left an epoch early, or None: the end of its last step cannot be seen.

    A loop that makes a new iterator for every batch would have epochs of one step whose end is never seen. With
    ``joined``, its iterators are one epoch.
    """

    def __init__(self, length: int | None, handed: int = 0, horizon: int | None = None, joined: bool = False) -> None:
        self.length = length
        self.handed = handed
        self.serial = 0
        self.horizon = horizon
        self._joined = joined
        self._ended = False

    def begin(self, length: int | None) -> None:
        """Begin an epoch after ``iter()``; where the loop left the last one sets the horizon."""
        self.horizon = self.seen_horizon
        self.length = length
        self.serial += not (self._joined and self.horizon == 1)
        self.handed = 0
        self._ended = False

    def end(self) -> None:
        """Note that the loop reached the end of its epoch.

        The next epoch of a loader without length may be shorter, so the horizon is set to 4/5 of this one: windows
        close before the end.
        """
        self._ended = True
        if self.length is None:
            self.horizon = max(2, 4 * self.handed // 5)

    def hand(self) -> None:
        """Count one more batch. Remove the horizon if the loop goes beyond it."""
        self.handed += 1
        if self.horizon is not None and self.handed > self.horizon:
            self.horizon = None

    @property
    def complete(self) -> bool:
        """True if the epoch has had all its batches and must be ended."""
        return self.length is not None and self.handed >= self.length

    @property
    def over(self) -> bool:
        """True from the end of an epoch until the next one begins."""
        return self._ended or self.complete

    @property
    def last_chance(self) -> bool:
        """True if the loop's current ``next()`` call is the last one of this epoch that will be seen."""
        at_horizon = self.horizon is not None and max(1, self.horizon - 1) <= self.handed <= self.horizon
        return self.complete or at_horizon

    @property
    def seen_horizon(self) -> int | None:
        """The horizon if the loop left now."""
        if self.handed == 0 or self.complete or self._ended:
            return self.horizon
        return max(self.horizon or 0, self.handed)

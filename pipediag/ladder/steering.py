"""Keep the time limit of a measurement."""

from __future__ import annotations

import math

from ..measure.clock import Clock


class OutOfTime(Exception):
    """Error: the time for a measurement is over."""


class Deadline:
    """A time limit that can be moved; at first it is ``seconds`` from now.

    Attributes:
        at: in the clock's seconds; infinite while the current measurement limits its own time.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.put(seconds)

    @property
    def passed(self) -> bool:
        return self._clock.now() > self.at

    def check(self) -> None:
        """Raise OutOfTime if the deadline has passed."""
        if self.passed:
            raise OutOfTime

    def put(self, seconds: float) -> None:
        """Set the deadline to ``seconds`` from now."""
        self.at = self._clock.now() + seconds

    def lift(self) -> None:
        """Remove the deadline for now."""
        self.at = math.inf


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

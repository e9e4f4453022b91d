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

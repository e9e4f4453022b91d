"""Keep the time limit of a measurement."""

from __future__ import annotations

import math

from ..measure.clock import Clock


class OutOfTime(Exception):
    """The error raised if the budget of a measurement is spent."""


class Deadline:
    """A time limit that can be moved.

    Attributes:
        at: in the clock's seconds; infinite while the current measurement limits its own time.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.at = clock.now() + seconds

    @property
    def passed(self) -> bool:
        return self._clock.now() > self.at

    def check(self) -> None:
        """Check the time.

        Raises:
            OutOfTime: the deadline has passed.
        """
        if self.passed:
            raise OutOfTime

    def put(self, seconds: float) -> None:
        """Set the deadline to ``seconds`` from now."""
        self.at = self._clock.now() + seconds

    def lift(self) -> None:
        """Remove the deadline for now."""
        self.at = math.inf

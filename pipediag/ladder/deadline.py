"""When what is being measured has to be done."""

from __future__ import annotations

import math

from ..measure.clock import Clock


class OutOfTime(Exception):
    """The budget of what is being measured is spent."""


class Deadline:
    """A moment on a clock, which may be put off.

    Attributes:
        at: in the clock's seconds; infinite where whatever is at work keeps to a time of its own.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.at = clock.now() + seconds

    @property
    def passed(self) -> bool:
        return self._clock.now() > self.at

    @property
    def left(self) -> float:
        """Seconds."""
        return self.at - self._clock.now()

    def check(self) -> None:
        """Raises:
        OutOfTime: it has passed.
        """
        if self.passed:
            raise OutOfTime

    def put(self, seconds: float) -> None:
        """Have it so many seconds from now."""
        self.at = self._clock.now() + seconds

    def lift(self) -> None:
        """Have none, for the time being."""
        self.at = math.inf

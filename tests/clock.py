"""A clock that only tests move."""

from __future__ import annotations


class Clock:
    """Seconds pass by sleeping, or by setting ``seconds``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

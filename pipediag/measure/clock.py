"""Time is injected, so that everything that reads a clock can be tested exactly."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary, fixed moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so many seconds go by."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

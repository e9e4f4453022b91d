"""Define the clock that timing code gets, so that tests can replace it."""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: How often one looks whether the time passes, and the seconds between.
_LOOKS, _PAUSE = 5, 1e-3


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since an arbitrary, fixed moment; never decreases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The system's clock, also if the script replaces functions of ``time``, as tools that freeze it do."""

    _now, _sleep = staticmethod(time.perf_counter), staticmethod(time.sleep)

    def now(self) -> float:
        return self._now()

    def sleep(self, seconds: float) -> None:
        self._sleep(seconds)


def stands_still() -> bool:
    """Return whether the time that the script sees does not pass."""
    event, began = threading.Event(), time.perf_counter()
    for _ in range(_LOOKS):
        event.wait(_PAUSE)
        if time.perf_counter() != began:
            return False
    return True

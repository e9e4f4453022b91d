"""Time a stretch of the training loop, and choose its length."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..clock import Clock

#: Minimum and maximum length of a window, in batches.
MIN_STEPS, MAX_STEPS = 4, 1000
#: Seconds above which a step is slow, and the minimum batches of a window with slow steps.
SLOW, FEW_STEPS = 1.0, 2


class Stopwatch:
    """Wall time of one or more stretches, with the device synchronized at both ends of each and never in between."""

    def __init__(self, clock: Clock, synchronize: Callable[[], None]) -> None:
        self._clock = clock
        self._synchronize = synchronize
        self._started: float | None = None
        self._open_steps = 0
        self.seconds = 0.0
        self.steps = 0

    def start(self) -> None:
        self._synchronize()
        self._open_steps = 0
        self._started = self._clock.now()

    @property
    def running(self) -> bool:
        return self._started is not None

    def count(self) -> None:
        self._open_steps += 1

    def leave_out(self, seconds: float) -> None:
        """Cut seconds out of the open stretch."""
        assert self._started is not None, "leave_out() without start()"
        self._started += seconds

    @property
    def elapsed(self) -> float:
        """Seconds of the open stretch so far."""
        return self._clock.now() - self._started if self._started is not None else 0.0

    @property
    def total_steps(self) -> int:
        """Steps of the finished stretches and of the open one."""
        return self.steps + self._open_steps

    def stop(self) -> None:
        """Finish the stretch and keep it."""
        assert self._started is not None, "stop() without start()"
        self._synchronize()
        if self._open_steps:
            self.seconds += self._clock.now() - self._started
            self.steps += self._open_steps
        self.drop()

    def drop(self) -> None:
        """Discard the open stretch: its end was not seen."""
        self._started = None
        self._open_steps = 0


def window_seconds(budget: float, rungs: int) -> float:
    """Return a window's share of the budget if every rung gets five rounds and settling takes half the time."""
    return min(1.0, max(0.2, budget / (10 * max(1, rungs))))


def window_steps(seconds_per_step: float, target_seconds: float, num_workers: int) -> int:
    """Return the number of batches in a window: about ``target_seconds`` long, and whole rounds of the workers.

    Workers that started together deliver in bursts of ``num_workers`` batches; a window that ends inside a burst would
    see too many or too few of them.
    """
    round_ = max(1, num_workers)
    wanted = target_seconds / max(seconds_per_step, 1e-6)
    steps = min(max(wanted, FEW_STEPS if seconds_per_step > SLOW else MIN_STEPS), MAX_STEPS)
    return round_ * max(1, math.ceil(steps / round_))


class EventMaker(Protocol):
    """A maker of events that are recorded on the device's current stream; see :meth:`.device.Device.event`."""

    def event(self) -> Any | None: ...


class StepClock:
    """A timer of steps and their waits.

    Call :meth:`asks` and :meth:`gets` in turn. A step lasts from one request to the next, including the wait for its
    batch. Steps are held back until the device has reached their events; :meth:`take` returns those that are finished.
    """

    def __init__(self, clock: Clock, device: EventMaker | None = None) -> None:
        self._clock = clock
        self._device = device
        self._asked: tuple[float, Any] | None = None
        self._got: tuple[float, Any] | None = None
        self._open: deque[tuple[tuple[float, Any], tuple[float, Any], tuple[float, Any]]] = deque()

    def asks(self) -> float:
        """Note that the loop asks for a batch, which ends the current step; return the host's time."""
        now = self._now()
        if self._asked is not None and self._got is not None:
            self._open.append((self._asked, self._got, now))
        self._asked, self._got = now, None
        return now[0]

    def gets(self) -> float:
        """Note that the loop gets its batch; return the host's time."""
        self._got = self._now()
        return self._got[0]

    def breaks(self) -> None:
        """Discard the current step: the epoch has ended, or batches come from elsewhere."""
        self._asked = self._got = None

    def take(self) -> list[tuple[float, float]]:
        """Return seconds and waited seconds of each step that the device has finished, in order, once."""
        found = []
        while self._open and ((event := self._open[0][2][1]) is None or event.query()):
            asked, got, ended = self._open.popleft()
            found.append((_between(asked, ended), _between(asked, got)))
        return found

    def _now(self) -> tuple[float, Any]:
        event = self._device.event() if self._device is not None else None
        return self._clock.now(), event


def _between(one: tuple[float, Any], other: tuple[float, Any]) -> float:
    """Return the seconds between two moments, by the device's clock if it has recorded both."""
    if one[1] is not None and other[1] is not None:
        return max(0.0, float(one[1].elapsed_time(other[1])) / 1000.0)
    return other[0] - one[0]

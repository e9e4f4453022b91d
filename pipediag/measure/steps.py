"""Time single steps of the loop and their waits for a batch, without synchronizing the device.

A loop may run ahead of its device: it then waits in ``next()`` while the device still computes, which costs nothing. On
a device with events, one event is therefore recorded when the loop asks for a batch and one when it gets it. The device
reaches the first when it has finished all queued work, and the second when the loop has its batch: the time between
them on the device's clock is how long it was idle for lack of data. Without events, the host's clock suffices.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from .clock import Clock


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
        while self._open and _passed(self._open[0][2][1]):
            asked, got, ended = self._open.popleft()
            found.append((_between(asked, ended), _between(asked, got)))
        return found

    def _now(self) -> tuple[float, Any]:
        event = self._device.event() if self._device is not None else None
        return self._clock.now(), event


def _passed(event: Any) -> bool:
    return event is None or bool(event.query())


def _between(one: tuple[float, Any], other: tuple[float, Any]) -> float:
    """Return the seconds between two moments, by the device's clock if it has recorded both."""
    if one[1] is not None and other[1] is not None:
        return max(0.0, float(one[1].elapsed_time(other[1])) / 1000.0)
    return other[0] - one[0]

"""Timing single steps of the loop, and how long each waits for its batch, without synchronising the device.

A loop may run ahead of its device: it then waits in ``next()`` while the device still computes, which costs nothing. So
on a device with events, one is recorded when the loop asks for a batch and one when it gets it. The device reaches the
first when it has done all that was queued, and the second when the loop has its batch: what lies between them on the
device's own clock is how long it had nothing to do for want of data. Elsewhere the host's clock is all there is, and is
enough.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from .clock import Clock


class EventMaker(Protocol):
    """Makes events that are recorded on the device's current stream; see :meth:`.device.Device.event`."""

    def event(self) -> Any | None: ...


class StepClock:
    """Notes when the loop asks for a batch and when it gets it.

    Call :meth:`asks` and :meth:`gets` in turn. A step lasts from one question to the next, the wait for its batch
    included. Steps wait here until their events have come to pass; :meth:`take` hands out those that have.
    """

    def __init__(self, clock: Clock, device: EventMaker | None = None) -> None:
        self._clock = clock
        self._device = device
        self._asked: tuple[float, Any] | None = None
        self._got: tuple[float, Any] | None = None
        self._open: deque[tuple[tuple[float, Any], tuple[float, Any], tuple[float, Any]]] = deque()

    def asks(self) -> None:
        """The loop asks for a batch, and so ends the step that was under way."""
        now = self._now()
        if self._asked is not None and self._got is not None:
            self._open.append((self._asked, self._got, now))
        self._asked, self._got = now, None

    def gets(self) -> None:
        """The loop gets what it asked for."""
        self._got = self._now()

    def breaks(self) -> None:
        """What follows is no step of the loop's: the epoch has ended, or its batches come from elsewhere."""
        self._asked = self._got = None

    def take(self) -> list[tuple[float, float]]:
        """Seconds and seconds waited of each step that is over on the device too, in order; each is given once."""
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
    """Seconds, by the device's clock where it has noted both moments."""
    if one[1] is not None and other[1] is not None:
        return max(0.0, float(one[1].elapsed_time(other[1])) / 1000.0)
    return other[0] - one[0]

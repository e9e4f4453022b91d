"""Notice that this process was stopped while it waited for a batch, as by SIGSTOP or a suspended machine.

A wait that is limited to a fraction of a second, and takes far longer with hardly any CPU time, was not the data's. A
worker that makes a batch for long lets the waits before it end in time. So no thread and no signal handler is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakMethod

from ..clock import Clock, time

#: Seconds that a wait lasts at most, and seconds longer from which on it was stopped.
_EVERY, _LONGER = 0.25, 0.5
#: Share of such a time that may be spent on a CPU: another thread may hold the interpreter's lock.
_BUSY = 0.2
#: Share of a stop by which its ends are uncertain.
_ABOUT = 0.2
#: torch's method that waits for a batch; it takes the seconds it may wait, and returns whether there is one.
_METHOD = "_try_get_data"


class Stop(NamedTuple):
    """A time, by the clock, at which this process stood still."""

    since: float
    until: float


class Stops:
    """The stops of this process that are known."""

    def __init__(self, clock: Clock) -> None:
        self.seen = 0.0  # seconds of those that were noticed while it waited for a batch
        self._clock = clock
        self._known: list[Stop] = []

    def add(self, stop: Stop) -> None:
        self._known.append(stop)

    def within(self, since: float, until: float) -> float:
        """Return the seconds of the stops that lie within a stretch; what ends in a stop was not stopped by it."""
        lengths = [(one, one.until - one.since) for one in self._known]
        return sum(long for one, long in lengths if max(since - one.since, one.until - until) < _ABOUT * long)

    def notice(self, iterator: Any) -> None:
        """Notice stops while ``iterator`` waits for its workers, if it does so as torch's do."""
        wait = getattr(iterator, _METHOD, None)
        if not (inspect.ismethod(wait) and wait.__defaults__):
            return
        method = WeakMethod(wait)  # a reference from itself would keep the iterator, and its workers

        def in_parts(timeout: float = wait.__defaults__[0]) -> tuple[bool, Any]:
            alive = method()
            assert alive is not None, "the iterator that waits is gone"
            return self._in_parts(alive, timeout)

        setattr(iterator, _METHOD, in_parts)

    def _in_parts(self, wait: Callable[[float], tuple[bool, Any]], seconds: float) -> tuple[bool, Any]:
        """Wait for ``seconds`` at most, as ``wait`` does, a part at a time; note a part that took far longer."""
        ends = self._clock.now() + seconds
        while True:
            since, cpu = self._clock.now(), time.process_time()
            part = max(0.0, min(_EVERY, ends - since))
            found = wait(part)
            until = self._clock.now()
            if found[0]:  # a large batch may take that long to receive
                return found
            longer = until - since - part
            if longer > _LONGER and time.process_time() - cpu < _BUSY * longer:
                self.seen += longer
                self.add(Stop(until - longer, until))
            if until >= ends:
                return found

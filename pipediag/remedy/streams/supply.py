"""Supply an executor with batches, from the loop's own thread or from a thread that fetches and launches ahead of it.

Both follow the device's progress: a batch is launched when the loop is at most ``depth`` batches behind it by the
device's clock, not the host's. Otherwise a loop that launches much faster than its GPU works would fill the memory with
batches that are not needed yet.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.cuda import Event

from ...usercode import tree
from .handover import Ready

#: Function from what a source yields to a batch on the device; it launches on its own streams.
Arrive = Callable[[Any], Ready]

#: Fraction of the free memory that ready batches may use.
_SHARE = 0.25


class Supply(Protocol):
    """Batches in the order of their source.

    Attributes:
        ready: number of batches that have been launched and not taken yet.
    """

    @property
    def ready(self) -> int: ...

    def next(self, wait: bool) -> Ready | None:
        """Return the next batch, or None if there is none yet and ``wait`` is false.

        Raises:
            StopIteration: there are no more. Any error of the source is raised here unchanged, once.
        """

    def finished(self, event: Event) -> None:
        """Note that the loop has launched all its work on its oldest batch; the work is complete when ``event`` has
        passed."""

    def close(self) -> None:
        """Stop: no more batches are wanted."""


class Inline:
    """Supply that fetches on request, in the requesting thread, so that the order of random draws does not change."""

    def __init__(self, source: Iterator[Any], arrive: Arrive, depth: int, device: torch.device) -> None:
        self._source = source
        self._arrive = arrive
        self._due = _Due(depth, device)

    @property
    def ready(self) -> int:
        return 0

    def next(self, wait: bool) -> Ready | None:
        if not wait:
            return None
        sent = next(self._source)
        while self._due.full():
            self._due.over()
        return self._due.launched(self._arrive(sent))

    def finished(self, event: Event) -> None:
        self._due.finished(event)

    def close(self) -> None:
        self._source = iter(())  # a loader's iterator ends its workers when it is collected


class Background:
    """Supply that fetches and launches in its own thread.

    ``patience`` is the number of seconds that closing waits for the source's batch in progress; None means no limit.
    """

    def __init__(
        self, source: Iterator[Any], arrive: Arrive, depth: int, device: torch.device, patience: float | None
    ) -> None:
        self._patience = patience
        self._given: queue.SimpleQueue[Ready | _End] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._ended = False
        work = _Work(source, arrive, _Due(depth, device), self._given, self._finished, self._closed)
        self._thread = threading.Thread(target=work.run, args=(device,), name="pipediag-fetch", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> int:
        return self._given.qsize()

    def next(self, wait: bool) -> Ready | None:
        if self._ended:
            raise StopIteration
        try:
            given = self._given.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(given, Ready):
            return given
        self._ended = True
        try:
            raise StopIteration if given.error is None else given.error
        finally:
            del given  # an error refers to this frame, and this frame to the error

    def finished(self, event: Event) -> None:
        self._finished.put(event)

    def close(self) -> None:
        self._closed.set()
        self._finished.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(self._patience)


class _End:
    """Marker after the last batch, with the error that the source raised, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Work:
    """Work of the thread. It holds no reference to the supply, so that an unused supply is collected."""

    def __init__(
        self,
        source: Iterator[Any],
        arrive: Arrive,
        due: _Due,
        given: queue.SimpleQueue[Ready | _End],
        finished: queue.SimpleQueue[Event | None],
        closed: threading.Event,
    ) -> None:
        self._source = source
        self._arrive = arrive
        self._due = due
        self._given = given
        self._finished = finished
        self._closed = closed

    def run(self, device: torch.device) -> None:
        end = _End(None)
        try:
            with torch.cuda.device(device):
                self._fetch()
        except BaseException as error:  # the loop raises it
            end.error = error
        finally:
            del self._source, self._arrive  # a loader's iterator ends its workers when it is collected
            self._given.put(end)
            del end

    def _fetch(self) -> None:
        for sent in self._source:
            while self._due.full():
                event = None if self._closed.is_set() else self._finished.get()
                if event is None:
                    return
                self._due.finished(event)
                self._due.over()
            if self._closed.is_set():
                return
            self._given.put(self._due.launched(self._arrive(sent)))


class _Due:
    """Batches between their launch and the end of the loop's work on them."""

    def __init__(self, depth: int, device: torch.device) -> None:
        self._depth = depth
        self._device = device
        self._room = min(depth, 2)  # until a step has shown how much memory it takes
        self._measured = False
        self._size = 0
        self._launched = 0
        self._finished: deque[Event] = deque()

    def launched(self, ready: Ready) -> Ready:
        self._size = max(self._size, tree.nbytes(ready.batch))
        self._launched += 1
        return ready

    def full(self) -> bool:
        return self._launched > self._room

    def finished(self, event: Event) -> None:
        self._finished.append(event)

    def over(self) -> None:
        """Wait until the device has finished the oldest batch that the loop has finished."""
        self._finished.popleft().synchronize()
        self._launched -= 1
        if not self._measured:
            free, _ = torch.cuda.mem_get_info(self._device)
            self._room = max(1, min(self._depth, int(_SHARE * free / max(1, self._size))))
            self._measured = True

"""Where an executor's batches come from: the loop's own thread, or a thread that fetches and launches ahead of it.

Both keep the device's work in sight: a batch is launched when the loop is no more than ``depth`` batches behind it, by
the device's clock rather than the host's. A loop that launches much faster than its GPU works would otherwise fill the
memory with batches that are not due yet.
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

#: Turns what a source yields into a batch on the device, launching on streams of its own.
Arrive = Callable[[Any], Ready]

#: Share of the free memory that batches lying ready may take.
_SHARE = 0.25


class Supply(Protocol):
    """Batches in the order of their source."""

    def next(self, wait: bool) -> Ready | None:
        """The next batch. None where there is none yet and ``wait`` is false.

        Raises:
            StopIteration: there are no more. Whatever the source raised comes out here as it was, once.
        """

    def finished(self, event: Event) -> None:
        """The loop has launched all that it does with its oldest batch; it is over when ``event`` has passed."""

    def close(self) -> None:
        """No more batches are wanted."""


class Inline:
    """Fetches when it is asked to, in the thread that asks: random draws come in the order that they always did."""

    def __init__(self, source: Iterator[Any], arrive: Arrive, depth: int, device: torch.device) -> None:
        self._source = source
        self._arrive = arrive
        self._due = _Due(depth, device)

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
    """Fetches and launches in a thread of its own.

    ``patience``: seconds that closing waits for a source to give the batch that it is being asked for; None: as long as
    that takes.
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
            del given  # an error leads to this frame, and this frame to the error

    def finished(self, event: Event) -> None:
        self._finished.put(event)

    def close(self) -> None:
        self._closed.set()
        self._finished.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(self._patience)


class _End:
    """What comes after the last batch: nothing, or the error that the source raised."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Work:
    """What the thread does. It knows nothing of the supply, so that one that nobody holds any more is collected."""

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
        except BaseException as error:  # it is the loop's to see
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
    """The batches between their launch and the end of the loop's work on them."""

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
        """Wait until the oldest batch that the loop has done with is done with on the device too."""
        self._finished.popleft().synchronize()
        self._launched -= 1
        if not self._measured:
            free, _ = torch.cuda.mem_get_info(self._device)
            self._room = max(1, min(self._depth, int(_SHARE * free / max(1, self._size))))
            self._measured = True

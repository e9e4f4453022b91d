"""Prepare batches ahead of the loop: fetch them, copy them and run their stages in time.

    source -> arrive (copy stream, transform stream) -> stage 1 (its stream) -> ... -> the loop's current stream

Fetching and copying are launched in a background thread if that changes no random draw. The stages are launched in the
loop's own thread, one or more batches early, so that grad mode, autocast and the order of random numbers on the device
are the loop's own.

Both supplies, in the loop's own thread and in one that fetches ahead of it, follow the device's progress: a batch is
launched when the loop is at most ``depth`` batches behind it by the device's clock, not the host's. Otherwise a loop
that launches much faster than its GPU works would fill the memory with batches that are not needed yet.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.cuda import Event

from ..clock import time
from ..lifeline import keep_garbage_in_forks
from ..loop.iterators import queued
from ..replay.run.capture import beside_others
from ..usercode import tree
from .feed import Feed
from .handover import Ready, hand_over, labelled, loops_streams
from .stage import Stage

#: Function from what a source yields to a batch on the device; it launches on its own streams.
Arrive = Callable[[Any], Ready]


@dataclass
class Failed:
    """Error of the source in place of a batch. The source may go on after it, as a loader's iterator does."""

    error: Exception


#: A batch, an error in its place, or the end: the error that ended the thread, or None.
Given = Ready | Failed | BaseException | None

#: Fraction of the free memory that ready batches may use.
_SHARE = 0.25
#: How long the loop is left alone after it has asked for a batch: a fraction of its last step, and at most so many
#: seconds.
_PAUSE, _LONGEST_PAUSE = 0.5, 0.05


class Inline:
    """Supply that fetches on request, in the requesting thread, so that the order of random draws does not change."""

    def __init__(self, source: Iterator[Any], arrive: Arrive, depth: int, device: torch.device) -> None:
        self._source = source
        self._arrive = arrive
        self._due = _Due(depth, device)

    @property
    def ready(self) -> int:
        """Number of batches that have been launched and not taken yet."""
        return 0

    def next(self, wait: bool) -> Ready | None:
        """Return the next batch, or None if there is none yet and ``wait`` is false.

        Raises:
            StopIteration: there are no more. Any error of the source is raised here unchanged, once.
        """
        if not wait:
            return None
        sent = next(self._source)
        while self._due.full():
            self._due.over()
        return self._due.launched(self._arrive(sent))

    def finished(self, event: Event) -> None:
        """Note that the loop has launched all its work on its oldest batch; the work is complete when ``event`` has
        passed."""
        self._due.finished(event, time.monotonic())

    def close(self) -> None:
        """Stop: no more batches are wanted."""
        self._source = iter(())  # a loader's iterator ends its workers when it is collected


class Background:
    """Supply with the same methods that fetches and launches in its own thread.

    ``patience`` is the number of seconds that closing waits for the source's batch in progress; None means no limit.
    """

    def __init__(
        self, source: Iterator[Any], arrive: Arrive, depth: int, device: torch.device, patience: float | None
    ) -> None:
        self._patience = patience
        self._given: queue.SimpleQueue[Given] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[Event, float] | None] = queue.SimpleQueue()
        self._closed, self._again = threading.Event(), threading.Event()
        self._ended = self._failed = False
        due, beside = _Due(depth, device), ExitStack()
        beside.enter_context(beside_others())  # here, as the loop may capture before the thread runs
        work = _Work(source, arrive, due, self._given, self._finished, self._closed, self._again, beside)
        self._thread = threading.Thread(target=work.run, args=(device,), name="pipediag-fetch", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> int:
        return self._given.qsize()

    def next(self, wait: bool) -> Ready | None:
        if self._ended:
            raise StopIteration
        if self._failed:  # the loop goes on
            self._failed = False
            self._again.set()
        try:
            given = self._given.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(given, Ready):
            return given
        self._failed = isinstance(given, Failed)
        self._ended = not self._failed
        try:
            if isinstance(given, Failed):
                raise given.error
            raise StopIteration if given is None else given
        finally:
            del given  # an error refers to this frame, and this frame to the error

    def finished(self, event: Event) -> None:
        self._finished.put((event, time.monotonic()))

    def close(self) -> None:
        self._closed.set()
        self._again.set()
        self._finished.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(self._patience)


@dataclass
class _Work:
    """Work of the thread. It holds no reference to the supply, so that an unused supply is collected."""

    source: Iterator[Any]
    arrive: Arrive
    due: _Due
    given: queue.SimpleQueue[Given]
    finished: queue.SimpleQueue[tuple[Event, float] | None]
    closed: threading.Event
    again: threading.Event  # set when the loop asks for a batch after an error
    beside: ExitStack  # holds beside_others(), while batches are fetched

    def run(self, device: torch.device) -> None:
        raised: BaseException | None = None
        try:
            with torch.cuda.device(device):
                self._fetch()
        except BaseException as error:  # the loop raises it
            raised = error
        finally:
            self.beside.close()
            del self.source, self.arrive  # a loader's iterator ends its workers when it is collected
            self.given.put(raised)
            del raised

    def _fetch(self) -> None:
        while not self.closed.is_set():
            given: Given
            try:
                given = self._launched()
            except StopIteration:
                return
            except Exception as error:
                given = Failed(error)
            if given is None:
                return
            failed = isinstance(given, Failed)
            if failed:
                self.beside.close()  # the loop may keep the error, and with it this thread
            self.given.put(given)
            del given  # the loop adds its frames to an error, and they would live as long as this reference
            if failed:
                self.again.wait()
                self.again.clear()
                self.beside.enter_context(beside_others())

    def _launched(self) -> Ready | None:
        """Return the next batch, launched; None if no more batches are wanted.

        Raises:
            StopIteration: there are no more. Any error of the source is raised unchanged.
        """
        sent = next(self.source)
        while self.due.full():
            finished = None if self.closed.is_set() else self.finished.get()
            if finished is None:
                return None
            self.due.finished(*finished)
            self.due.over()
            self.closed.wait(self.due.pause())
        return None if self.closed.is_set() else self.due.launched(self.arrive(sent))


class _Due:
    """Count of the batches between their launch and the end of the loop's work on them."""

    def __init__(self, depth: int, device: torch.device) -> None:
        self._depth = depth
        self._device = device
        self._room = min(depth, 2)  # until a step has shown how much memory it takes
        self._measured = False
        self._size = 0
        self._launched = 0
        self._finished: deque[Event] = deque()
        self._asked = time.monotonic()  # when the loop asked for its latest batch
        self._period = 0.0  # seconds between its last two requests

    def launched(self, ready: Ready) -> Ready:
        self._size = max(self._size, tree.nbytes(ready.batch))
        self._launched += 1
        return ready

    def full(self) -> bool:
        return self._launched > self._room

    def finished(self, event: Event, asked: float) -> None:
        self._finished.append(event)
        self._asked, self._period = asked, asked - self._asked

    def pause(self) -> float:
        """Return for how many seconds to leave the loop alone, now that one of its steps has ended.

        A loop that waits for the end of its step asks for a batch and launches the next step just then; a second thread
        that runs Python code would delay it. There is time if another batch is ready besides the one that it gets.
        """
        pause = min(_PAUSE * self._period, _LONGEST_PAUSE) + self._asked - time.monotonic()
        return max(0.0, pause) if self._launched > 1 else 0.0

    def over(self) -> None:
        """Wait until the device has finished the oldest batch that the loop has finished."""
        self._finished.popleft().synchronize()
        self._launched -= 1
        if not self._measured:
            free, _ = torch.cuda.mem_get_info(self._device)
            self._room = max(1, min(self._depth, int(_SHARE * free / max(1, self._size))))
            self._measured = True


#: Seconds that closing waits for the loader's batch in progress; the same as torch's own timeout.
_PATIENCE = 5.0
_WAIT = "wait for batch"


class LoaderOnDevice:
    """Loader whose batches an executor prepares; its other attributes are those of the wrapped ``loader``."""

    loader: Any
    _executor: Executor

    def __iter__(self) -> Iterator[Any]:
        return self._executor.flow()

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


class Executor:
    """Streams and stages of a loader. They live as long as the loader, over any number of epochs.

    Args:
        feed: source of the batches.
        stages: applied to each batch in order.
        depth: number of batches that may be ready on the device, if the memory allows it.
    """

    def __init__(self, feed: Feed, stages: Sequence[Stage], depth: int) -> None:
        self._feed = feed
        self._stages = stages
        self._depth = depth
        self._latest: weakref.ref[Flow] | None = None

    def flow(self) -> Iterator[Any]:
        """Return the batches of one epoch, each ready on the stream that is current when the loop asks for it."""
        for stage in self._stages:
            stage.begin()
        if self._feed.device.type != "cuda":
            return InTurn(self._feed.begin(), self._feed, self._stages)
        keep_garbage_in_forks()
        latest = self._latest() if self._latest is not None else None
        if latest is not None and self._feed.single:
            latest.close()  # the loader resets its existing iterator
        source, arrive, device = self._feed.begin(), self._feed.bring, self._feed.device
        supply: Inline | Background
        if self._feed.ahead:
            # Two threads must never use one iterator at once, so if later epochs reuse it, closing waits without limit.
            supply = Background(source, arrive, self._depth, device, patience=None if self._feed.single else _PATIENCE)
        else:
            supply = Inline(source, arrive, self._depth, device)
        flow = Flow(supply, self._stages, self._feed, source)
        self._latest = weakref.ref(flow)
        return flow


class InTurn:
    """Iterator over one epoch's batches that makes each when the loop asks for it. It goes on after an error."""

    def __init__(self, source: Iterator[Any], feed: Feed, stages: Sequence[Stage]) -> None:
        self.source = source
        self._feed = feed
        self._stages = stages

    def __iter__(self) -> InTurn:
        return self

    def __next__(self) -> Any:
        with labelled(_WAIT):
            sent = next(self.source)
        ready = self._feed.bring(sent)
        for stage in self._stages:
            ready = stage.launch(ready)
        return ready.batch

    def close(self) -> None:
        """Stop the epoch."""
        self.source = iter(())  # a loader's iterator ends its workers when it is collected


class Flow:
    """Iterator over one epoch's batches, each launched before the loop asks for it. It goes on after an error.

    ``source`` is the iterator that ``supply`` fetches from.
    """

    def __init__(self, supply: Inline | Background, stages: Sequence[Stage], feed: Feed, source: Iterator[Any]) -> None:
        self._supply = supply
        self._stages = stages
        self._feed = feed
        self._ahead: deque[Ready] = deque()
        self._error: Exception | None = None  # to be raised after the batches that are ready, which are valid
        self._handed: torch.cuda.Stream | None = None  # the stream that received the loop's batch
        self._readers: list[torch.cuda.Stream] | None = None  # the loop's own streams, once it has asked for a batch
        self._over = False
        self._end = weakref.finalize(self, supply.close)
        # Weak: a loader's iterator ends its workers when it is collected.
        has_weak = bool(type(source).__weakrefoffset__)  # those of Python's containers have not
        self._source = weakref.ref(source) if has_weak else lambda: None

    def __iter__(self) -> Iterator[Any]:
        return self

    @property
    def source(self) -> Any:
        """The iterator that the batches come from, as long as it lives, if that can be known."""
        return self._source()

    @property
    def ready(self) -> int:
        """Number of batches that are made but not handed over: on the device, and in the workers' queues."""
        return len(self._ahead) + self._supply.ready + queued(self.source)

    def __next__(self) -> Any:
        stream = torch.cuda.current_stream(self._feed.device)
        if self._handed is not None:
            done = torch.cuda.Event(blocking=True)  # the waiting thread should sleep
            done.record(self._handed)
            self._handed = None
            self._supply.finished(done)
        self._feed.tune()
        self._look_ahead()
        if not self._ahead:
            error, self._error = self._error, None
            if error is None:
                self.close()
                raise StopIteration
            try:
                raise error
            finally:
                del error  # it refers to this frame; such a cycle is collected late, perhaps in a forked worker
        self._handed = stream
        if self._readers is None:
            self._readers = loops_streams(self._feed.device)
        ready = self._ahead.popleft()
        for reader in self._readers:
            hand_over(ready, reader)
        return hand_over(ready, stream)

    def close(self) -> None:
        """Stop the epoch and drop the batches that are ready."""
        self._over = True
        self._ahead.clear()
        self._error = None
        self._end()

    def _look_ahead(self) -> None:
        """Launch available batches, as many ahead as there are stages; wait only if none is ready.

        Stages that draw random numbers on the device share its generator with the loop. They run exactly one batch
        ahead, waiting for it if necessary, so that a seed gives one order of draws.
        """
        while not self._over and self._error is None:
            drawing = any(stage.draws for stage in self._stages)
            if len(self._ahead) > (1 if drawing else len(self._stages)):
                return
            try:
                wait = not self._ahead or (drawing and self._feed.ahead)
                with labelled(_WAIT) if wait else nullcontext():
                    ready = self._supply.next(wait)
                if ready is None:
                    return
                self._ahead.append(self._staged(ready))
            except StopIteration:
                self._over = True
            except Exception as error:
                self._error = error

    def _staged(self, ready: Ready) -> Ready:
        """Launch all stages on a batch."""
        try:
            for stage in self._stages:
                ready = stage.launch(ready)
        except StopIteration as error:  # the loop would take it for the end of the epoch
            raise RuntimeError(f"a stage raised StopIteration: {error}").with_traceback(error.__traceback__) from None
        return ready

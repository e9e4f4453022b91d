"""Prepare batches ahead of the loop: fetch them, copy them and run their stages in time.

    source -> arrive (copy stream, transform stream) -> stage 1 (its stream) -> ... -> the loop's current stream

Fetching and copying are launched in a background thread if that changes no random draw. The stages are launched in the
loop's own thread, one or more batches early, so that grad mode, autocast and the order of random numbers on the device
are the loop's own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ..loop.iterators import queued
from .feed import Feed
from .handover import Ready, hand_over, labelled, loops_streams
from .stage import Stage
from .supply import Background, Inline

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
        self._source = source
        self._feed = feed
        self._stages = stages

    def __iter__(self) -> InTurn:
        return self

    def __next__(self) -> Any:
        with labelled(_WAIT):
            sent = next(self._source)
        ready = self._feed.bring(sent)
        for stage in self._stages:
            ready = stage.launch(ready)
        return ready.batch

    def close(self) -> None:
        """Stop the epoch."""
        self._source = iter(())  # a loader's iterator ends its workers when it is collected


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
        # Weak: a loader's iterator ends its workers when it is collected. Other iterators have no queues.
        self._source = weakref.ref(source) if hasattr(source, "_task_info") else lambda: None

    def __iter__(self) -> Iterator[Any]:
        return self

    @property
    def ready(self) -> int:
        """Number of batches that are made but not handed over: on the device, and in the workers' queues."""
        return len(self._ahead) + self._supply.ready + queued(self._source())

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

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
from typing import Any

import torch

from ...loop.iterators import queued
from .feed import Feed
from .handover import Ready, hand_over
from .stage import Stage
from .supply import Background, Inline, Supply

#: Seconds that closing waits for the loader's batch in progress; the same as torch's own timeout.
_PATIENCE = 5.0


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
            return self._in_turn(self._feed.begin())
        latest = self._latest() if self._latest is not None else None
        if latest is not None and self._feed.single:
            latest.close()  # the loader resets its existing iterator
        source, arrive, device = self._feed.begin(), self._feed.arrive, self._feed.device
        supply: Supply
        if self._feed.ahead:
            # Two threads must never use an iterator at a time, so if later epochs reuse it, wait without limit.
            supply = Background(source, arrive, self._depth, device, patience=None if self._feed.single else _PATIENCE)
        else:
            supply = Inline(source, arrive, self._depth, device)
        flow = Flow(supply, self._stages, self._feed, source)
        self._latest = weakref.ref(flow)
        return flow

    def _in_turn(self, source: Iterator[Any]) -> Iterator[Any]:
        for sent in source:
            ready = self._feed.arrive(sent)
            for stage in self._stages:
                ready = stage.launch(ready)
            yield ready.batch


class Flow:
    """Iterator over one epoch's batches, each launched before the loop asks for it. ``source`` supplies ``supply``."""

    def __init__(self, supply: Supply, stages: Sequence[Stage], feed: Feed, source: Iterator[Any]) -> None:
        self._supply = supply
        self._stages = stages
        self._feed = feed
        self._ahead: deque[Ready | _Failed] = deque()
        self._handed: torch.cuda.Stream | None = None  # the stream that received the loop's batch
        self._over = False
        self._end = weakref.finalize(self, supply.close)
        # Weak: a loader's iterator ends its workers when it is collected. Other iterators have no queues.
        self._source = weakref.ref(source) if hasattr(source, "_task_info") else lambda: None

    def __iter__(self) -> Iterator[Any]:
        return self

    @property
    def ready(self) -> int:
        """Number of batches that are made and not handed over: on the device, and in the workers' queues."""
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
            self.close()
            raise StopIteration
        ready = self._ahead.popleft()
        if isinstance(ready, _Failed):
            self.close()
            try:
                raise ready.error
            finally:
                del ready  # it refers to this frame; such a cycle is collected late, maybe by a forked worker
        self._handed = stream
        return hand_over(ready, stream)

    def close(self) -> None:
        """Stop the epoch and drop the batches that are ready."""
        self._over = True
        self._ahead.clear()
        self._end()

    def _look_ahead(self) -> None:
        """Launch available batches, as many ahead as there are stages; wait only if none is ready.

        Stages that draw random numbers on the device share its generator with the loop. They run exactly one batch
        ahead, waiting for it if necessary, so that a seed gives one order of draws.
        """
        while not self._over:
            drawing = any(stage.draws for stage in self._stages)
            if len(self._ahead) > (1 if drawing else len(self._stages)):
                return
            try:
                ready = self._supply.next(wait=not self._ahead or (drawing and self._feed.ahead))
            except StopIteration:
                self._over = True
                return
            except Exception as error:
                self._fail(error)
                return
            if ready is None:
                return
            try:
                for stage in self._stages:
                    ready = stage.launch(ready)
            except Exception as error:
                self._fail(error)
                return
            self._ahead.append(ready)

    def _fail(self, error: Exception) -> None:
        """Queue the error to be raised after the batches before it, which are valid."""
        if isinstance(error, StopIteration):  # the loop would take it for the end of the epoch
            error = RuntimeError(f"what makes the batches raised StopIteration: {error}").with_traceback(
                error.__traceback__
            )
        self._over = True
        self._ahead.append(_Failed(error))


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error

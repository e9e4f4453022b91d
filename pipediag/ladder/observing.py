"""Observe the loop's own steps before anything is cached: how long they take, and how much of that is waiting."""

from __future__ import annotations

from collections import deque

import torch

from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.evidence import BatchCost
from ..measure.steps import StepClock
from ..session import Observed, Stretch
from .step_recorder import Queue, StepRecorder
from .workers.delivery import Delivery

#: Maximum steps observed in one pass; windows measure the rest.
_MOST = 256
#: Steps in a block if there are no workers to set its size.
_BLOCK = 4


class Observer:
    """A timer of one loader's steps while its batches arrive as in training.

    The first batch of each epoch and its step are left out: they include the loader's startup, and the very first step
    warms up the device. ``recorder`` records single steps.

    Attributes:
        seen: number of steps observed so far in this pass.
    """

    def __init__(self, clock: Clock, workers: int, attempt: int, recorder: StepRecorder) -> None:
        self._clock = clock
        self._workers = workers
        self._size = workers or _BLOCK
        self._attempt = attempt
        self._recorder = recorder
        self._blocks: list[Observed] = []
        self._device: torch.device | None = None
        self._steps = StepClock(clock)
        self._open: list[tuple[float, float, float]] = []  # seconds, seconds waited, seconds that a worker took
        self._made: deque[BatchCost] = deque()  # of the steps that are not in a block yet
        self._got: BatchCost | None = None  # of the batch that the loop has
        self.seen = 0

    def asks(self, device: torch.device | None, queue: Queue) -> None:
        """Note that the loop asks ``queue`` for a batch; ``device`` is where it trains, or None if unknown."""
        if self.seen >= _MOST:
            return
        if device is not None and self._device is None:
            self._sort()
            self._device, self._steps = device, StepClock(self._clock, Device(device))
            self._got = None
        now = self._steps.asks()
        if self._got is not None:
            self._made.append(self._got)
        else:
            self._recorder.ends()
        self._recorder.asks(now, queue)
        self._got = None
        self._sort()

    def gets(self, delivery: Delivery) -> None:
        """Note that the loop gets a batch in the same way as in training."""
        if self.seen < _MOST:
            now = self._steps.gets()
            self._recorder.took(delivery)
            self._recorder.gets(now)
            self._got = delivery.cost

    def breaks(self) -> None:
        """Discard the current step: it is not a training step."""
        self._steps.breaks()
        self._got = None

    def take(self, last: bool = False) -> list[Observed]:
        """Return the new blocks, each of one round of the workers; with ``last``, the incomplete one as well."""
        if last:
            if self._device is not None and self.seen < _MOST:
                Device(self._device).synchronize()
            self._sort()
            self._close()
        blocks, self._blocks = self._blocks, []
        return blocks

    def take_stretches(self) -> list[Stretch]:
        """Return the recorded single steps, once, and record no more of them."""
        self._recorder.ends()
        return self._recorder.take()

    def _sort(self) -> None:
        for seconds, waited in self._steps.take():
            cost = self._made.popleft()
            # The loop waits for pipediag too, which training does not do.
            own = min(waited, cost.own / max(1, self._workers))
            self._open.append((seconds - own, waited - own, cost.wall))
            self.seen += 1
            if len(self._open) >= self._size:
                self._close()

    def _close(self) -> None:
        steps, self._open = self._open, []
        seconds, waited, made = (sum(step[i] for step in steps) for i in range(3))
        if seconds > 0:
            each = round(1000 * made / len(steps), 4)
            self._blocks.append(Observed(len(steps), seconds, min(waited, seconds), each, self._attempt))

"""What the loop itself tells before anything is cached: how long its steps take, and how much of that it waits."""

from __future__ import annotations

from collections import deque

import torch

from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.steps import StepClock
from ..session import Observed
from .delivery import Delivery

#: Steps observed at most in one pass over the script: windows tell of the rest.
_MOST = 256
#: Steps in a block where there are no workers whose rounds would set its size.
_BLOCK = 4


class Observer:
    """Times the steps of one loader's loop as long as its batches come as they do in training.

    The first batch of an epoch and its step are left out: they are the loader's start-up, and the first step of all
    warms the device up.
    """

    def __init__(self, clock: Clock, workers: int, attempt: int) -> None:
        self._clock = clock
        self._size = workers or _BLOCK
        self._attempt = attempt
        self._blocks: list[Observed] = []
        self._device: torch.device | None = None
        self._steps = StepClock(clock)
        self._open: list[tuple[float, float, float]] = []  # seconds, seconds waited, seconds that a worker took
        self._made: deque[float] = deque()  # of the steps that are not in a block yet
        self._got: float | None = None  # of the batch that the loop has
        self._seen = 0

    @property
    def seen(self) -> int:
        """Steps observed so far in this pass."""
        return self._seen

    def asks(self, device: torch.device | None) -> None:
        """The loop asks for a batch; ``device`` is where it trains, as far as that is known."""
        if self._seen >= _MOST:
            return
        if device is not None and self._device is None:
            self._sort()
            self._device, self._steps = device, StepClock(self._clock, Device(device))
            self._got = None
        self._steps.asks()
        if self._got is not None:
            self._made.append(self._got)
        self._got = None
        self._sort()

    def gets(self, delivery: Delivery) -> None:
        """The loop gets a batch in the way in which it does in training."""
        if self._seen < _MOST:
            self._steps.gets()
            self._got = delivery.cost.wall

    def breaks(self) -> None:
        """The step under way is none of training's."""
        self._steps.breaks()
        self._got = None

    def take(self, last: bool = False) -> list[Observed]:
        """Blocks of one round of the workers each, every one once; with ``last``, what is left over as well."""
        if last:
            if self._device is not None and self._seen < _MOST:
                Device(self._device).synchronize()
            self._sort()
            self._close()
        blocks, self._blocks = self._blocks, []
        return blocks

    def _sort(self) -> None:
        for seconds, waited in self._steps.take():
            self._open.append((seconds, waited, self._made.popleft()))
            self._seen += 1
            if len(self._open) >= self._size:
                self._close()

    def _close(self) -> None:
        steps, self._open = self._open, []
        seconds, waited, made = (sum(step[i] for step in steps) for i in range(3))
        if seconds > 0:
            each = round(1000 * made / len(steps), 4)
            self._blocks.append(Observed(len(steps), seconds, min(waited, seconds), each, self._attempt))

"""Whether the model's own step depends on the batch: single steps on one cached batch after another."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..measure.clock import Clock
from ..measure.device import Device
from .caches import BatchCache
from .loop_side import LoopSide

#: Steps on each batch, the first of them untimed.
_REPEATS = 3
#: With fewer batches nothing can be said.
_LEAST = 4


def batch_steps(
    loop_side: LoopSide, cache: BatchCache, device: Device, clock: Clock, pace: float, seconds: float
) -> Generator[Any, None, list[dict[str, Any]]]:
    """Time steps on every cached batch by itself, where at ``pace`` seconds a step that takes no more than ``seconds``.

    The device is synchronised around each step, which windows never do: the figures are good for comparing batches
    with each other, and for nothing else.
    """
    count = min(len(cache), int(seconds / (_REPEATS * max(pace, 1e-6))))
    found: list[dict[str, Any]] = []
    if count < _LEAST:
        return found
    for number in range(count):
        times: list[float] = []
        for repeat in range(_REPEATS):
            device.synchronize()
            began = clock.now()
            back = yield from loop_side.hand(cache.at(number))
            device.synchronize()
            if back and repeat:
                times.append(1000.0 * (clock.now() - began))
        if times:
            found.append({"nbytes": cache.nbytes(number), "ms": times})
    return found

"""Time single steps on each cached batch, to see whether the model's own step depends on the batch."""

from __future__ import annotations

from typing import Any

from ..loop_side import LoopSide, Turn

#: Steps on each batch; the first is untimed.
_REPEATS = 3
#: Minimum number of batches to compare.
_LEAST = 4


def batch_steps(loop_side: LoopSide, pace: float, seconds: float) -> Turn[list[dict[str, Any]]]:
    """Time steps on every batch cached on the device, on as many as fit into ``seconds`` at ``pace`` seconds per step.

    The device is synchronized around each step, unlike in windows: compare these figures only with each other.
    """
    cache, device, clock = loop_side.cache("device"), loop_side.device, loop_side.clock
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

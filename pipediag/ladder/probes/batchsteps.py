"""Time single steps on each cached batch, to see whether the model's own step depends on the batch."""

from __future__ import annotations

from typing import Any

from ..loop_side import LoopSide, Turn

#: Rounds over the batches; the first is untimed.
_REPEATS = 3
#: Minimum number of batches to compare.
_LEAST = 4


def batch_steps(loop_side: LoopSide, pace: float, seconds: float) -> Turn[list[dict[str, Any]]]:
    """Time steps on every batch cached on the device, on as many as fit into ``seconds`` at ``pace`` seconds per step.

    The device is synchronized around each step, unlike in windows: compare these figures only with each other.
    """
    cache, device, clock = loop_side.cache("device"), loop_side.device, loop_side.clock
    count = min(len(cache), int(seconds / (_REPEATS * max(pace, 1e-6))))
    if count < _LEAST:
        return []
    times: list[list[float]] = [[] for _ in range(count)]
    # Steps on one batch do not follow each other: a machine that changes its speed would make batches differ.
    for repeat in range(_REPEATS):
        for number in range(count):
            device.synchronize()
            began = clock.now()
            back = yield from loop_side.hand(cache.at(number))
            device.synchronize()
            if back and repeat:
                times[number].append(1000.0 * (clock.now() - began))
    return [{"nbytes": cache.nbytes(number), "ms": ms} for number, ms in enumerate(times) if ms]

"""Watch which calls of the training loop wait for the device, in single steps outside the timed windows."""

from __future__ import annotations

from ...measure import syncs
from ...session import Syncs
from ...usercode import tree
from ..loop_side import LoopSide, Turn

#: Maximum and minimum steps watched, and their maximum seconds unless fewer than the minimum remain. The steps must
#: distinguish a loop that reads its loss every ten steps from one that reads it in each.
_MOST, _LEAST, _SECONDS = 16, 4, 3.0


def watch_syncs(loop_side: LoopSide, pace: float) -> Turn[Syncs]:
    """Hand the loop copies of cached host batches, and record which of its calls wait for the device.

    ``pace`` is seconds per step. Batches come from host memory, so that the loop copies them as in training. Only CUDA
    reports waits: on any other device nothing is watched.
    """
    kind = loop_side.device.torch_device.type
    if kind != "cuda":
        return Syncs(unwatched=f"only CUDA reports calls that wait for it, and training runs on {kind}")
    steps = max(_LEAST, min(_MOST, int(_SECONDS / max(pace, 1e-6))))
    cache = loop_side.cache("host")
    with syncs.watch() as log:
        for number in range(steps):
            yield from loop_side.hand(tree.clone_pinned(cache.at(number)))
            log.step()
    return Syncs(log.steps, log.report())

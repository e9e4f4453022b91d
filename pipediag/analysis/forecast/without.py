"""Predict how fast the loop would be without a stage, by the model that predicts the gain of advice (:mod:`.whatif`).

That is not the same as the stage's size. A loop with workers is as fast as the slower of its two sides: a stage that
another one hides costs nothing until the other is gone. And on full cores, less work for the workers gains less than
its share of their time.
"""

from __future__ import annotations

from ..diagnosis import Stage, Without
from ..numbers.intervals import Interval, exactly, least
from ..numbers.ladder import LadderView
from ..numbers.sides import OF_THE_WORKERS, sides
from ..thresholds import RESOLUTION
from .whatif import Change, WhatIf


def without(ladder: LadderView, numbers: WhatIf | None, piece: Stage, together: bool) -> Without:
    """Return the loop's speed without a piece of its step.

    Without loading the loop runs as under the rung ``raw``, which is a measurement, unless that removes more than this
    piece: it is ``together`` with storage or with other lines of loading. ``numbers`` is None if the loop was not fed
    from a cache.
    """
    step = ladder.ms("baseline").value
    if piece.stage == "load" and ladder.has("raw") and not together:
        return Without(1000.0 / min(step, ladder.ms("raw").value), True)
    if numbers is None:
        return Without(1000.0 / max(1e-6, _observed(ladder, piece)), False)
    return Without(1000.0 * speedup_without(ladder, numbers, piece).value / step, False)


def speedup_without(ladder: LadderView, numbers: WhatIf, piece: Stage) -> Interval:
    """Return the speedup of a loop without a piece of its step."""
    gain = numbers.faster(_removed(ladder, numbers, piece))
    if piece.stage in OF_THE_WORKERS:
        return gain
    step = ladder.ms("baseline").value  # the training process saves at most what the piece takes
    left = Interval(*(max(1e-6, step - ms) for ms in (piece.ms.value, piece.ms.high, piece.ms.low)))
    return least(gain, left.inverse(step))


def _observed(ladder: LadderView, piece: Stage) -> float:
    """Return the milliseconds of a step without a piece, as far as the loop's own waiting tells."""
    found = sides(ladder)
    step, waits = found.step.value, found.waits.value
    if not ladder.session.workers or waits <= RESOLUTION * step:
        return step - piece.ms.value
    return max(step - waits, step * (1 - piece.ms.value / waits)) if piece.stage in OF_THE_WORKERS else step


def _removed(ladder: LadderView, numbers: WhatIf, piece: Stage) -> Change:
    """Return the change that removes a piece: from the workers' time, or from the loop's own."""
    if piece.stage not in OF_THE_WORKERS:
        return Change(loop=piece.ms)
    waits = sides(ladder).waits.value
    if waits <= 0:
        return Change()
    share = Interval(*(min(1.0, max(0.0, ms / waits)) for ms in (piece.ms.value, piece.ms.low, piece.ms.high)))
    if numbers.workers and numbers.work is not None:
        return Change(work=share.times(numbers.work.run))
    return Change(supply=exactly(1.0).minus(share).not_negative())

"""Find the steps of a window that take far longer than those around them: they come too rarely for a short window."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: A step is rare if its own part takes this many times as long as the median of this many steps before it and after it,
#: or if it waits longer than they do by the rest of that many times their length.
FAR_LONGER, _AROUND = 2.0, 16
#: Minimum number of steps that tell what is usual, and maximum number that are looked at: of more, several are one.
_FEWEST, _MOST = 3, 2000


def rare_steps(
    spans: Sequence[tuple[float, float]], apart: Sequence[float], workers: int = 0, queued: int = 0
) -> dict[str, float]:
    """Return what rare steps add to a mean step, as evidence of a window; empty if there are none.

    ``spans`` holds seconds and seconds waited of each step, ``apart`` the seconds of it that are not its own: another
    process had the core, or other code ran. ``workers`` deliver in bursts, so a round of them counts as one step. While
    the loop waits for one of them, the others fill the queues: up to ``queued`` batches then come sooner.
    """
    size = max(1, workers, math.ceil(len(spans) / _MOST))
    own = [(max(0.0, took - less), max(0.0, waited - less)) for (took, waited), less in zip(spans, apart, strict=True)]
    blocks = [
        (sum(took for took, _ in own[at : at + size]), sum(waited for _, waited in own[at : at + size]))
        for at in range(0, len(own) - size + 1, size)
    ]
    if len(blocks) < _FEWEST:
        return {}
    waits, trains, rare = [], [], 0
    for at, (took, waited) in enumerate(blocks):
        around = blocks[max(0, at - _AROUND) : at + _AROUND + 1]
        usual, usually_waited, usually_trained = (
            statistics.median(times)
            for times in zip(*((took, waited, took - waited) for took, waited in around), strict=True)
        )
        # What feeds the loop changes its waits, but not the length of its own part: so both are looked at apart.
        longer = took - waited - usually_trained
        trained = longer if longer > (FAR_LONGER - 1) * usually_trained else 0.0
        late = waited - usually_waited if waited - usually_waited > (FAR_LONGER - 1) * usual else 0.0
        if not trained and not late:
            continue
        rare += 1
        sooner = -sum(min(0.0, next_ - usual) for next_, _ in blocks[at + 1 : at + 1 + math.ceil(queued / size)])
        waits.append(max(0.0, late - sooner))
        trains.append(max(0.0, trained - max(0.0, sooner - late)))
    if not rare:
        return {}
    each = 1000 / len(spans)
    return {
        "rare": float(rare),
        "rare_wait_ms": round(each * sum(waits), 4),
        "rare_train_ms": round(each * sum(trains), 4),
        "rare_wait_root": round(1000 * math.hypot(*waits), 4),
        "rare_train_root": round(1000 * math.hypot(*trains), 4),
    }

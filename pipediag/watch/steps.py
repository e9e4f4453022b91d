"""Count the steps of a running loop from outside: by numbers that it keeps itself, else by the rhythm of its stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .sampling import LocalFrame
from .stacks import DATA, TRAINS, Moment, is_worker

#: Fewest counted steps for a rate.
_FEWEST = 3
#: Factor by which the pace of a loop's counter may change between two looks: others than steps rarely grow so evenly.
_EVEN = 4.0
#: Largest number of turns from training to data, per sample, at which no turn is missed between samples.
_RARE = 0.12
#: Share of turns that were seen which a counter of steps must reach: it may begin in the middle of one.
_MOST = 0.7


@dataclass(frozen=True)
class Count:
    """Steps in a second, and how they are known."""

    per_s: float
    by: str


@dataclass(frozen=True)
class Look:
    """The whole numbers on one thread's stack at a moment, in seconds."""

    at: float
    frames: Sequence[LocalFrame]


def counted(looks: Sequence[Look], worker: Sequence[Look], moments: Sequence[Moment], seconds: float) -> Count | None:
    """Return the steps a second; None if they cannot be told.

    Args:
        looks: the loop's thread, at several times.
        worker: a loader's worker, which keeps the number of the batch that it makes.
        moments: what the loop did, sampled for ``seconds``.
    """
    turns = sum(one.kind == TRAINS and other.kind == DATA for one, other in pairwise(moments))
    number = _batches(worker)
    if number is not None:
        return Count(number, "the workers' numbers of batches")
    counter = _own_counter(looks, _MOST * turns / seconds if seconds else 0.0)
    if counter is not None:
        return counter
    if turns >= _FEWEST and turns <= _RARE * len(moments):
        return Count(turns / seconds, "the rhythm of its stacks")
    return None


def _batches(looks: Sequence[Look]) -> float | None:
    """Return the batches a second, by the numbers that a worker of torch's keeps of all workers' batches."""
    seen = []
    for look in looks:
        loops = [one for one in look.frames if is_worker((one.frame,)) and "idx" in one.numbers]
        seen += [(look.at, loops[0].numbers["idx"])] if loops else []
    pairs = [(last[0] - first[0], last[1] - first[1]) for first, last in pairwise(seen)]
    if not pairs or any(grown < 0 for _, grown in pairs):  # another epoch began
        pairs = [pair for pair in pairs if pair[1] > 0]
    if sum(grown for _, grown in pairs) < _FEWEST:
        return None
    return sum(grown for _, grown in pairs) / sum(passed for passed, _ in pairs)


def _own_counter(looks: Sequence[Look], least: float) -> Count | None:
    """Return the slowest whole number on the loop's stack that grows evenly, at ``least`` so many a second."""
    if len(looks) < 2:
        return None
    found = []
    first = looks[0]
    for depth, one in enumerate(first.frames):
        here = (one.frame.file, one.frame.name)
        same = [look.frames[depth] for look in looks if len(look.frames) > depth]
        if len(same) < len(looks) or any((other.frame.file, other.frame.name) != here for other in same):
            break
        for name in one.numbers:
            values = [other.numbers.get(name, -1) for other in same]
            paces = [
                (after - before) / (later.at - earlier.at)
                for before, after, earlier, later in zip(values, values[1:], looks, looks[1:], strict=False)
            ]
            whole = values[-1] - values[0]
            if min(values) < 0 or min(paces) <= 0 or whole < _FEWEST or max(paces) > _EVEN * min(paces):
                continue
            pace = whole / (looks[-1].at - first.at)
            if pace >= least:
                found.append((pace, name, f"{one.frame.file}:{one.frame.line}"))
    if not found:
        return None
    pace, name, where = min(found)
    return Count(pace, f"the loop's own counter {name}, {where}")


def blocks(moments: Sequence[Moment], seconds: float, steps: int, most: int = 8) -> list[tuple[int, float, float]]:
    """Divide what was seen into stretches: the steps, the seconds and the seconds of waiting of each.

    Every stretch has the same pace: only the number of all steps is known.
    """
    count = max(1, min(most, steps, len(moments) // 4))
    found = []
    for number in range(count):
        part = moments[len(moments) * number // count : len(moments) * (number + 1) // count]
        here = steps * (number + 1) // count - steps * number // count
        took = seconds * here / steps
        found.append((here, took, took * sum(one.waiting for one in part) / max(1, len(part))))
    return found

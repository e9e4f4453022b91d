"""Count the steps of a running loop from outside: by numbers that it keeps itself, else by the rhythm of its stacks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .sampling import LocalFrame, Stack
from .stacks import Moment, is_worker, part_of_step

#: Fewest steps for a rate: by numbers that count them, and by turns, of which one is missed at each end.
_FEWEST, _FEWEST_TURNS = 3, 8
#: Factor by which the pace of a loop's counter may change between two looks: others than steps rarely grow so evenly.
_EVEN = 3.0
#: Turns that are seen, as a share of those between moments in no order: of more, too many fall between two samples.
_IN_ORDER = 0.5
#: Least common divisor of what a number is at all looks from which on it counts samples.
_SAMPLES_OF_A_BATCH = 4
#: What torch's worker calls the number of its batch; reads of it in a row, of which the middle one is taken.
_BATCH, READS = "idx", 3
#: Share of the turns that were seen which a counter of steps must reach: it may begin in the middle of one.
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
    pid: int
    frames: Sequence[LocalFrame]


#: Seconds and the stacks of the loop's thread in them.
Sampled = tuple[float, Sequence[Stack]]


def counted(looks: Sequence[Look], worker: Sequence[Look], stretches: Sequence[Sampled]) -> Count | None:
    """Return the steps a second; None if they cannot be told.

    ``looks`` are at the loop's thread, ``worker`` at a loader's worker, which keeps the number of the batch it makes.
    """
    batches = [_pace(one, other, _BATCH) for one, other in pairwise(worker) if one.pid == other.pid]
    if known := [pace for pace in batches if pace]:
        passed, grown = map(sum, zip(*known, strict=True))
        if grown >= _FEWEST:
            return Count(grown / passed, "the workers' numbers of batches")
    turns = [(seconds, *turns_of(stacks)) for seconds, stacks in stretches]
    least = max((_MOST * count / seconds for seconds, count, _ in turns), default=0.0)
    depth = _loop_depth([stack for _, stacks in stretches for stack in stacks])
    if (counter := _own_counter(looks, depth, least)) is not None:
        return counter
    paces = [(seconds, count) for seconds, count, complete in turns if complete]
    most = sum(count for _, count in paces)
    if most < _FEWEST_TURNS or len(paces) < len(turns):
        return None
    per_s = most / sum(seconds for seconds, _ in paces)
    fastest = max((count / seconds for seconds, count in paces if count >= _FEWEST), default=per_s)
    # A stretch of more samples that shows more turns says that others have missed some.
    return Count(per_s, "the rhythm of its stacks") if fastest <= per_s / _MOST else None


def _pace(one: Look, other: Look, name: str, depth: int | None = None) -> tuple[float, int] | None:
    """Return the seconds between two looks and by how much a number grew; None if it did not, as in a new epoch.

    ``depth`` is the frame that holds it; if it is None, the frame is that of a worker's loop.
    """
    before, after = (_number(look, name, depth) for look in (one, other))
    return (other.at - one.at, after - before) if before is not None and after is not None and after > before else None


def _number(look: Look, name: str, depth: int | None = None) -> int | None:
    held = [frame for frame in look.frames if is_worker((frame.frame,))] if depth is None else look.frames[depth:]
    return held[0].numbers.get(name) if held else None


def middle(looks: Sequence[Look]) -> Look | None:
    """Return the look at a worker with the middle number of a batch, of three or more in a row; None of fewer.

    A process that runs may be read while it changes: of 70 such numbers, two were not those of any batch.
    """
    numbered = sorted((number, at) for at, look in enumerate(looks) if (number := _number(look, _BATCH)) is not None)
    return looks[numbered[len(numbered) // 2][1]] if len(numbered) >= READS else None


def _own_counter(looks: Sequence[Look], within: int, least: float) -> Count | None:
    """Return the slowest number on the outer ``within`` frames that grows evenly, at ``least`` so many a second.

    A number that is a multiple of the same larger one at every look counts samples, not steps.
    """
    found = []
    for depth, frames in enumerate(zip(*(look.frames[: within or None] for look in looks), strict=False)):
        if len({(one.frame.file, one.frame.name) for one in frames}) > 1:
            break
        for name in frames[0].numbers:
            if math.gcd(*(one.numbers.get(name, 0) for one in frames)) >= _SAMPLES_OF_A_BATCH:
                continue
            grew = [pace for one, other in pairwise(looks) if (pace := _pace(one, other, name, depth))]
            each = [grown / passed for passed, grown in grew]
            whole = sum(grown for _, grown in grew)
            if whole >= _FEWEST and max(each) <= _EVEN * min(each):
                found.append((whole / sum(passed for passed, _ in grew), name, frames[0].frame))
    found = [one for one in found if one[0] >= least]
    if not found:
        return None
    per_s, name, frame = min(found)
    return Count(per_s, f"the loop's own counter {name}, {frame.file}:{frame.line}")


def turns_of(stacks: Sequence[Stack]) -> tuple[int, bool]:
    """Return how often a loop's stacks went back to an earlier part of its step, and whether those are all its steps.

    A step draws a batch, runs forward, backward, and updates. A loop that does so twice in a step, as with two
    optimizers, has them at different lines: its line must not go forward at a turn.
    """
    depth = _loop_depth(stacks)
    trained = [(stack, part) for stack in stacks if (part := part_of_step(stack)) is not None]
    places = [(stack[depth - 1].line, part) for stack, part in trained if depth]
    turns = sum(part < before and line <= was for (was, before), (line, part) in pairwise(places))
    counts = Counter(part for _, part in places)
    at_random = (1 - sum((count / len(places)) ** 2 for count in counts.values())) / 2
    return turns, turns <= _IN_ORDER * at_random * len(places)


def _loop_depth(stacks: Sequence[Stack]) -> int:
    """Return the number of outer frames that are the same in all parts of a step: the last of them is the loop's."""
    trained = [stack for stack in stacks if part_of_step(stack) is not None]
    depth = 0
    for frames in zip(*trained, strict=False):
        if len({(frame.file, frame.name) for frame in frames}) > 1:
            break
        depth += 1
    return depth


def blocks(
    stretches: Sequence[tuple[float, Sequence[Moment]]], steps: int, most: int = 8
) -> list[tuple[int, float, float]]:
    """Divide what was seen into blocks: the steps, the seconds and the seconds of waiting of each.

    Every block has the same pace, as only the number of all steps is known, and counts each stretch by its seconds.
    """
    whole = sum(seconds for seconds, _ in stretches)
    weighted = [(seconds / len(moments), one.waiting) for seconds, moments in stretches for one in moments]
    count = max(1, min(most, steps, len(weighted) // 4))
    edges = [whole * number / count for number in range(count + 1)]
    waited, at = [0.0] * count, 0.0
    for weight, waits in weighted:
        for number in range(count) if waits else ():
            waited[number] += max(0.0, min(at + weight, edges[number + 1]) - max(at, edges[number]))
        at += weight
    found = []
    for number in range(count):
        here = steps * (number + 1) // count - steps * number // count
        took = whole * here / steps
        found.append((here, took, min(took, took * waited[number] * count / whole)))
    return found

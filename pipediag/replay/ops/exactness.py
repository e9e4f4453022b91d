"""Say of each op whether it gives the CPU's pixels by construction, or how far they may be off.

A certificate only compares samples. On other samples an op is exact if it copies pixels, computes in integers, or
rounds each step once, in the order of torchvision's function on the CPU or of Pillow's. The other ops call the CPU's
power function, or take sums whose order the CPU's library chooses. Such a sum may be rounded to the next level, and a
warp may pick the neighbour of a pixel.

``tests/replay/ops/test_exactness.py`` compares every op that is called exact here with torchvision, on random images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch

from .op import Kind, Op, Shape, op_of

#: How far an op's pixels may be off; None if they are equal by construction.
Deviation: TypeAlias = str | None

ONE_LEVEL = "by one level"
LAST_DIGITS = "in the last digits"
NEIGHBOUR = "by a neighbouring pixel"
UNBOUNDED = "without a known bound"

_INPUTS = 1024  # limit on kinds of ops whose deviation is remembered


class Input(NamedTuple):
    """Image to which an op is applied."""

    shape: Shape
    dtype: torch.dtype
    by: Literal["v2", "v1", "pillow"] = "v2"  # whose function the op replays: torchvision's, or Pillow's


Rule: TypeAlias = Callable[[Op, Input], Deviation]


def deviations(ops: Sequence[Op], given: Input) -> dict[str, str]:
    """Return how far the pixels may be from the CPU's after ``ops``, by the names of those that are not exact."""
    found = {}
    for op in ops:
        operation = op.kind.operation
        rule = operation.rule_of_v1 if given.by == "v1" and operation.rule_of_v1 is not None else operation.rule
        if off := rule(op, given):
            found[op.name] = off
        given = Input(op.shape, op.dtype, given.by)
    return found


@functools.lru_cache(_INPUTS)
def may_be_off(kind: Kind, shape: Shape, dtype: torch.dtype) -> bool:
    """Return whether the pixels may differ from the CPU's after an op of this kind, whoever's function made it."""
    op = op_of((kind, shape, (), None))
    return any(deviations([op], Input(shape, dtype, by)) for by in ("v2", "v1"))


def always(deviation: Deviation) -> Rule:
    return lambda op, given: deviation


exact = always(None)
unbounded = always(UNBOUNDED)


def rounded_once(op: Op, given: Input) -> Deviation:
    """Return exact, except for half precision and float64, which were not compared."""
    return None if given.dtype in (torch.uint8, torch.float32) else LAST_DIGITS


def approximate(op: Op, given: Input) -> Deviation:
    return LAST_DIGITS if given.dtype.is_floating_point else ONE_LEVEL


def blended(op: Op, given: Input) -> Deviation:
    """Return exact if the CPU rounds a product and a sum once, as the kernels do."""
    return rounded_once(op, given) if _cpu_fuses(alike=False) else approximate(op, given)


def blended_with_mean(op: Op, given: Input) -> Deviation:
    pixels = given.shape[-2] * given.shape[-1]
    fits = pixels * 255 < 2**24  # a float32 holds the sum of these bytes
    fused = _cpu_fuses(alike=True) or torch.Size(given.shape).numel() % _VECTOR == 0
    return blended(op, given) if given.dtype == torch.uint8 and fits and fused else approximate(op, given)


def sharpened(op: Op, given: Input) -> Deviation:
    """Return exact for bytes: their smoothed sum is a whole number in any order."""
    return blended(op, given) if given.dtype == torch.uint8 else approximate(op, given)


#: Vectorized code on the CPU takes two vectors of up to 16 numbers at a time, and the rest one by one.
_VECTOR = 32


@functools.cache
def _cpu_fuses(alike: bool) -> bool:
    """Return whether torch on this CPU rounds ``x + factor * y`` only once, also for the last pixels, which fill no
    vector. If ``y`` is one number for all pixels (``alike``), that depends on the release."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(16):
        x, y = torch.rand(2, 3, 5, 19, generator=generator)
        y = y[:1, :1, :1] if alike else y[:1]
        once = x.double().add_(y.double(), alpha=0.25 + 2**-20).float()
        if not torch.equal(x.add(y, alpha=0.25 + 2**-20), once):
            return False
    return True

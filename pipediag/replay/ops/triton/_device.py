"""Define device functions that several kernels call."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

_SHIFT = tl.constexpr(12582912.0)  # 1.5 * 2**23


@triton.jit
def round_half_even(x):
    """Round float32 to whole numbers as ``nearbyint`` does, for ``|x| < 2**22``.

    A float32 of the size of the sum has no fraction, so the addition itself rounds.
    """
    return (x + _SHIFT) - _SHIFT


@triton.jit
def pick(channel, first, second, third, fourth):
    """Return the argument of a channel, 0 to 3."""
    return tl.where(channel < 2, tl.where(channel == 0, first, second), tl.where(channel == 2, third, fourth))


@triton.jit
def divide(x, y):
    """Return the quotient of two numbers of one floating dtype, rounded to nearest; ``/`` is approximate in float32."""
    return tl.div_rn(x, y) if x.dtype == tl.float32 else x / y

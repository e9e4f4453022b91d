"""Measure how far results are from the CPU's, with as many threads as a worker has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layout import same_strides

#: Largest allowed difference of floating-point results, as a fraction of their range.
FLOAT_TOLERANCE = 1e-5
#: Half-precision results may differ by two units in the last place.
_HALF_ULPS = 2
#: Integer results may differ by one level on this fraction of the elements.
INTEGER_SHARE = 1e-3


@dataclass(frozen=True)
class Difference:
    """Difference between results and the CPU's results."""

    #: Maximum over all elements; a fraction of the range for floating-point results, levels for integers.
    largest: float = 0.0
    off: float = 0.0  # fraction of elements that differ by more than the tolerance (floats) or at all (integers)
    floating: bool = True  # whether the results are floating-point
    tolerance: float = FLOAT_TOLERANCE  # the largest that is allowed of floating-point results

    @property
    def equal(self) -> bool:
        return self.largest == 0

    @property
    def within(self) -> bool:
        if self.floating:
            return self.largest <= self.tolerance
        return self.largest <= 1 and self.off <= INTEGER_SHARE


def difference(ours: Tensor, reference: Tensor) -> Difference:
    """Return how far ``ours`` is from ``reference``, both in CPU memory; infinitely far if shape or dtype differ."""
    floating = reference.is_floating_point()
    tolerance = max(FLOAT_TOLERANCE, _HALF_ULPS * torch.finfo(reference.dtype).eps) if floating else FLOAT_TOLERANCE
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return Difference(math.inf, 1.0, floating, tolerance)
    if torch.equal(ours, reference):  # usually true, and the comparison below takes a hundred times as long
        return Difference(floating=floating, tolerance=tolerance)
    want, got = reference.double(), ours.double()
    apart = (got - want).abs_().masked_fill_(_equal_elements(got, want), 0)
    if floating:
        apart /= _range(want)
    off = apart > (tolerance if floating else 0)
    return Difference(float(apart.nan_to_num(math.inf).max()), float(off.double().mean()), floating, tolerance)


def equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and elements, infinities and NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(_equal_elements(one, other).all())


def _equal_elements(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def _range(values: Tensor) -> float:
    """Return the span from the lowest to the highest finite value, at least 1."""
    infinite = ~values.isfinite()
    extent = float(values.masked_fill(infinite, -math.inf).max() - values.masked_fill(infinite, math.inf).min())
    return max(1.0, extent)


class Total:
    """Difference over several pairs of results."""

    def __init__(self) -> None:
        self._parts: list[tuple[Difference, int]] = []  # with the number of elements of each

    @property
    def samples(self) -> int:
        return len(self._parts)

    def add(self, ours: Tensor, reference: Tensor, form: bool = False) -> bool:
        """Add a pair of results, and return whether they agree within the tolerance, and in type and strides if
        ``form`` is set."""
        one = difference(ours.as_subclass(Tensor).cpu(), reference.as_subclass(Tensor))
        if form and not (type(ours) is type(reference) and same_strides(ours, reference)):
            one = replace(one, largest=math.inf, off=1.0)
        self._parts.append((one, reference.numel()))
        return one.within

    @property
    def difference(self) -> Difference:
        elements = max(1, sum(number for _, number in self._parts))
        return Difference(
            largest=max((one.largest for one, _ in self._parts), default=0.0),
            off=sum(one.off * number for one, number in self._parts) / elements,
            floating=any(one.floating for one, _ in self._parts),
            tolerance=max((one.tolerance for one, _ in self._parts), default=FLOAT_TOLERANCE),
        )


class Compared:
    """Our differences from the CPU, and torchvision's own for the samples where ours exceed the tolerance."""

    def __init__(self) -> None:
        self.ours = Total()
        self.theirs = Total()


@contextmanager
def as_in_a_worker() -> Iterator[None]:
    """Use one thread for torch's operators inside the context, as every ``DataLoader`` worker does.

    Results made inside are compared with workers' results. Also, tensors as small as samples gain little from more
    threads: on cores that other processes need too, the threads wait for each other many times longer than they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Check that a form of a callable on the device gives the CPU's results, for any batching of the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .forms import How
from .held import Refused
from .reference import Group, told

#: Batch sizes that are tried besides all samples: up to four, because code that checks the number of channels may take
#: such a batch for an image.
_SIZES = (1, 2, 3, 4)
#: Allowed difference of floats, as a fraction of their range, and of integers, in levels; and the fraction of integers
#: that may differ.
_TOLERANCE, _LEVELS, _SHARE = 1e-5, 1, 1e-3


def check_agreement(apply: Callable[[Tensor], Tensor], how: How, groups: Sequence[Group], device: torch.device) -> None:
    """Check the results of ``apply`` on the device.

    Raises:
        Refused: they differ from the CPU's, or the callable fails.
    """
    scale = range_of(groups)
    try:
        for group in groups:
            inputs, expected = group.inputs.to(device), group.expected.to(device)
            for picked in _groupings(len(inputs), how):
                chosen = picked.to(device)
                check_equal(apply(inputs[chosen]), expected[chosen], scale)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"on the device it raises {told(error)}") from error


def _groupings(number: int, how: How) -> Iterator[Tensor]:
    """Yield batches of sample indices: all ``number`` samples, all in another order, and all in small batches."""
    everything = torch.arange(number)
    yield everything
    if how == "loop":  # runs them one by one anyway
        return
    yield torch.randperm(number, generator=torch.Generator().manual_seed(0))
    for size in _SIZES:
        if size < number:
            yield from everything.split(size)


def range_of(groups: Sequence[Group]) -> float:
    """Return the unit of differences: the range of all finite results; if it is zero, their magnitude, or else 1."""
    results = torch.cat([_number(group.expected).double().flatten() for group in groups])
    finite = results[results.isfinite()]
    if not finite.numel():
        return 1.0
    low, high = float(finite.min()), float(finite.max())
    return high - low or abs(high) or 1.0


def check_equal(actual: Tensor, expected: Tensor, scale: float) -> None:
    """Check one batch of results against those of the CPU, whose range is ``scale``.

    Raises:
        Refused: the difference is too large, or device, shape or dtype differ.
    """
    if actual.device.type != expected.device.type:
        raise Refused("its result is not on the device")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Refused("its result has another shape or dtype on the device")
    if not expected.numel():
        return
    a, b = _number(actual), _number(expected)
    finite = a.isfinite() & b.isfinite()
    if not (finite | (a == b) | (a.isnan() & b.isnan())).all():
        raise Refused("its result on the device is not finite where the CPU's is, or the other way round")
    gaps = torch.where(finite, (a - b).abs(), 0)
    largest = float(gaps.max())
    if expected.is_floating_point() or expected.is_complex():
        agrees = largest / scale <= _TOLERANCE
    else:
        allowed = 0 if expected.dtype == torch.bool else _LEVELS
        agrees = largest <= allowed and int((gaps > 0).sum()) <= _SHARE * gaps.numel()
    if not agrees:
        raise Refused(f"its result on the device differs from the CPU's by {largest / scale:.2g} of the range")


def _number(tensor: Tensor) -> Tensor:
    """Return the elements in a dtype in which they can be compared."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.float() if tensor.element_size() < 4 else tensor
    return tensor.long()

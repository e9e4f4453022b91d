"""Do arithmetic on single pixels: conversions, normalization, and the steps that other kernels are built from.

When torchvision applies a Python float to a tensor, torch rounds that float once, to the precision in which it computes
(float32 for half precision and for uint8). The helpers here round a tensor of float64 parameters at the same point, so
a batch gets the same bits as its images one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import to_dtype_image

from ..exactness import exact, rounded_once
from ..op import NotRecordable, Op, State
from ..operation import Functional, Operation, Static


def float_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which pixels of ``x`` are computed: its own, or float32 for integers."""
    return x.dtype if x.is_floating_point() else torch.float32


def largest(dtype: torch.dtype) -> int:
    """Return the largest value of images of ``dtype``: 1, or 255 for uint8."""
    return 1 if dtype.is_floating_point else 255


def has_colour(x: Tensor) -> bool:
    """Return whether images have 3 channels rather than 1; raise ``TypeError`` for another number."""
    channels = x.shape[1]
    if channels not in (1, 3):
        raise TypeError(f"images with {channels} channels, where 1 or 3 are possible")
    return bool(channels == 3)


def per_sample(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return parameters ``(N,)``, rounded for images of a floating ``dtype``, as ``(N, 1, 1, 1)``."""
    return values.to(torch.float64 if dtype == torch.float64 else torch.float32)[:, None, None, None]


def scaled(x: Tensor, factor: float | Tensor) -> Tensor:
    """Return ``x * factor``, one for all samples or ``(N,)``, as a new tensor of :func:`float_dtype`."""
    out = torch.empty_like(x, dtype=float_dtype(x))
    return torch.mul(x, per_sample(factor, out.dtype) if isinstance(factor, Tensor) else factor, out=out)


def add_scaled_(out: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Add ``other * factor`` (one factor per sample) to the floating ``out`` in place, rounding only once.

    ``out.add_(other, alpha=...)``, which torchvision's kernels use, is a fused multiply-add on the CPU. float64 holds
    the product of two float32 numbers exactly, so this sum is rounded like the fused one on any device. A second
    rounding would become visible when values that should be whole are truncated to uint8.
    """
    return out.addcmul_(other, per_sample(factor, out.dtype).to(torch.float64))


def to_range(out: Tensor, dtype: torch.dtype) -> Tensor:
    """Clamp a temporary tensor, in place, to the range of images of ``dtype`` and convert it; uint8 truncates
    fractions."""
    return out.clamp_(0, largest(dtype)).to(dtype)


def converted(x: Tensor, dtype: torch.dtype, *, scale: bool) -> Tensor:
    """Convert a batch as ``to_dtype_image`` of torchvision, bit by bit; it may return ``x`` itself.

    ``scale`` says whether values are mapped from the range of one dtype to that of the other.
    """
    if scale and x.dtype == torch.uint8 and dtype in (torch.float32, torch.float16, torch.bfloat16):
        # Conversion and multiplication in one pass over the memory. A Python number would be multiplied in the default
        # dtype, which a script may change.
        return torch.mul(x, x.new_full((1, 1, 1), 1.0 / 255, dtype=torch.float32), out=torch.empty_like(x, dtype=dtype))
    return to_dtype_image(x, dtype, scale=scale)


def converted_by_division(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Divide integers ``(N, C, H, W)`` by their dtype's largest value, and return them as a floating ``dtype``.

    torchvision's older conversions (``to_tensor``, ``convert_image_dtype``) do this; multiplying by the inverse differs
    in the last bit. Bit-equal on any device: on a GPU, division by a Python number would become such a multiplication.
    """
    divisor = torch.full((1,), float(torch.iinfo(x.dtype).max), dtype=dtype, device=x.device)
    return torch.div(x, divisor, out=torch.empty_like(x, dtype=dtype))


def normalized(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalize a floating batch as ``normalize_image`` of torchvision, bit by bit, with a mean and a standard
    deviation for each channel, or for all.
    """
    if not x.is_floating_point():
        raise TypeError(f"normalize takes floating images, not {x.dtype}")
    if not all(std):
        raise ValueError("a standard deviation of zero")
    return x.sub(per_channel(mean, x)).div_(per_channel(std, x))


def per_channel(values: Sequence[float], x: Tensor) -> Tensor:
    """Return ``values`` as ``(C, 1, 1)`` on the device of ``x``, and of its dtype.

    They are made there by fills, since a copy from the host would block it.

    The tensors are cached per stream, whose order guarantees that the fills come first. They are not cached during a
    graph capture, since memory of a graph has no values before it is replayed.
    """
    values = tuple(float(value) for value in values)
    if not x.is_cuda:
        return _filled(values, x.dtype, x.device, 0)
    if torch.cuda.is_current_stream_capturing():
        return _filled.__wrapped__(values, x.dtype, x.device, 0)
    return _filled(values, x.dtype, x.device, torch.cuda.current_stream(x.device).cuda_stream)


@lru_cache(maxsize=64)
def _filled(values: tuple[float, ...], dtype: torch.dtype, device: torch.device, stream: int) -> Tensor:
    return torch.cat([torch.full((1, 1, 1), value, dtype=dtype, device=device) for value in values])


# ---- operations


def normalize(state: State, mean: Any, std: Any, inplace: bool = False) -> list[Op]:
    means, stds = (tuple(map(float, [one] if isinstance(one, (int, float)) else one)) for one in (mean, std))
    if {len(means), len(stds)} - {1, state.channels}:
        raise NotRecordable(f"{len(means)} means for {state.channels} channels")
    return [state.op("normalize", static=(means, stds))]


def to_dtype(state: State, dtype: torch.dtype = torch.float, scale: bool = False) -> list[Op]:
    return _converted(state, dtype, "multiply" if scale and not state.mask else "cast")


def _converted(state: State, dtype: torch.dtype, how: str) -> list[Op]:
    return [] if state.dtype == dtype else [state.op("to_dtype", static=(dtype, how), dtype=dtype)]


def convert_image_dtype(state: State, dtype: torch.dtype = torch.float) -> list[Op]:
    """Encode the v1 conversion, which divides where v2 multiplies by the inverse."""
    whole_to_float = dtype.is_floating_point and not state.dtype.is_floating_point
    return _converted(state, dtype, "divide" if whole_to_float else "multiply")


def _to_dtype(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    dtype, how = static
    if how == "divide":
        return converted_by_division(x, dtype)
    return converted(x, dtype, scale=how == "multiply")


OPERATIONS = (
    Operation("to_dtype", _to_dtype, exact, each_pixel=True),
    Operation("normalize", lambda x, numbers, static, bulk: normalized(x, *static), rounded_once, each_pixel=True),
)
FUNCTIONALS = (Functional("normalize", normalize, in_place=2), Functional("to_dtype", to_dtype))

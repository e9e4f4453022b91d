"""Blur a batch of 8-bit images ``(N, C, H, W)`` as Pillow's ``BoxBlur`` and ``GaussianBlur`` do, bit by bit.

Formulas: ``src/libImaging/BoxBlur.c``. A Gaussian is three box blurs in a row. A box may extend by a fraction of a
pixel at both ends; its sums are whole numbers, so they are exact on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import PIL.ImageFilter
import torch
from numpy import float32, floor, sqrt
from torch import Tensor
from torch.nn.functional import pad

from ..arguments import pair
from ..exactness import exact
from ..op import NotRecordable, Op, State
from ..operation import Fused, Kernel, Operation, from_triton

#: Box blurs that stand for one Gaussian.
PASSES = 3

_FRACTION_BITS = 24


def gaussian_radius(sigma: float) -> float:
    """Return the radius of the :data:`PASSES` boxes that stand for a Gaussian; Pillow computes it in float32."""
    variance = float32(sigma) * float32(sigma) / float32(PASSES)
    length = float32(sqrt(12.0 * float(variance) + 1.0))
    whole = float32(floor((float(length) - 1.0) / 2.0))
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    part /= 6 * (variance - (whole + 1) * (whole + 1))
    return float(whole + part)


def box_numbers(radius: float) -> tuple[int, int, int]:
    """Return the numbers of :func:`box_blur` for one direction: the whole radius, the weight of a pixel within it, and
    the weight of the two pixels beyond."""
    extent = float32(radius)
    whole = int(extent)
    weight = int(float32(1 << _FRACTION_BITS) / (extent * 2 + 1))
    return whole, weight, ((1 << _FRACTION_BITS) - (2 * whole + 1) * weight) // 2


def box_blur(x: Tensor, numbers: Tensor, *, passes: int) -> Tensor:
    """Blur with a box of its own for each sample, ``passes`` times in each direction; beyond the border lie the
    border's pixels. ``numbers`` is ``(N, 6)``: :func:`box_numbers` across, then down.
    """
    across, down = numbers.long()[:, :, None, None, None].split(3, dim=1)
    for _ in range(passes):
        x = _blurred(x, across)
    x = x.transpose(-1, -2)
    for _ in range(passes):
        x = _blurred(x, down)
    return x.transpose(-1, -2)


def _blurred(x: Tensor, numbers: Tensor) -> Tensor:
    """Blur along the last dimension by numbers ``(N, 3, 1, 1, 1)``."""
    radius, weight, weight_beyond = numbers.unbind(1)
    last = x.shape[-1] - 1
    position = torch.arange(last + 1, device=x.device)
    first, end = position - radius, position + radius
    begins, ends = first.clamp(min=0), end.clamp(max=last)
    sums = pad(x.cumsum(-1, dtype=torch.int32), (1, 0))
    total = _at(sums, ends + 1) - _at(sums, begins) + x[..., :1] * (begins - first) + x[..., -1:] * (end - ends)
    beyond = _at(x, (first - 1).clamp_(min=0)).int() + _at(x, (end + 1).clamp_(max=last))
    value = total * weight + beyond * weight_beyond + (1 << (_FRACTION_BITS - 1))
    return (value >> _FRACTION_BITS).to(torch.uint8)


def _at(x: Tensor, positions: Tensor) -> Tensor:
    """Return the values at positions ``(N, 1, 1, W)`` of the last dimension."""
    return x.gather(-1, positions.expand(*x.shape[:-1], -1))


# ---- operations


def filtered(state: State, filter: Any) -> list[Op]:
    kind = type(filter)
    if kind is PIL.ImageFilter.SMOOTH:
        return [state.op("pillow_smooth")]
    if kind not in (PIL.ImageFilter.GaussianBlur, PIL.ImageFilter.BoxBlur):
        raise NotRecordable(f"the filter {kind.__name__} of Pillow has no kernel on the device")
    radii = pair(filter.radius)
    if min(radii) < 0:
        raise NotRecordable("a picture is blurred by a negative radius")
    passes = 1
    if kind is PIL.ImageFilter.GaussianBlur:
        across, down = radii
        radii = gaussian_radius(across), gaussian_radius(down)
        passes = PASSES
    numbers = [number for radius in radii for number in box_numbers(radius)]
    return [state.op("pillow_box_blur", *numbers, static=(passes,))]


def _kernel(blur: Callable[..., Tensor]) -> Kernel:
    return lambda x, numbers, static, bulk: blur(x, numbers, passes=static[0])


_FAST = Operation("fast_pillow_box_blur", _kernel(from_triton("pillow_blur", "box_blur")))

OPERATIONS = (Operation("pillow_box_blur", _kernel(box_blur), exact, fused=Fused(_FAST, on_bytes=True)),)
METHODS = {"filter": filtered}

"""Define what sets Pillow's resizing apart: its filters, the order of its passes, and its choice of nearest pixels.

Formulas: ``src/libImaging/Resample.c`` and, for the nearest pixels, ``ImagingScaleAffine`` in ``Geometry.c``. Both
compute in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import PIL.Image
import torch
from torch import Tensor

#: Fractional bits of the weights of 8-bit images: 32 less the 8 of a pixel and 2 for sums that overshoot.
FRACTION_BITS = 22

#: Direction of a pass. Pixels are rounded after each pass, so the result depends on their order.
Pass: TypeAlias = Literal["across", "down"]


def first_pass(box: tuple[int, int], size: tuple[int, int]) -> Pass:
    """Return the pass that Pillow makes first to resize an image from ``box`` to ``size``, both height and width."""
    less_high, less_wide = box[0] - size[0], box[1] - size[1]
    return "down" if less_high > 0 and less_high > 2 * less_wide and _may_go_down_first() else "across"


@functools.cache
def _may_go_down_first() -> bool:
    """Return whether Pillow begins with the vertical pass if that is less work, as it does from release 13 on.

    It is tested on an image for which the two orders differ.
    """
    image = PIL.Image.frombytes("L", (2, 5), bytes(39 * k % 251 for k in range(10)))
    bilinear = PIL.Image.Resampling.BILINEAR
    return image.resize((5, 3), bilinear) == image.resize((2, 3), bilinear).resize((5, 3), bilinear)


class Filter(NamedTuple):
    """Filter for resizing."""

    radius: float  # number of pixels to either side that it reads if it does not shrink the image
    #: Returns the weights of pixels at distances from the centre, which may be negative.
    weight: Callable[[Tensor], Tensor]


def _hamming(x: Tensor) -> Tensor:
    # Pillow's two constants are float32.
    at_centre, swing = (torch.tensor(value, dtype=torch.float32).item() for value in (0.54, 0.46))
    value = x.sinc() * (at_centre + swing * (x * math.pi).cos())
    return value.masked_fill_(x.abs() >= 1, 0).masked_fill_(x == 0, 1)


def cubic(x: Tensor, a: float) -> Tensor:
    """Return the cubic convolution kernel of Keys (1981), whose slope at distance 1 is ``a``, at distances ``x``."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, far).masked_fill_(x >= 2, 0)


FILTERS = {
    "box": Filter(0.5, lambda x: ((x > -0.5) & (x <= 0.5)).to(x.dtype)),
    "bilinear": Filter(1, lambda x: (1 - x.abs()).clamp_(min=0)),
    "hamming": Filter(1, _hamming),
    "bicubic": Filter(2, functools.partial(cubic, a=-0.5)),
    "lanczos": Filter(3, lambda x: (x.sinc() * (x / 3).sinc()).masked_fill_((x < -3) | (x >= 3), 0)),
}


def nearest_pixels(extent: Tensor, out: int) -> Tensor:
    """Return the ``out`` pixels ``(N, out)``, counted from 0, that Pillow picks from ``extent`` ``(N,)`` pixels.

    It adds up the positions one by one. Many lie exactly between two pixels, where the rounding of the sum decides.
    """
    step = extent.to(torch.float64) / torch.full_like(extent, out, dtype=torch.float64)
    positions = [step * 0.5]
    for _ in range(out - 1):
        positions.append(positions[-1] + step)
    return torch.minimum(torch.stack(positions, 1).floor_(), extent[:, None] - 1)

"""Warp a batch of 8-bit images ``(N, C, H, W)`` as Pillow's ``Image.transform`` does, bit by bit.

Images have one channel (mode L) or three (RGB), and every sample has a transform of its own. Formulas:
``src/libImaging/Geometry.c``, whose arithmetic is the same in releases 9 to 13. Pillow has three ways to warp:
it adds up positions along an axis (nearest pixels, no rotation), it computes them in 16.16 fixed point (nearest pixels,
affine), or it computes each in float64 (everything else). :func:`affine_way` chooses as Pillow does.

Every product and sum is rounded by itself, as Pillow's builds for x86 do it. So the kernels use no fused multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .pointwise import per_channel

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
#: Colour outside the image: one level for each channel.
Fill: TypeAlias = Sequence[float]
#: Takes images, columns, rows and the fill.
_Sampler: TypeAlias = Callable[[Tensor, Tensor, Tensor, Fill], Tensor]

#: Limit on the values that are interpolated at once: 32 Mi, of 8 bytes each.
_PIXELS_AT_ONCE = 1 << 25

#: Coordinates from here on do not fit into 16.16 fixed point.
_BEYOND_FIXED_POINT = 32768.0


class Way(NamedTuple):
    """How Pillow applies an affine matrix with nearest pixels: the numbers of :func:`affine_in_fixed_point`, or the
    positions of :func:`pick`."""

    numbers: tuple[int, ...] = ()
    positions: Tensor | None = None


def affine_way(matrix: Sequence[float], source: tuple[int, int], size: tuple[int, int]) -> Way | None:
    """Return how Pillow picks nearest pixels for a matrix, or None if it does so in a way that has no kernel.

    Args:
        matrix: six numbers; the result's pixel (x, y) is taken from (ax + by + c, dx + ey + f).
        source: height and width of the image.
        size: height and width of the result.
    """
    a, b, c, d, e, f = matrix
    height, width = size
    if b == d == 0:
        return Way(positions=_positions((e, a), (f, c), source, size))
    corners = [(x, y) for x in (0, width) for y in (0, height)]
    ends = [end for x, y in corners for end in (x * a + y * b + c, x * d + y * e + f)]
    parts = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    if not all(abs(value) < _BEYOND_FIXED_POINT for value in (*ends, *parts)):
        return None
    return Way(tuple([math.floor(part * 65536.0 + 0.5) for part in parts]))


def _positions(
    steps: tuple[float, float], offsets: tuple[float, float], source: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Return the row for each row of the result, then the column for each column, as int32; -1 is outside."""
    found = []
    for step, offset, old, new in zip(steps, offsets, source, size, strict=True):
        terms = np.full(new, step)
        terms[:1] = offset + step * 0.5
        at = np.add.accumulate(
            terms
        )  # one by one: the rounding of each sum matters where it is close to a pixel's edge
        found.append(np.where((at >= 0) & (at < old), at, -1).astype(np.int32))
    return torch.from_numpy(np.concatenate(found))


def pick(x: Tensor, positions: Tensor, *, size: tuple[int, int], fill: Fill) -> Tensor:
    """Scale and shift with nearest pixels.

    Args:
        x: images ``(N, C, H, W)``.
        positions: integers ``(N, height + width)``: the row for each row of the result, then the columns; -1 is
            outside.
        size: height and width of the result.
        fill: colour outside the images.
    """
    rows, columns = positions.long().split(size, dim=1)
    rows, columns = rows[:, :, None], columns[:, None, :]
    return _filled(_gathered(x, rows.clamp(min=0), columns.clamp(min=0)), (rows >= 0) & (columns >= 0), fill)


def affine_in_fixed_point(x: Tensor, numbers: Tensor, *, size: tuple[int, int], fill: Fill) -> Tensor:
    """Warp by affine matrices with nearest pixels, in 16.16 fixed point.

    Args:
        x: images ``(N, C, H, W)``.
        numbers: whole numbers ``(N, 6)`` from :func:`affine_way`.
        size: height and width of the result.
        fill: colour outside the images.
    """
    a, b, c, d, e, f = numbers.long()[:, :, None, None].unbind(1)
    across = torch.arange(size[1], device=x.device)
    down = torch.arange(size[0], device=x.device)[:, None]
    columns = (a * across + c + b * down) >> 16
    rows = (d * across + f + e * down) >> 16
    return _nearest(x, columns, rows, fill)


def affine(
    x: Tensor, matrix: Tensor, *, size: tuple[int, int], interpolation: Literal["bilinear", "bicubic"], fill: Fill
) -> Tensor:
    """Warp by affine matrices ``(N, 6)`` in float64, with interpolation.

    The other arguments are those of :func:`perspective`.
    """
    across, down = _pixel_centres(size, x.device)
    a, b, c, d, e, f = matrix[:, :, None, None].unbind(1)
    return _SAMPLERS[interpolation](x, a * across + b * down + c, d * across + e * down + f, fill)


def perspective(
    x: Tensor, coefficients: Tensor, *, size: tuple[int, int], interpolation: Interpolation, fill: Fill
) -> Tensor:
    """Warp by perspective transforms.

    Args:
        x: images ``(N, C, H, W)``.
        coefficients: float64 ``(N, 8)``: the result's pixel (x, y) is taken from (ax + by + c) / (gx + hy + 1) and
            (dx + ey + f) / (gx + hy + 1).
        size: height and width of the result.
        interpolation: between pixels.
        fill: colour outside the images.
    """
    across, down = _pixel_centres(size, x.device)
    a, b, c, d, e, f, g, h = coefficients[:, :, None, None].unbind(1)
    divisor = g * across + h * down + 1
    columns, rows = (a * across + b * down + c) / divisor, (d * across + e * down + f) / divisor
    return _SAMPLERS[interpolation](x, columns, rows, fill)


def _pixel_centres(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    height, width = size
    across = torch.arange(width, dtype=torch.float64, device=device) + 0.5
    down = torch.arange(height, dtype=torch.float64, device=device) + 0.5
    return across, down[:, None]


def _nearest(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
    """Return the pixels at positions ``(N, height, width)``, which are whole numbers or truncated."""
    inside = _inside(x, columns, rows)
    columns, rows = (at.masked_fill(~inside, 0).long() for at in (columns, rows))
    return _filled(_gathered(x, rows, columns), inside, fill)


def _bilinear(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
    inside = _inside(x, columns, rows)
    left, dx = _split(columns.masked_fill_(~inside, 0))
    top, dy = _split(rows.masked_fill_(~inside, 0))
    across, levels = _neighbours(left, 2, x.shape[-1]), x.short()  # differences of levels fit into 16 bits

    def row(at: Tensor) -> Tensor:
        first, second = (_gathered(levels, at, column) for column in across)
        return (second - first) * dx + first

    upper, lower = (row(at) for at in _neighbours(top, 2, x.shape[-2]))
    return _filled(((lower - upper) * dy).add_(upper).to(torch.uint8), inside, fill)


def _bicubic(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
    inside = _inside(x, columns, rows)
    left, dx = _split(columns.masked_fill_(~inside, 0))
    top, dy = _split(rows.masked_fill_(~inside, 0))
    across, levels = _neighbours(left - 1, 4, x.shape[-1]), x.short()

    def row(at: Tensor) -> Tensor:
        return _cubic([_gathered(levels, at, column) for column in across], dx)

    value = _cubic([row(at) for at in _neighbours(top - 1, 4, x.shape[-2])], dy)
    return _filled(value.clamp_(0, 255).to(torch.uint8), inside, fill)


def _cubic(values: Sequence[Tensor], d: Tensor) -> Tensor:
    """Return the value at distance ``d`` after the second of four pixels, in float64."""
    v1, v2, v3, v4 = values
    slope = v3 - v1
    bend = 2 * (v1 - v2) + v3 - v4
    twist = v2 - v1 - v3 + v4
    return (d * twist).add_(bend).mul_(d).add_(slope).mul_(d).add_(v2)


def _in_parts(sample: _Sampler) -> _Sampler:
    """Bound the memory for values in float64, of which there are several for each pixel."""

    def call(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
        count = max(1, _PIXELS_AT_ONCE // (x.shape[1] * columns[0].numel()))
        if count >= len(x):
            return sample(x, columns, rows, fill)
        parts = zip(x.split(count), columns.split(count), rows.split(count), strict=True)
        return torch.cat([sample(*part, fill) for part in parts])

    return call


_SAMPLERS: dict[str, _Sampler] = {
    "nearest": _nearest,
    "bilinear": _in_parts(_bilinear),
    "bicubic": _in_parts(_bicubic),
}


def _inside(x: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    return (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)


def _split(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixel whose centre lies before each position, as int64, and the distance from it as
    ``(N, 1, height, width)``."""
    positions = positions - 0.5
    pixels = positions.floor()
    return pixels.long(), positions.sub_(pixels)[:, None]


def _neighbours(first: Tensor, count: int, side: int) -> list[Tensor]:
    """Return ``count`` pixels from ``first`` on; those beyond the border are replaced by the pixel at the border."""
    return [(first + k).clamp_(0, side - 1) for k in range(count)]


def _gathered(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels ``(N, C, height, width)`` at rows and columns that broadcast to ``(N, height, width)``."""
    samples, channels, _, width = x.shape
    at = rows * width + columns
    picked = x.reshape(samples, channels, -1).gather(2, at.reshape(samples, 1, -1).expand(-1, channels, -1))
    return picked.reshape(samples, channels, *at.shape[1:])


def _filled(made: Tensor, inside: Tensor, fill: Fill) -> Tensor:
    return torch.where(inside[:, None], made, per_channel(fill, made))

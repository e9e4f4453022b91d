"""Warp a batch of 8-bit images ``(N, C, H, W)`` as Pillow's ``Image.transform`` does, bit by bit.

Images have one channel (mode L) or three (RGB), and every sample has its own transform. Formulas:
``src/libImaging/Geometry.c``, whose arithmetic is the same in releases 9 to 13. Pillow has three ways to warp: it adds
up positions along an axis (nearest pixels, no rotation), computes them in 16.16 fixed point (nearest pixels, affine),
or computes each in float64 (everything else). :func:`affine_way` chooses as Pillow does.

Every product and every sum is rounded, as in Pillow's builds for x86. So the kernels use no fused multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from ..arguments import colour_of, interpolation_name
from ..exactness import exact
from ..op import NotRecordable, Op, State
from ..operation import Fused, Operation, from_triton
from .pointwise import per_channel
from .warp import warped_to_size

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
#: Colour outside the image: one level for each channel.
Fill: TypeAlias = Sequence[float]
#: Takes images, columns, rows and the fill.
_Sampler: TypeAlias = Callable[[Tensor, Tensor, Tensor, Fill], Tensor]

#: Maximum number of values, one for each pixel and channel, that are interpolated at once; each takes 8 bytes.
_PIXELS_AT_ONCE = 1 << 25

#: Smallest coordinate that does not fit into 16.16 fixed point.
_BEYOND_FIXED_POINT = 32768.0


class Way(NamedTuple):
    """How Pillow applies an affine matrix with nearest pixels: the numbers for :func:`affine_in_fixed_point`, or the
    positions for :func:`pick`."""

    numbers: tuple[int, ...] = ()
    positions: Tensor | None = None


def affine_way(matrix: Sequence[float], source: tuple[int, int], size: tuple[int, int]) -> Way | None:
    """Return how Pillow picks nearest pixels for a matrix, or None if there is no kernel for its way.

    The matrix is ``(a, b, c, d, e, f)``: the result's pixel (x, y) is taken from (ax + by + c, dx + ey + f). ``source``
    and ``size`` are height and width of the image and of the result.
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
        at = np.add.accumulate(terms)  # one by one: near a pixel's edge, the rounding of each sum decides
        found.append(np.where((at >= 0) & (at < old), at, -1).astype(np.int32))
    return torch.from_numpy(np.concatenate(found))


def pick(x: Tensor, positions: Tensor, *, size: tuple[int, int], fill: Fill) -> Tensor:
    """Scale and shift with nearest pixels, at ``positions`` ``(N, height + width)``: the row for each row of the
    result, then the columns; -1 is outside.
    """
    rows, columns = positions.long().split(size, dim=1)
    rows, columns = rows[:, :, None], columns[:, None, :]
    return _filled(_gathered(x, rows.clamp(min=0), columns.clamp(min=0)), (rows >= 0) & (columns >= 0), fill)


def affine_in_fixed_point(x: Tensor, numbers: Tensor, *, size: tuple[int, int], fill: Fill) -> Tensor:
    """Warp by affine matrices with nearest pixels, in 16.16 fixed point; ``numbers`` as from :func:`affine_way`."""
    a, b, c, d, e, f = numbers.long()[:, :, None, None].unbind(1)
    across = torch.arange(size[1], device=x.device)
    down = torch.arange(size[0], device=x.device)[:, None]
    columns = (a * across + c + b * down) >> 16
    rows = (d * across + f + e * down) >> 16
    return _nearest(x, columns, rows, fill)


def affine(
    x: Tensor, matrix: Tensor, *, size: tuple[int, int], interpolation: Literal["bilinear", "bicubic"], fill: Fill
) -> Tensor:
    """Warp by affine matrices ``(N, 6)`` in float64, with interpolation."""
    across, down = _pixel_centres(size, x.device)
    a, b, c, d, e, f = matrix[:, :, None, None].unbind(1)
    return _SAMPLERS[interpolation](x, a * across + b * down + c, d * across + e * down + f, fill)


def perspective(
    x: Tensor, coefficients: Tensor, *, size: tuple[int, int], interpolation: Interpolation, fill: Fill
) -> Tensor:
    """Warp by perspective transforms ``(N, 8)``: the result's pixel (x, y) is taken from
    (ax + by + c) / (gx + hy + 1) and (dx + ey + f) / (gx + hy + 1).
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


def _linear(values: Sequence[Tensor], d: Tensor) -> Tensor:
    """Return the value at distance ``d`` after the first of two pixels, in float64."""
    first, second = values
    return ((second - first) * d).add_(first)


def _cubic(values: Sequence[Tensor], d: Tensor) -> Tensor:
    """Return the value at distance ``d`` after the second of four pixels, in float64."""
    v1, v2, v3, v4 = values
    slope = v3 - v1
    bend = 2 * (v1 - v2) + v3 - v4
    twist = v2 - v1 - v3 + v4
    return (d * twist).add_(bend).mul_(d).add_(slope).mul_(d).add_(v2)


def _interpolating(mix: Callable[[Sequence[Tensor], Tensor], Tensor], count: int) -> _Sampler:
    """Return a sampler that mixes ``count`` by ``count`` pixels around each position.

    It takes few samples at a time, because a pixel needs several values in float64.
    """

    def interpolated(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
        inside = _inside(x, columns, rows)
        across, dx = _around(columns.masked_fill_(~inside, 0), count, x.shape[-1])
        down, dy = _around(rows.masked_fill_(~inside, 0), count, x.shape[-2])
        levels = x.short()  # differences of levels fit into 16 bits
        lines = [mix([_gathered(levels, row, column) for column in across], dx) for row in down]
        return _filled(mix(lines, dy).clamp_(0, 255).to(torch.uint8), inside, fill)

    def sample(x: Tensor, columns: Tensor, rows: Tensor, fill: Fill) -> Tensor:
        together = max(1, _PIXELS_AT_ONCE // (x.shape[1] * columns[0].numel()))
        if together >= len(x):
            return interpolated(x, columns, rows, fill)
        parts = zip(x.split(together), columns.split(together), rows.split(together), strict=True)
        return torch.cat([interpolated(*part, fill) for part in parts])

    return sample


_SAMPLERS: dict[str, _Sampler] = {
    "nearest": _nearest,
    "bilinear": _interpolating(_linear, 2),
    "bicubic": _interpolating(_cubic, 4),
}


def _inside(x: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    return (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)


def _around(positions: Tensor, count: int, side: int) -> tuple[list[Tensor], Tensor]:
    """Return the ``count`` pixels around positions ``(N, height, width)`` on an axis of ``side`` pixels, and the
    positions' distances ``(N, 1, height, width)`` from the nearest pixel centre before them.

    The pixel at the border replaces those beyond it.
    """
    positions = positions - 0.5
    before = positions.floor()
    pixels = before.long()
    around = [(pixels + k).clamp_(0, side - 1) for k in range(1 - count // 2, 1 + count // 2)]
    return around, positions.sub_(before)[:, None]


def _gathered(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels ``(N, C, height, width)`` at rows and columns that broadcast to ``(N, height, width)``."""
    samples, channels, _, width = x.shape
    at = rows * width + columns
    picked = x.reshape(samples, channels, -1).gather(2, at.reshape(samples, 1, -1).expand(-1, channels, -1))
    return picked.reshape(samples, channels, *at.shape[1:])


def _filled(made: Tensor, inside: Tensor, fill: Fill) -> Tensor:
    return torch.where(inside[:, None], made, per_channel(fill, made))


# ---- operations


_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


def transform(
    state: State,
    size: Sequence[int],
    method: Any,
    data: Sequence[float] | None = None,
    resample: int = 0,
    fill: int = 1,
    fillcolor: Any = None,
) -> list[Op]:
    if data is None or not isinstance(method, int) or 0 in size:
        raise NotRecordable("a picture is transformed by an object, or to nothing")
    width, height = size
    interpolation = interpolation_name(resample)
    if interpolation not in _INTERPOLATIONS:
        raise NotRecordable(f"interpolation={interpolation!r} is not for warps of pictures")
    numbers = tuple([float(number) for number in data])
    if method == PIL.Image.Transform.EXTENT:
        left, top, right, bottom = numbers
        method = PIL.Image.Transform.AFFINE
        numbers = ((right - left) / width, 0.0, left, 0.0, (bottom - top) / height, top)
    colour = colour_of(fillcolor, state.channels)
    if method == PIL.Image.Transform.AFFINE:
        return affine_picture(state, numbers[:6], (height, width), interpolation, colour)
    if method != PIL.Image.Transform.PERSPECTIVE:
        raise NotRecordable(f"a picture is transformed by the method {PIL.Image.Transform(method).name}")
    static = (height, width, interpolation, colour)
    return [state.op("pillow_perspective", *numbers[:8], static=static, shape=state.resized(height, width))]


def affine_picture(
    state: State,
    matrix: tuple[float, ...],
    size: tuple[int, int],
    interpolation: str,
    colour: tuple[int, ...],
) -> list[Op]:
    shape = state.resized(*size)
    if interpolation != "nearest":
        return [state.op("pillow_affine", *matrix, static=(*size, interpolation, colour), shape=shape)]
    way = affine_way(matrix, state.size, size)
    if way is None:
        raise NotRecordable("a picture is warped by a matrix that Pillow's fixed-point arithmetic cannot hold")
    name = "pillow_affine_in_fixed_point" if way.positions is None else "pillow_pick"
    return [state.op(name, *way.numbers, static=(*size, colour), shape=shape, bulk=way.positions)]


OPERATIONS = (
    Operation("pillow_pick", lambda x, numbers, static, bulk: pick(x, bulk, size=static[:2], fill=static[2]), exact),
    Operation(
        "pillow_affine_in_fixed_point",
        lambda x, numbers, static, bulk: affine_in_fixed_point(x, numbers, size=static[:2], fill=static[2]),
        exact,
    ),
    Operation(
        "pillow_affine",
        warped_to_size(affine),
        exact,
        fused=Fused(Operation("fast_pillow_affine", warped_to_size(from_triton("pillow_warp", "affine")))),
    ),
    Operation(
        "pillow_perspective",
        warped_to_size(perspective),
        exact,
        fused=Fused(Operation("fast_pillow_perspective", warped_to_size(from_triton("pillow_warp", "perspective")))),
    ),
)
METHODS = {"transform": transform}

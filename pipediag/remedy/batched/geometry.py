"""Crop, flip and resize a whole batch, with a separate box for each sample.

Each position along a resized axis is a short weighted sum of pixels. A *tap* is one summand: its index into the image
and its weight. The taps of all samples are computed on the device; their number must be known on the host and follows
from the largest box. Pixels are gathered and summed tap by tap instead of multiplied by matrices: this needs less
memory and is independent of TF32.

uint8 images are resampled on every device as ATen resamples them on the CPU
(``aten/src/ATen/native/cpu/UpSampleKernel.cpp``): weights computed in float64 and rounded to fixed point, exact integer
sums, one rounding after the horizontal pass and another after the vertical one. Pillow does the same with more bits.
On CUDA, and in some releases on some CPUs, torchvision itself uses float32 and rounds once, which gives other pixels;
:func:`uint8_in_fixed_point` returns what it does here.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2.functional import resize_image

from . import pillow as pillows

Interpolation: TypeAlias = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"]

_RADIUS = {"bilinear": 1, "bicubic": 2}
_NEAREST = ("nearest", "nearest-exact")

_MOST_FRACTION_BITS = 22
_WEIGHT_LIMIT = 1 << 15  # fixed-point weights are int16
_DIRECT_LIMIT = 128  # ATen computes nearest pixels differently if height + width of the result exceed this


@functools.cache
def uint8_in_fixed_point() -> bool:
    """Return whether torchvision passes bilinear uint8 images on the CPU to ATen directly, not as float32.

    It depends on the processor and on the release; bicubic images have always been passed directly. It is tested on an
    image for which the two ways differ.
    """
    ramp = torch.arange(0, 250, 5, dtype=torch.uint8, device="cpu").view(1, 5, 10)
    native = F.interpolate(ramp[None], (3, 7), mode="bilinear", align_corners=False, antialias=True)
    return bool(torch.equal(resize_image(ramp, [3, 7], antialias=True), native[0]))


def horizontal_flip(x: Tensor, where: Tensor) -> Tensor:
    """Mirror images ``(N, C, H, W)`` of any dtype left to right if their entry in ``where`` ``(N,)`` is not zero."""
    return torch.where((where != 0).view(-1, 1, 1, 1), x.flip(-1), x)


def vertical_flip(x: Tensor, where: Tensor) -> Tensor:
    """Mirror images ``(N, C, H, W)`` of any dtype top to bottom if their entry in ``where`` ``(N,)`` is not zero."""
    return torch.where((where != 0).view(-1, 1, 1, 1), x.flip(-2), x)


def crop(x: Tensor, top: Tensor, left: Tensor, *, height: int, width: int) -> Tensor:
    """Crop as ``crop_image`` of torchvision v2, bit by bit, with a separate position for each sample.

    Args:
        x: images ``(N, C, H, W)`` of any dtype and strides.
        top, left: of the boxes: ``(N,)``, whole numbers of any dtype. A box may extend beyond its image or lie outside
            it; the result is zero there.
        height, width: of all boxes.

    Returns:
        ``(N, C, height, width)`` in the dtype of ``x``.
    """
    rows = torch.arange(height, device=x.device) + top.to(torch.int64)[:, None]
    columns = torch.arange(width, device=x.device) + left.to(torch.int64)[:, None]
    return _pick_or_zero(x, rows, columns)


def resized_crop(
    x: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    *,
    size: tuple[int, int],
    interpolation: Interpolation,
    antialias: bool | None,
    largest: tuple[int, int] | None = None,
    fixed_point: bool = True,
    pillow: pillows.Pass | None = None,
) -> Tensor:
    """Crop and resize as ``resized_crop_image`` of torchvision v2, with a separate box for each sample.

    Bit-equal to the CPU's result for uint8 and for the nearest modes, otherwise within a few units in the last place.

    Args:
        x: images ``(N, C, H, W)`` of any strides.
        top, left, height, width: of the boxes: ``(N,)``, whole numbers of any dtype. A box may extend beyond its image,
            which is zero there.
        size: height and width of the result.
        interpolation: the filter.
        antialias: whether the filter grows with the scale if the image shrinks; None means False, and the nearest modes
            ignore it.
        largest: height and width of the largest boxes, by default those of the images: boxes larger than their image
            need it, and a smaller one saves time.
        fixed_point: if False, uint8 images are resampled in float32 and rounded once.
        pillow: the pass that Pillow makes first, if uint8 images are resized as by Pillow, bit-equal, with any of its
            filters. ``antialias`` and ``fixed_point`` must be True then.

    Returns:
        ``(N, C, *size)`` in the dtype of ``x``.

    Raises:
        ValueError: the interpolation is unknown.
        TypeError: ``x`` is boolean and the interpolation is not one of the nearest modes.
    """
    _check(x, interpolation, pillow is not None)
    if interpolation in _NEAREST:
        if pillow:
            rows, columns = pillows.nearest_pixels(height, size[0]), pillows.nearest_pixels(width, size[1])
        else:
            rows, columns = _nearest_pixels(x, height, width, size, interpolation)
        return _pick_or_zero(x, (rows + top[:, None]).to(torch.int64), (columns + left[:, None]).to(torch.int64))
    filter = _Filter(interpolation, bool(antialias), _sum_dtype(x.dtype, fixed_point), pillow)
    return _resample(x, (top, height), (left, width), size, largest or (x.shape[2], x.shape[3]), filter)


def resize(
    x: Tensor,
    *,
    size: tuple[int, int],
    interpolation: Interpolation,
    antialias: bool | None,
    fixed_point: bool = True,
) -> Tensor:
    """Resize images of one size as ``resize_image`` of torchvision v2 on the CPU: bit-equal for uint8 and the nearest
    modes.

    Args:
        x: images ``(N, C, H, W)`` of any strides.
        size: height and width of the result.
        interpolation: the filter.
        antialias: as for :func:`resized_crop`.
        fixed_point: as for :func:`resized_crop`.

    Returns:
        ``(N, C, *size)`` in the dtype of ``x``; ``x`` itself if it already has that size.

    Raises:
        ValueError: the interpolation is unknown.
        TypeError: ``x`` is boolean and the interpolation is not one of the nearest modes.
    """
    _check(x, interpolation)
    full = (x.shape[2], x.shape[3])
    if size == full:
        return x
    sum_dtype = _sum_dtype(x.dtype, fixed_point)
    if interpolation in _RADIUS and sum_dtype.is_floating_point:
        real = x.to(sum_dtype)
        resized = F.interpolate(real, size, mode=interpolation, align_corners=False, antialias=bool(antialias))
        return _converted(resized, x.dtype)
    origin, height, width = (torch.full((1,), edge, dtype=torch.float64, device=x.device) for edge in (0, *full))
    if interpolation in _NEAREST:
        rows, columns = _nearest_pixels(x, height, width, size, interpolation)
        return _pick(x, rows.to(torch.int64), columns.to(torch.int64))
    filter = _Filter(interpolation, bool(antialias), sum_dtype)
    return _resample(x, (origin, height), (origin, width), size, full, filter)


def _check(x: Tensor, interpolation: str, pillow: bool = False) -> None:
    known = (*_NEAREST, *(pillows.FILTERS if pillow else _RADIUS))
    if interpolation not in known:
        raise ValueError(f"interpolation {interpolation!r} is not one of {known}")
    if x.dtype == torch.bool and interpolation not in _NEAREST:
        raise TypeError("truth values are picked, not interpolated")


def _scale(extent: Tensor, out: int) -> Tensor:
    """Return box pixels per output position; CUDA would divide by a Python number as a multiplication by its
    reciprocal."""
    return extent / torch.full((), out, dtype=extent.dtype, device=extent.device)


def _steps(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=like.dtype, device=like.device)


# --- single pixels, without weights


def _pick(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``x[n, c, rows[n, i], columns[n, j]]``; indices with a first dimension of 1 apply to all samples."""
    samples = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
    return x[samples, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _pick_or_zero(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pick as :func:`_pick`, with zeros for rows and columns outside the image."""
    near_rows, near_columns = rows.clamp(0, x.shape[2] - 1), columns.clamp(0, x.shape[3] - 1)
    outside = (rows != near_rows)[:, None, :, None] | (columns != near_columns)[:, None, None, :]
    return _pick(x, near_rows, near_columns).masked_fill_(outside, 0)


def _nearest_pixels(
    x: Tensor, height: Tensor, width: Tensor, size: tuple[int, int], interpolation: str
) -> tuple[Tensor, Tensor]:
    """Return rows ``(M, size[0])`` and columns ``(M, size[1])``, counted from 0, of boxes ``height`` by ``width``
    ``(M,)``.

    Positions exactly between two pixels are common, so every rounding matters. ATen has direct code, in float32, for
    small results, and general code, in the image's own precision, for others.
    """
    direct = sum(size) <= _DIRECT_LIMIT
    real = torch.float64 if x.dtype == torch.float64 and not direct else torch.float32

    def pixels(extent: Tensor, out: int) -> Tensor:
        extent = extent.to(real)[:, None]
        scale = _scale(extent, out)
        if interpolation == "nearest":
            position = scale * _steps(out, scale)
        elif direct:
            position = scale * (_steps(out, scale) + 0.5)
        else:
            scale = scale.double()
            position = (scale * (_steps(out, scale) + 0.5) - 0.5).to(real).clamp_(min=0) + 0.5
        return torch.minimum(position.float().floor(), extent - 1)

    return pixels(height, size[0]), pixels(width, size[1])


# --- weighted sums of pixels


def _sum_dtype(dtype: torch.dtype, fixed_point: bool) -> torch.dtype:
    """Return the dtype in which pixels of ``dtype`` are weighted and summed; uint8 means fixed point."""
    if dtype == torch.float64 or (dtype == torch.uint8 and fixed_point):
        return dtype
    return torch.float32


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert sums to pixels; only float32 sums of integers and half-precision images change."""
    x = x.clamp_(0, 255) if dtype == torch.uint8 else x  # bicubic sums overshoot
    return x.round_().to(dtype) if not dtype.is_floating_point else x.to(dtype)


class _Filter(NamedTuple):
    """Parameters of the weights other than the boxes; ``dtype`` is that of the sums, and uint8 means fixed point."""

    interpolation: str
    antialias: bool
    dtype: torch.dtype
    pillow: pillows.Pass | None = None

    @property
    def radius(self) -> float:
        """Number of pixels that the filter extends to either side if it does not shrink the image."""
        return pillows.FILTERS[self.interpolation].radius if self.pillow else _RADIUS[self.interpolation]

    @property
    def real(self) -> torch.dtype:
        """Dtype in which weights are computed."""
        return torch.float64 if self.fixed_point else self.dtype

    @property
    def fixed_point(self) -> bool:
        return not self.dtype.is_floating_point

    def taps(self, largest: int, out: int) -> int:
        """Return the maximum number of nonzero taps per position, for boxes of up to ``largest`` pixels."""
        return math.ceil(2 * self.radius * (max(1.0, largest / out) if self.antialias else 1))

    def weight(self, distance: Tensor) -> Tensor:
        """Return the weight of a pixel at ``distance`` from the position: a triangle, or the cubic convolution of Keys
        (1981)."""
        if self.pillow:
            return pillows.FILTERS[self.interpolation].weight(distance)
        distance = distance.abs()
        if self.interpolation == "bilinear":
            return (1 - distance).clamp_(min=0)
        a = -0.5 if self.antialias else -0.75
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        return torch.where(distance < 1, near, far).masked_fill_(distance >= 2, 0)


class _Axis(NamedTuple):
    """Taps along one axis for ``M`` boxes: indices into the image and weights, both ``(K, M, out)``.

    Weights are floating, or int32 with ``fraction_bits`` ``(M,)`` fractional bits.
    """

    index: Tensor
    weight: Tensor
    fraction_bits: Tensor | None

    def part(self, boxes: slice, taps: int) -> _Axis:
        bits = None if self.fraction_bits is None else self.fraction_bits[boxes]
        return _Axis(self.index[:taps, boxes], self.weight[:taps, boxes], bits)


def _resample(
    x: Tensor,
    vertical: tuple[Tensor, Tensor],
    horizontal: tuple[Tensor, Tensor],
    size: tuple[int, int],
    largest: tuple[int, int],
    filter: _Filter,
) -> Tensor:
    """Resize a box of each sample: origin and extent ``(M,)`` along either axis, with M the batch size or 1.

    The horizontal pass comes first, as in ATen, except where Pillow begins with the vertical one.
    """
    rows, columns = _axes((x.shape[2], x.shape[3]), vertical, horizontal, size, largest, filter)
    if filter.fixed_point:
        overshoots = filter.interpolation in ("bicubic", "lanczos")
        if filter.pillow == "down":
            return _fixed_point_pass(_fixed_point_pass(x, rows, 2, overshoots), columns, 3, overshoots)
        return _fixed_point_pass(_fixed_point_pass(x, columns, 3, overshoots), rows, 2, overshoots)
    zero = torch.zeros((), dtype=filter.real, device=x.device)
    return _converted(_weighted_sum(_weighted_sum(x.to(filter.real), columns, 3, zero), rows, 2, zero), x.dtype)


def _axes(
    full: tuple[int, int],
    vertical: tuple[Tensor, Tensor],
    horizontal: tuple[Tensor, Tensor],
    size: tuple[int, int],
    largest: tuple[int, int],
    filter: _Filter,
) -> tuple[_Axis, _Axis]:
    """Return the vertical and the horizontal taps; for a square result, compute both at once in half the launches."""
    taps = filter.taps(largest[0], size[0]), filter.taps(largest[1], size[1])
    limits = torch.full_like(vertical[0], full[0] - 1), torch.full_like(horizontal[0], full[1] - 1)
    if size[0] != size[1]:
        return (
            _axis(*vertical, limits[0], size[0], taps[0], filter),
            _axis(*horizontal, limits[1], size[1], taps[1], filter),
        )
    pairs = zip((*vertical, limits[0]), (*horizontal, limits[1]), strict=True)
    origin, extent, limit = (torch.cat(pair) for pair in pairs)
    both = _axis(origin, extent, limit, size[0], max(taps), filter)
    boxes = len(vertical[0])
    return both.part(slice(boxes), taps[0]), both.part(slice(boxes, None), taps[1])


def _axis(origin: Tensor, extent: Tensor, limit: Tensor, out: int, taps: int, filter: _Filter) -> _Axis:
    """Return taps for boxes ``(M,)`` along one axis; pixels outside ``0..limit`` (``(M,)``) have weight 0."""
    extent = extent.to(filter.real)[:, None]
    position, weight = (_antialiased if filter.antialias else _interpolated)(extent, out, taps, filter)
    bits = None
    if filter.fixed_point:
        weight, peak = (weight, weight.amax((0, 2))) if filter.antialias else _merged(position, weight)
        bits = torch.full_like(peak, pillows.FRACTION_BITS, dtype=torch.int64) if filter.pillow else _fitting_bits(peak)
        weight, bits = _to_fixed_point(weight, bits), bits.to(torch.int32)
    index = position + origin[:, None]
    near = torch.minimum(index.clamp(min=0), limit[:, None])
    return _Axis(near.to(torch.int64), weight * (index == near), bits)


def _antialiased(extent: Tensor, out: int, taps: int, filter: _Filter) -> tuple[Tensor, Tensor]:
    """Return positions in boxes of ``extent`` ``(M, 1)`` and weights, both ``(taps, M, out)``: a filter as wide as the
    scale.

    The arithmetic is that of Pillow's ``precompute_coeffs``, which ATen follows.
    """
    scale = _scale(extent, out)
    stretch = scale.clamp(min=1)
    centre = scale * (_steps(out, extent) + 0.5)
    support = filter.radius * stretch
    first = (centre - support + 0.5).floor_().clamp_(min=0)
    end = torch.minimum((centre + support + 0.5).floor_(), extent)
    position = first + _steps(taps, extent).view(-1, 1, 1)
    weight = filter.weight((position - centre + 0.5) * stretch.reciprocal()).mul_(position < end)
    total = weight.sum(0)
    return position, weight.div_(total.masked_fill_(total == 0, 1))


def _interpolated(extent: Tensor, out: int, taps: int, filter: _Filter) -> tuple[Tensor, Tensor]:
    """Return positions in boxes of ``extent`` ``(M, 1)`` and weights, both ``(taps, M, out)``: the pixels around each
    centre.

    A position outside the box moves to the nearest pixel in it. The roundings, with the integer part always taken in
    float32, are those of ATen's ``area_pixel_compute_source_index`` and ``guard_index_and_lambda``.
    """
    scale = _scale(extent, out).double()
    centre = (scale * (_steps(out, scale) + 0.5) - 0.5).to(filter.real)
    if filter.interpolation == "bilinear":
        centre = centre.clamp_(min=0)
    base = torch.minimum(centre.float().floor().to(filter.real), extent - 1)
    offset = (_steps(taps, extent) - (filter.radius - 1)).view(-1, 1, 1)
    weight = filter.weight(offset - (centre - base).clamp_(0, 1))
    return torch.minimum((base + offset).clamp_(min=0), extent - 1), weight


def _merged(position: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Add the weights of taps on one pixel into the last of them, so that they are rounded once; also return the peak
    ``(M,)``.

    ATen adds them one after the other and takes the peak over the intermediate sums as well.
    """
    order = _steps(len(position), position).view(-1, 1, 1, 1)
    later = order < order.transpose(0, 1)
    same = position[:, None] == position
    sums = (weight * (same & ~later)).sum(1)
    return sums.masked_fill((same & later).any(1), 0), sums.amax((0, 2))


def _fitting_bits(peak: Tensor) -> Tensor:
    """Return the most fractional bits ``(M,)`` for which ``peak`` ``(M,)`` fits an int16.

    Formula: ATen's ``_compute_index_ranges_int16_weights``.
    """
    bits = torch.arange(1, _MOST_FRACTION_BITS + 1, device=peak.device)
    return ((peak[:, None] * _power_of_two(bits) + 0.5).floor_() < _WEIGHT_LIMIT).sum(1)


def _to_fixed_point(weight: Tensor, bits: Tensor) -> Tensor:
    """Return weights ``(K, M, out)`` as int32 with fractional ``bits`` ``(M,)``, rounded half away from zero."""
    scaled = weight * _power_of_two(bits)[:, None]
    return (scaled.abs() + 0.5).floor_().copysign_(scaled).to(torch.int32)


def _power_of_two(exponent: Tensor) -> Tensor:
    return torch.bitwise_left_shift(1, exponent)


def _weighted_sum(x: Tensor, axis: _Axis, dim: int, start: Tensor) -> Tensor:
    """Return ``start`` plus the weighted taps; dimension ``dim`` of ``x`` becomes the positions of ``axis``."""
    shape = [*x.shape]
    shape[dim] = axis.index.shape[2]
    view = (-1, 1, 1, shape[3]) if dim == 3 else (-1, 1, shape[2], 1)
    total = start
    for tap, (index, weight) in enumerate(zip(axis.index, axis.weight, strict=True)):
        taken = x.gather(dim, index.view(view).expand(shape))
        total = total.addcmul_(taken, weight.view(view)) if tap else total.addcmul(taken, weight.view(view))
    return total


def _fixed_point_pass(x: Tensor, axis: _Axis, dim: int, overshoots: bool) -> Tensor:
    """Run one pass over uint8 images with integer weights, rounded half up.

    Without negative weights the result stays in range: rounding the weights adds less than half a grey level to their
    sum.
    """
    assert axis.fraction_bits is not None
    bits = axis.fraction_bits.view(-1, 1, 1, 1)
    total = _weighted_sum(x, axis, dim, _power_of_two(bits - 1))
    if overshoots:
        white = _power_of_two(bits + 8) - 1
        total.clamp_(torch.zeros_like(white), white)
    return total.bitwise_right_shift_(bits).to(torch.uint8)

"""Crop a box of every sample and resize all boxes to one size: two launches for a whole batch.

The first launch makes a plan: for each position along either axis of the result, the first source pixel and the weights
(``aten/src/ATen/native/cpu/UpSampleKernel.cpp`` and ``UpSample.h``, in the precision that ATen uses). The second
applies it: an output is the sum over its rows of the sums over its columns, without intermediate results in memory.

From uint8 to uint8, ATen has CPU kernels with fixed-point weights: every sum is exact, and the sum over the columns is
rounded to uint8 before the rows are added. If torchvision does not use them (on CUDA, and for bilinear images with some
releases on some CPUs), it computes in float32 and rounds once. Pillow's weights have more bits, and it may sum over the
rows first (:mod:`pipediag.remedy.batched.pillow`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..batched.pillow import FRACTION_BITS, Pass
from ._device import divide, round_half_even
from ._host import OPTIONS, blocks, check_images, empty_like

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
Layout = Literal["chw", "hwc"]

#: Number of pixels that a filter extends to either side if it does not shrink the image.
_RADIUS = {"nearest": 0, "nearest-exact": 0, "bilinear": 1, "bicubic": 2}
_DIRECT_LIMIT = 128  # ATen computes nearest pixels differently if height + width of the result exceed this
_PLAN_BLOCK = 256
_TILE = (8, 128)

_MOST_FRACTION_BITS = tl.constexpr(22)
_PILLOWS_FRACTION_BITS = tl.constexpr(FRACTION_BITS)
_WEIGHT_LIMIT = tl.constexpr(32768)  # fixed-point weights are int16

_UINT8_SCALE = 1.0 / 255.0

# Specializing a kernel for the divisibility or alignment of these arguments gains nothing, and they change from batch
# to batch.
_IMAGE_STRIDES = ("offsets_stride", "image_heights_stride", "image_widths_stride")
_BOX_STRIDES = (*_IMAGE_STRIDES[1:], "tops_stride", "lefts_stride", "heights_stride", "widths_stride")


def resized_crop(
    source: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    *,
    size: tuple[int, int],
    antialias: bool | None,
    interpolation: Interpolation = "bilinear",
    out_dtype: torch.dtype | None = None,
    scale: bool = False,
    largest: tuple[int, int] | None = None,
    fixed_point: bool = True,
    pillow: Pass | None = None,
) -> Tensor:
    """Crop and resize as ``resized_crop_image`` of torchvision v2, with a separate box for each sample.

    Args:
        source: images ``(N, C, H, W)``, uint8 or float32, of any strides.
        top, left, height, width: of the boxes: ``(N,)``, whole numbers of any dtype. A box may extend beyond its image,
            which is zero there.
        size: height and width of the result.
        antialias: whether a filter grows with the scale if the image shrinks; None means False, and the nearest modes
            ignore it.
        interpolation: the filter.
        out_dtype: by default that of ``source``. With float32, uint8 images are taken as numbers from 0 to 255 and
            resampled without rounding, as if they had been converted before.
        scale: whether uint8 images are multiplied by 1 / 255 when they are read, as by ``ToDtype(scale=True)``.
        largest: height and width of the largest box, by default those of the images: boxes larger than their image need
            it, and a smaller one saves memory.
        fixed_point: if False, uint8 images are resampled in float32 and rounded once.
        pillow: the pass that Pillow makes first, if uint8 images are resized as by Pillow, bilinearly or bicubically.
            ``antialias`` and ``fixed_point`` must be True then.

    Returns:
        ``(N, C, *size)`` in the memory format of ``source``.

    Raises:
        ValueError: ``source`` is not a batch, the interpolation is unknown, or ``scale`` is set without a conversion
            from uint8 to float32.
        TypeError: ``source`` has another dtype, or it cannot be converted to ``out_dtype``.
    """
    check_images(source)
    dtype = _result_dtype(source.dtype, out_dtype, scale)
    out = empty_like(source, size, dtype)
    images = _Images(source, source, source, source, (source.shape[2], source.shape[3]), source.stride(), "strided")
    filtering = _Filtering(interpolation, bool(antialias), scale, fixed_point, pillow)
    return _resample(images, (top, left, height, width), out, largest or images.edges, filtering)


def resized_crop_ragged(
    slab: Tensor,
    offset: Tensor,
    image_height: Tensor,
    image_width: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    *,
    channels: int,
    layout: Layout,
    size: tuple[int, int],
    largest: tuple[int, int],
    antialias: bool | None,
    interpolation: Interpolation = "bilinear",
    out_dtype: torch.dtype | None = None,
    scale: bool = False,
    fixed_point: bool = True,
    pillow: Pass | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Crop and resize as :func:`resized_crop`, from images of different sizes stored in one flat tensor.

    Args:
        slab: 1-d, uint8, contiguous.
        offset: ``(N,)``, index of each image's first byte; whole numbers of any dtype, as ``image_height`` and
            ``image_width``.
        top, left, height, width: of the boxes: ``(N,)``, whole numbers of any dtype.
        channels: of all images.
        layout: ``"chw"``, one plane after the other, or ``"hwc"``, pixel by pixel.
        largest: height and width of the largest box.
        memory_format: of the result.

    Returns:
        ``(N, channels, *size)``.

    Raises:
        ValueError: the slab is not 1-d, layout or interpolation is unknown, or ``scale`` is set without a conversion to
            float32.
        TypeError: the slab is not uint8, or it cannot be converted to ``out_dtype``.
    """
    if slab.ndim != 1 or layout not in ("chw", "hwc"):
        raise ValueError(f"a slab with {slab.ndim} dimensions and layout {layout!r}")
    if slab.dtype != torch.uint8:
        raise TypeError(f"a slab is uint8, not {slab.dtype}")
    dtype = _result_dtype(slab.dtype, out_dtype, scale)
    shape = (top.shape[0], channels, *size)
    out = torch.empty(shape, dtype=dtype, device=slab.device, memory_format=memory_format)
    images = _Images(slab, offset, image_height, image_width, (0, 0), (0, 0, 0, 0), layout)
    filtering = _Filtering(interpolation, bool(antialias), scale, fixed_point, pillow)
    return _resample(images, (top, left, height, width), out, largest, filtering)


class _Images(NamedTuple):
    """Locations of the pixels: common ``edges`` and ``strides``, or separate numbers for each image."""

    pixels: Tensor
    offset: Tensor
    height: Tensor
    width: Tensor
    edges: tuple[int, int]
    strides: tuple[int, ...]
    layout: str


class _Filtering(NamedTuple):
    """Parameters of the weights other than the boxes."""

    interpolation: str
    antialias: bool
    scale: bool
    fixed_point: bool
    pillow: Pass | None

    def taps(self, largest: int, out: int) -> int:
        """Return the maximum number of weighted pixels per position for boxes of up to ``largest`` pixels along the
        axis."""
        width = max(1, 2 * _RADIUS[self.interpolation])
        return math.ceil(width * max(1.0, largest / out)) if self.antialias and width > 1 else width


def _result_dtype(source: torch.dtype, wanted: torch.dtype | None, scale: bool) -> torch.dtype:
    dtype = wanted or source
    if dtype not in (source, torch.float32):
        raise TypeError(f"{source} images cannot become {dtype} here")
    if scale and (source, dtype) != (torch.uint8, torch.float32):
        raise ValueError("only images that come as uint8 and leave as float32 can be scaled")
    return dtype


def _resample(
    images: _Images, boxes: tuple[Tensor, ...], out: Tensor, largest: tuple[int, int], filtering: _Filtering
) -> Tensor:
    if filtering.interpolation not in _RADIUS:
        raise ValueError(f"interpolation {filtering.interpolation!r} is not one of {tuple(_RADIUS)}")
    if out.numel() == 0:
        return out
    samples, channels, out_height, out_width = out.shape
    taps_y, taps_x = filtering.taps(largest[0], out_height), filtering.taps(largest[1], out_width)
    radius = _RADIUS[filtering.interpolation]
    whole = out.dtype == torch.uint8
    fixed = whole and filtering.fixed_point
    tiles = blocks(out_height, _TILE[0]) * blocks(out_width, _TILE[1])
    plan = torch.empty((samples, 4 + out_height + out_width), dtype=torch.int32, device=out.device)
    weights = torch.empty(
        (samples, taps_y * out_height + taps_x * out_width),
        dtype=torch.int32 if fixed else torch.float32,
        device=out.device,
    )
    with torch.cuda.device_of(out):
        _plan_kernel[(samples, 2)](
            images.height,
            images.width,
            *boxes,
            plan,
            weights,
            *(numbers.stride(0) for numbers in (images.height, images.width, *boxes)),
            *images.edges,
            out_height,
            out_width,
            taps_y,
            taps_x,
            STRIDED=images.layout == "strided",
            RADIUS=radius,
            ANTIALIAS=filtering.antialias and radius > 0,
            EXACT=filtering.interpolation == "nearest-exact",
            DIRECT=out_height + out_width <= _DIRECT_LIMIT,
            REAL=tl.float64 if fixed and radius > 0 else tl.float32,
            FIXED=fixed,
            PILLOW=filtering.pillow is not None,
            BLOCK=_PLAN_BLOCK,
            num_warps=4,
            **OPTIONS,
        )
        _apply_kernel[(tiles * channels, samples)](
            images.pixels,
            images.offset,
            images.height,
            images.width,
            plan,
            weights,
            out,
            *(numbers.stride(0) for numbers in (images.offset, images.height, images.width)),
            channels,
            *images.edges,
            *images.strides,
            out_height,
            out_width,
            *out.stride(),
            taps_y,
            taps_x,
            LAYOUT=images.layout,
            FIXED=fixed,
            WHOLE=whole,
            SCALE=_UINT8_SCALE if filtering.scale else 1.0,
            TWO_BY_TWO=taps_y == taps_x == 2,
            DOWN_FIRST=filtering.pillow == "down",
            ROWS=_TILE[0],
            COLUMNS=_TILE[1],
            num_warps=4,
            **OPTIONS,
        )
    return out


# --- the plan


@triton.jit(
    do_not_specialize=["edge_y", "edge_x", "out_height", "out_width", "taps_y", "taps_x", *_BOX_STRIDES],
    do_not_specialize_on_alignment=[stride.removesuffix("_stride") for stride in _BOX_STRIDES],
)
def _plan_kernel(
    image_heights,
    image_widths,
    tops,
    lefts,
    heights,
    widths,
    plan,
    weights,
    image_heights_stride,
    image_widths_stride,
    tops_stride,
    lefts_stride,
    heights_stride,
    widths_stride,
    edge_y,
    edge_x,
    out_height,
    out_width,
    taps_y,
    taps_x,
    STRIDED: tl.constexpr,
    RADIUS: tl.constexpr,
    ANTIALIAS: tl.constexpr,
    EXACT: tl.constexpr,
    DIRECT: tl.constexpr,
    REAL: tl.constexpr,
    FIXED: tl.constexpr,
    PILLOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Plan one axis of one sample.

    A row of ``plan`` holds the number of taps and the fractional bits along y, the same along x, and the first source
    pixel of each row and of each column of the result. A row of ``weights`` has ``(taps_y, out_height)`` weights and
    then ``(taps_x, out_width)``, zero for pixels that do not exist.
    """
    n = tl.program_id(0)
    axis = tl.program_id(1)
    plan += n * (4 + out_height + out_width)
    weights += n * (taps_y * out_height + taps_x * out_width) + axis * taps_y * out_height
    starts = plan + 4 + axis * out_height
    if not STRIDED:
        edge_y = tl.load(image_heights + n * image_heights_stride).to(tl.int32)
        edge_x = tl.load(image_widths + n * image_widths_stride).to(tl.int32)
    edge = tl.where(axis == 0, edge_y, edge_x)
    top = tl.load(tops + n * tops_stride).to(tl.int32)
    left = tl.load(lefts + n * lefts_stride).to(tl.int32)
    height = tl.load(heights + n * heights_stride).to(tl.int32)
    width = tl.load(widths + n * widths_stride).to(tl.int32)
    origin = tl.where(axis == 0, top, left)
    extent = tl.where(axis == 0, height, width)
    out = tl.where(axis == 0, out_height, out_width)
    taps = tl.where(axis == 0, taps_y, taps_x)
    ratio = divide(extent.to(REAL), out.to(REAL))

    used = 0
    peak = ratio * 0.0
    for begin in range(0, out, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        start, count, anchor, norm = _window(i, extent, ratio, taps, RADIUS, ANTIALIAS, EXACT, DIRECT, REAL)
        tl.store(starts + i, origin + start, mask=i < out)
        used = tl.maximum(used, tl.max(tl.where(i < out, count, 0)))
        if FIXED and not PILLOW:
            for t in range(taps):
                weight = _weight(t, start, count, anchor, norm, extent, ratio, RADIUS, ANTIALIAS, REAL)
                peak = tl.maximum(peak, tl.max(tl.where(i < out, weight, 0.0)))
    tl.store(plan + axis * 2, used)
    if FIXED:
        bits = tl.full((), _PILLOWS_FRACTION_BITS, tl.int32) if PILLOW else _fraction_bits(peak)
        tl.store(plan + axis * 2 + 1, bits)
        one = (1 << bits).to(REAL)

    for begin in range(0, out, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        start, count, anchor, norm = _window(i, extent, ratio, taps, RADIUS, ANTIALIAS, EXACT, DIRECT, REAL)
        for t in range(used):
            weight = _weight(t, start, count, anchor, norm, extent, ratio, RADIUS, ANTIALIAS, REAL)
            pixel = origin + start + t
            weight = tl.where((pixel >= 0) & (pixel < edge), weight, 0.0)
            if FIXED:
                weight = weight * one
                weight = (weight + tl.where(weight < 0.0, -0.5, 0.5)).to(tl.int32)
            tl.store(weights + t * out + i, weight, mask=i < out)


@triton.jit
def _window(
    i,
    extent,
    ratio,
    taps,
    RADIUS: tl.constexpr,
    ANTIALIAS: tl.constexpr,
    EXACT: tl.constexpr,
    DIRECT: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return the source pixels of the outputs ``i``: the first, their number, and two numbers that determine the
    weights.

    With antialiasing, the two numbers are the centre of the filter and the sum of its values; otherwise, the pixel
    before the interpolated position and the distance from it. ATen computes in ``REAL`` except for some constants of
    type double, after which it rounds; so does this.
    """
    half = i.to(tl.float64) + 0.5
    if RADIUS == 0:
        start = _nearest(i, half, extent, ratio, EXACT, DIRECT)
        count = tl.full(i.shape, 1, tl.int32)
        anchor = tl.full(i.shape, 0.0, REAL)
        norm = anchor
    elif ANTIALIAS:
        support = tl.maximum(ratio, 1.0) * RADIUS
        anchor = (ratio.to(tl.float64) * half).to(REAL)
        start = tl.maximum(((anchor - support).to(tl.float64) + 0.5).to(tl.int32), 0)
        end = tl.minimum(((anchor + support).to(tl.float64) + 0.5).to(tl.int32), extent)
        count = tl.minimum(tl.maximum(end - start, 0), taps)
        norm = tl.full(i.shape, 0.0, REAL)
        for t in range(taps):
            norm += _filter(t, start, count, anchor, ratio, RADIUS, REAL)
        norm = tl.where(norm == 0.0, 1.0, norm)
    else:
        # ATen's compiler contracts this product and sum, as results in float32 show.
        place = tl.fma(half.to(REAL), ratio, -0.5)
        if RADIUS == 1:
            place = tl.maximum(place, 0.0)
        before = tl.minimum(tl.floor(place.to(tl.float32)).to(tl.int32), extent - 1)
        start = tl.maximum(before - (RADIUS - 1), 0)
        count = tl.full(i.shape, 2 * RADIUS, tl.int32)
        anchor = before.to(REAL)
        norm = tl.minimum(tl.maximum(place - anchor, 0.0), 1.0)
    return start, count, anchor, norm


@triton.jit
def _nearest(i, half, extent, ratio, EXACT: tl.constexpr, DIRECT: tl.constexpr):
    """Return the nearest pixel, in float32 for uint8 images too; products that should be whole often are not."""
    if not EXACT:
        place = i.to(tl.float32) * ratio
    elif DIRECT:
        place = (half * ratio.to(tl.float64)).to(tl.float32)
    else:
        place = tl.maximum(tl.fma(half.to(tl.float32), ratio, -0.5), 0.0)
        place = (place.to(tl.float64) + 0.5).to(tl.float32)
    return tl.minimum(tl.floor(place).to(tl.int32), extent - 1)


@triton.jit
def _weight(
    t, start, count, anchor, norm, extent, ratio, RADIUS: tl.constexpr, ANTIALIAS: tl.constexpr, REAL: tl.constexpr
):
    """Return the weight of the pixels ``start + t``, from the results of :func:`_window`."""
    if RADIUS == 0:
        weight = tl.where(t < count, anchor + 1.0, 0.0)
    elif ANTIALIAS:
        weight = divide(_filter(t, start, count, anchor, ratio, RADIUS, REAL), norm)
    else:
        weight = _interpolating(t, start, anchor.to(tl.int32), norm, extent, RADIUS, REAL)
    return weight


@triton.jit
def _filter(t, start, count, centre, ratio, RADIUS: tl.constexpr, REAL: tl.constexpr):
    """Return the antialiasing filter at the pixels ``start + t``: a triangle, or a cubic with ``a = -0.5`` as in
    Pillow."""
    shrink = tl.where(ratio >= 1.0, 1.0 / ratio.to(tl.float64), 1.0).to(REAL)
    distance = ((start + t).to(REAL) - centre).to(tl.float64) + 0.5
    x = tl.abs((distance * shrink.to(tl.float64)).to(REAL))
    if RADIUS == 1:
        value = tl.maximum(1.0 - x, 0.0)
    else:
        value = tl.where(x < 1.0, _cubic_inner(x, -0.5), tl.where(x < 2.0, _cubic_outer(x, -0.5), 0.0))
    return tl.where(t < count, value, 0.0)


@triton.jit
def _interpolating(t, start, before, distance, extent, RADIUS: tl.constexpr, REAL: tl.constexpr):
    """Return the weight of the pixels ``start + t`` at ``distance`` from ``before``; border pixels replace those
    outside."""
    weight = tl.full(start.shape, 0.0, REAL)
    for j in tl.static_range(2 * RADIUS):
        pixel = tl.minimum(tl.maximum(before + (j + 1 - RADIUS), 0), extent - 1)
        if RADIUS == 1:
            value = distance if j == 1 else 1.0 - distance
        elif j == 0:
            value = _cubic_outer(distance + 1.0, -0.75)
        elif j == 1:
            value = _cubic_inner(distance, -0.75)
        elif j == 2:
            value = _cubic_inner(1.0 - distance, -0.75)
        else:
            value = _cubic_outer(2.0 - distance, -0.75)
        weight += tl.where(pixel == start + t, value, 0.0)
    return weight


@triton.jit
def _cubic_inner(x, a: tl.constexpr):
    """Return the cubic convolution kernel from 0 to 1."""
    return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0


@triton.jit
def _cubic_outer(x, a: tl.constexpr):
    """Return the cubic convolution kernel from 1 to 2."""
    return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a


@triton.jit
def _fraction_bits(peak):
    """Return the most fractional bits with which the largest weight still fits an int16."""
    tried = tl.arange(0, 32)
    rounded = (0.5 + peak * (tl.full((32,), 1, tl.int64) << (tried + 1)).to(tl.float64)).to(tl.int64)
    return tl.sum(((tried < _MOST_FRACTION_BITS) & (rounded < _WEIGHT_LIMIT)).to(tl.int32))


# --- the sums


@triton.jit(
    do_not_specialize=["channels", "edge_y", "edge_x", "out_height", "out_width", "taps_y", "taps_x", *_IMAGE_STRIDES],
    do_not_specialize_on_alignment=[stride.removesuffix("_stride") for stride in _IMAGE_STRIDES],
)
def _apply_kernel(
    pixels,
    offsets,
    image_heights,
    image_widths,
    plan,
    weights,
    out,
    offsets_stride,
    image_heights_stride,
    image_widths_stride,
    channels,
    edge_y,
    edge_x,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    out_height,
    out_width,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    taps_y,
    taps_x,
    LAYOUT: tl.constexpr,
    FIXED: tl.constexpr,
    WHOLE: tl.constexpr,
    SCALE: tl.constexpr,
    TWO_BY_TWO: tl.constexpr,
    DOWN_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute one tile of one channel of one sample."""
    n = tl.program_id(1).to(tl.int64)
    c = (tl.program_id(0) % channels).to(tl.int64)
    tile = tl.program_id(0) // channels
    tiles_across = tl.cdiv(out_width, COLUMNS)
    row = (tile // tiles_across) * ROWS + tl.arange(0, ROWS)
    column = (tile % tiles_across) * COLUMNS + tl.arange(0, COLUMNS)
    # Lanes beyond the result repeat its last row or column, so only the store needs a mask.
    i = tl.minimum(row, out_height - 1)
    j = tl.minimum(column, out_width - 1)

    if LAYOUT == "strided":
        plane = pixels + n * stride_n + c * stride_c
    else:
        edge_y = tl.load(image_heights + n * image_heights_stride).to(tl.int32)
        edge_x = tl.load(image_widths + n * image_widths_stride).to(tl.int32)
        plane = pixels + tl.load(offsets + n * offsets_stride).to(tl.int64)
        if LAYOUT == "chw":
            plane += c * edge_y * edge_x
            stride_y = edge_x
            stride_x = 1
        else:
            plane += c
            stride_y = edge_x * channels
            stride_x = channels

    plan += n * (4 + out_height + out_width)
    weights += n * (taps_y * out_height + taps_x * out_width)
    weights_x = weights + taps_y * out_height + j
    used_y = tl.load(plan)
    used_x = tl.load(plan + 2)
    y = tl.load(plan + 4 + i)
    x = tl.load(plan + 4 + out_height + j)
    bits_y = tl.load(plan + 1) if FIXED else 0
    bits_x = tl.load(plan + 3) if FIXED else 0
    total = _nothing(bits_y, ROWS, COLUMNS, FIXED)
    if DOWN_FIRST:
        total = _nothing(bits_x, ROWS, COLUMNS, FIXED)
        for t in range(used_x):
            place = _inside(x + t, edge_x) * stride_x
            tall = _nothing(bits_y, ROWS, COLUMNS, FIXED)
            for s in range(used_y):
                line = plane + (_inside(y + s, edge_y) * stride_y)[:, None]
                tall = _add_row(tall, line, place, tl.load(weights + s * out_height + i))
            total = _add_columns(total, tall, tl.load(weights_x + t * out_width), bits_y)
        bits_y = bits_x
    elif TWO_BY_TWO:
        for s in tl.static_range(2):
            line = plane + (_inside(y + s, edge_y) * stride_y)[:, None]
            wide = _nothing(bits_x, ROWS, COLUMNS, FIXED)
            for t in tl.static_range(2):
                share = tl.load(weights_x + tl.minimum(t, used_x - 1) * out_width)
                share = tl.where(t < used_x, share, 0)
                wide = _add(wide, line, _inside(x + t, edge_x) * stride_x, share, SCALE, FIXED)
            share = tl.load(weights + tl.minimum(s, used_y - 1) * out_height + i)
            total = _add_rows(total, wide, tl.where(s < used_y, share, 0), bits_x, FIXED)
    else:
        for s in range(used_y):
            line = plane + (_inside(y + s, edge_y) * stride_y)[:, None]
            wide = _nothing(bits_x, ROWS, COLUMNS, FIXED)
            for t in range(used_x):
                share = tl.load(weights_x + t * out_width)
                wide = _add(wide, line, _inside(x + t, edge_x) * stride_x, share, SCALE, FIXED)
            total = _add_rows(total, wide, tl.load(weights + s * out_height + i), bits_x, FIXED)

    if WHOLE:
        total = total >> bits_y if FIXED else round_half_even(total).to(tl.int32)
        total = tl.minimum(tl.maximum(total, 0), 255)
    target = out + n * out_stride_n + c * out_stride_c + row[:, None] * out_stride_y + column[None, :] * out_stride_x
    stored = (row < out_height)[:, None] & (column < out_width)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _inside(i, edge):
    """Return the nearest index inside the image; pixels outside have no weight."""
    return tl.minimum(tl.maximum(i, 0), edge - 1)


@triton.jit
def _nothing(bits, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FIXED: tl.constexpr):
    """Return the initial sum: zero, or the half that turns truncation of ``bits`` fractional bits into rounding."""
    total = tl.zeros((ROWS, COLUMNS), tl.int32 if FIXED else tl.float32)
    return total + (1 << (bits - 1)) if FIXED else total


@triton.jit
def _add(wide, line, place, share, SCALE: tl.constexpr, FIXED: tl.constexpr):
    """Return ``wide`` plus one more pixel in each row, times its weight."""
    pixel = tl.load(line + place[None, :])
    pixel = pixel.to(tl.int32) if FIXED else pixel.to(tl.float32) * SCALE
    share = share[None, :]
    return wide + pixel * share if FIXED else tl.fma(pixel, share, wide)


@triton.jit
def _add_rows(total, wide, share, bits, FIXED: tl.constexpr):
    """Return ``total`` plus the column sums of one more row for each output, times its weight."""
    wide = tl.minimum(tl.maximum(wide >> bits, 0), 255) if FIXED else wide
    share = share[:, None]
    return total + wide * share if FIXED else tl.fma(wide, share, total)


@triton.jit
def _add_row(tall, line, place, share):
    """Return ``tall`` plus one more pixel in each column, times its weight, in fixed point."""
    return tall + tl.load(line + place[None, :]).to(tl.int32) * share[:, None]


@triton.jit
def _add_columns(total, tall, share, bits):
    """Return ``total`` plus the row sums of one more column for each output, times its weight, in fixed point."""
    return total + tl.minimum(tl.maximum(tall >> bits, 0), 255) * share[None, :]

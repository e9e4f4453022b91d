"""Plan and apply the resampling of a batch: the kernels of :mod:`pipediag.replay.ops.triton.resample`."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from ..families.pillow_filters import FRACTION_BITS
from ..families.resizing import MOST_FRACTION_BITS, WEIGHT_LIMIT
from ._device import divide, round_half_even

_MOST_FRACTION_BITS = tl.constexpr(MOST_FRACTION_BITS)
_PILLOWS_FRACTION_BITS = tl.constexpr(FRACTION_BITS)
_WEIGHT_LIMIT = tl.constexpr(WEIGHT_LIMIT)

# Specializing a kernel for the divisibility or alignment of these arguments gains nothing, and these change from batch
# to batch.
_IMAGE_STRIDES = ("offsets_stride", "image_heights_stride", "image_widths_stride")
_BOX_STRIDES = (*_IMAGE_STRIDES[1:], "tops_stride", "lefts_stride", "heights_stride", "widths_stride")


# --- the plan


@triton.jit(
    do_not_specialize=["edge_y", "edge_x", "out_height", "out_width", "taps_y", "taps_x", *_BOX_STRIDES],
    do_not_specialize_on_alignment=[stride.removesuffix("_stride") for stride in _BOX_STRIDES],
)
def plan_kernel(
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
def apply_kernel(
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

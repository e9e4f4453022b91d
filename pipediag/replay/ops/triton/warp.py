"""Apply affine and perspective warps to a whole batch in one launch, with a separate transform for each sample.

The coordinates are those of torchvision on the CPU, bit by bit: a base grid times the transform as a matrix product,
then ATen's ``grid_sample`` with ``align_corners=False`` (``aten/src/ATen/native/cpu/GridSamplerKernel.cpp``). A
difference of one ulp would change nearest neighbours. Whether the matrix product uses fused multiply-adds depends on
its library and on the CPU, so the first call tests it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..families.warp import INTERPOLATIONS, Fill, Interpolation, cpu_fuses_products
from ._device import pick, round_half_even
from ._host import check_images, launch_warp


def affine(
    x: Tensor, matrix: Tensor, *, interpolation: Interpolation, fill: Fill, size: tuple[int, int] | None = None
) -> Tensor:
    """Warp as ``affine_image`` of torchvision v2, and as ``rotate_image`` when it interpolates.

    Images are uint8 or float32, of any strides, with up to four channels of different fills. ``matrix`` is as for
    :func:`..families.warp.affine`; the result has the memory format of ``x``.
    """
    return _warp(x, matrix, 6, interpolation, fill, size or (x.shape[-2], x.shape[-1]))


def perspective(x: Tensor, coefficients: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``perspective_image`` of torchvision v2; as :func:`affine`, with ``coefficients`` ``(N, 8)``."""
    return _warp(x, coefficients, 8, interpolation, fill, (x.shape[-2], x.shape[-1]))


def _warp(x: Tensor, transform: Tensor, numbers: int, interpolation: str, fill: Fill, size: tuple[int, int]) -> Tensor:
    check_images(x)
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation {interpolation!r} is not one of {INTERPOLATIONS}")
    return launch_warp(
        _warp_kernel,
        x,
        transform,
        numbers,
        0.0 if fill is None else fill,
        size,
        NEAREST=interpolation == "nearest",
        FILL=fill is not None,
        FUSED=cpu_fuses_products(),
        WHOLE=x.dtype == torch.uint8,
    )


@triton.jit(
    do_not_specialize=["height", "width", "out_height", "out_width", "transform_stride_n", "transform_stride"],
    do_not_specialize_on_alignment=["transform"],
)
def _warp_kernel(
    x,
    out,
    transform,
    transform_stride_n,
    transform_stride,
    fill_0,
    fill_1,
    fill_2,
    fill_3,
    height,
    width,
    out_height,
    out_width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    CHANNELS: tl.constexpr,
    PERSPECTIVE: tl.constexpr,
    NEAREST: tl.constexpr,
    FILL: tl.constexpr,
    FUSED: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(out_width, COLUMNS)
    i = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    j = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (i < out_height) & (j < out_width)

    half_width = width * 0.5
    half_height = height * 0.5
    if PERSPECTIVE:
        grid_x, grid_y = _perspective_grid(
            transform + n * transform_stride_n, transform_stride, j + 0.5, i + 0.5, half_width, half_height, FUSED
        )
    else:
        # `linspace` from (1 - size) / 2 in steps of 1, which is exact.
        base_x = j - (out_width - 1) * 0.5
        base_y = i - (out_height - 1) * 0.5
        grid_x, grid_y = _affine_grid(
            transform + n * transform_stride_n, transform_stride, base_x, base_y, half_width, half_height, FUSED
        )
    place_x = tl.fma(grid_x + 1.0, half_width, -0.5)
    place_y = tl.fma(grid_y + 1.0, half_height, -0.5)

    source = x + n * stride_n
    target = out + n * out_stride_n + i * out_stride_y + j * out_stride_x
    for c in tl.static_range(CHANNELS):
        fill = pick(c % 4, fill_0, fill_1, fill_2, fill_3)
        plane = source + c * stride_c
        if NEAREST:
            value, covered = _pixel(
                plane, round_half_even(place_y), round_half_even(place_x), height, width, stride_y, stride_x
            )
            if FILL:
                value = tl.where(covered, value, fill)
        else:
            value, weight = _bilinear(plane, place_y, place_x, height, width, stride_y, stride_x)
            if FILL:
                value = (value - fill) * weight + fill
        if WHOLE:
            value = round_half_even(value).to(tl.int32)
        tl.store(target + c * out_stride_c, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _affine_grid(matrix, stride, base_x, base_y, half_width, half_height, FUSED: tl.constexpr):
    """Return normalized source positions: the base grid times the transposed matrix, which is first divided by half the
    size."""
    a = tl.div_rn(tl.load(matrix).to(tl.float32), half_width)
    b = tl.div_rn(tl.load(matrix + stride).to(tl.float32), half_width)
    c = tl.div_rn(tl.load(matrix + 2 * stride).to(tl.float32), half_width)
    d = tl.div_rn(tl.load(matrix + 3 * stride).to(tl.float32), half_height)
    e = tl.div_rn(tl.load(matrix + 4 * stride).to(tl.float32), half_height)
    f = tl.div_rn(tl.load(matrix + 5 * stride).to(tl.float32), half_height)
    return _linear(base_x, base_y, a, b, c, FUSED), _linear(base_x, base_y, d, e, f, FUSED)


@triton.jit
def _perspective_grid(coefficients, stride, base_x, base_y, half_width, half_height, FUSED: tl.constexpr):
    """Return normalized source positions: an affine grid divided by a second one."""
    over_x, over_y = _affine_grid(coefficients, stride, base_x, base_y, half_width, half_height, FUSED)
    g = tl.load(coefficients + 6 * stride).to(tl.float32)
    h = tl.load(coefficients + 7 * stride).to(tl.float32)
    under = _linear(base_x, base_y, g, h, 1.0, FUSED)
    return tl.div_rn(over_x, under) - 1.0, tl.div_rn(over_y, under) - 1.0


@triton.jit
def _linear(x, y, a, b, c, FUSED: tl.constexpr):
    """Return ``a * x + b * y + c`` in the order of a matrix product."""
    start = x * a
    both = tl.fma(y, b, start) if FUSED else start + y * b
    return both + c


@triton.jit
def _pixel(plane, y, x, height, width, stride_y, stride_x):
    """Return the pixel at whole coordinates, or 0, and whether it exists."""
    covered = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    # Coordinates may be anything, even NaN; only those inside the image must survive the conversion.
    row = tl.where(covered, y, 0.0).to(tl.int32)
    column = tl.where(covered, x, 0.0).to(tl.int32)
    return tl.load(plane + row * stride_y + column * stride_x, mask=covered, other=0).to(tl.float32), covered


@triton.jit
def _bilinear(plane, y, x, height, width, stride_y, stride_x):
    """Return the weighted sum of the four pixels around a position, and that of a plane of ones: the part inside the
    image."""
    top = tl.floor(y)
    left = tl.floor(x)
    below = y - top
    right = x - left
    above = 1.0 - below
    before = 1.0 - right
    weight_00 = above * before
    weight_01 = above * right
    weight_10 = below * before
    weight_11 = below * right
    pixel_00, covered_00 = _pixel(plane, top, left, height, width, stride_y, stride_x)
    pixel_01, covered_01 = _pixel(plane, top, left + 1.0, height, width, stride_y, stride_x)
    pixel_10, covered_10 = _pixel(plane, top + 1.0, left, height, width, stride_y, stride_x)
    pixel_11, covered_11 = _pixel(plane, top + 1.0, left + 1.0, height, width, stride_y, stride_x)
    value = tl.fma(pixel_11, weight_11, tl.fma(pixel_10, weight_10, tl.fma(pixel_01, weight_01, pixel_00 * weight_00)))
    # Adding the weights of covered pixels one by one rounds like the same chain of sums over ones.
    weight = tl.where(covered_00, weight_00, 0.0) + tl.where(covered_01, weight_01, 0.0)
    weight = (weight + tl.where(covered_10, weight_10, 0.0)) + tl.where(covered_11, weight_11, 0.0)
    return value, weight

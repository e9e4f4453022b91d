"""Warp a batch of 8-bit images as Pillow does in one launch, with a separate transform for each sample.

The arithmetic is that of :mod:`pipediag.replay.ops.families.pillow_warp`: float64, without fused multiply-adds.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..families.pillow_warp import Fill, Interpolation
from ._device import pick
from ._host import check_images, launch_warp


def affine(x: Tensor, matrix: Tensor, *, size: tuple[int, int], interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as :func:`..families.pillow_warp.affine`; images may have any strides and up to 4 channels."""
    return _warp(x, matrix, 6, size, interpolation, fill)


def perspective(
    x: Tensor, coefficients: Tensor, *, size: tuple[int, int], interpolation: Interpolation, fill: Fill
) -> Tensor:
    """Warp as :func:`..families.pillow_warp.perspective`; images may have any strides and up to 4 channels."""
    return _warp(x, coefficients, 8, size, interpolation, fill)


def _warp(
    x: Tensor, transform: Tensor, numbers: int, size: tuple[int, int], interpolation: Interpolation, fill: Fill
) -> Tensor:
    check_images(x)
    if x.dtype != torch.uint8:
        raise TypeError(f"Pillow's images are uint8, not {x.dtype}")
    return launch_warp(_warp_kernel, x, transform, numbers, fill, size, INTERPOLATION=interpolation)


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
    INTERPOLATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(out_width, COLUMNS)
    i = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    j = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    stored = (i < out_height) & (j < out_width)

    numbers = transform + n * transform_stride_n
    across = j.to(tl.float64) + 0.5
    down = i.to(tl.float64) + 0.5
    column = _linear(numbers, transform_stride, across, down)
    row = _linear(numbers + 3 * transform_stride, transform_stride, across, down)
    if PERSPECTIVE:
        g = tl.load(numbers + 6 * transform_stride)
        h = tl.load(numbers + 7 * transform_stride)
        divisor = g * across + h * down + 1.0
        column = column / divisor
        row = row / divisor
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column = tl.where(inside, column, 0.0)
    row = tl.where(inside, row, 0.0)

    source = x + n * stride_n
    target = out + n * out_stride_n + i * out_stride_y + j * out_stride_x
    for c in tl.static_range(CHANNELS):
        plane = source + c * stride_c
        if INTERPOLATION == "nearest":
            value = tl.load(plane + row.to(tl.int32) * stride_y + column.to(tl.int32) * stride_x).to(tl.int32)
        elif INTERPOLATION == "bilinear":
            value = _bilinear(plane, row - 0.5, column - 0.5, height, width, stride_y, stride_x)
        else:
            value = _bicubic(plane, row - 0.5, column - 0.5, height, width, stride_y, stride_x)
        value = tl.where(inside, value, pick(c % 4, fill_0, fill_1, fill_2, fill_3).to(tl.int32))
        tl.store(target + c * out_stride_c, value.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _linear(numbers, stride, across, down):
    a = tl.load(numbers)
    b = tl.load(numbers + stride)
    c = tl.load(numbers + 2 * stride)
    return a * across + b * down + c


@triton.jit
def _bilinear(plane, row, column, height, width, stride_y, stride_x):
    top = tl.floor(row)
    left = tl.floor(column)
    across = column - left
    upper = _mixed(plane, top, left, across, height, width, stride_y, stride_x)
    lower = _mixed(plane, top + 1.0, left, across, height, width, stride_y, stride_x)
    return (upper + (lower - upper) * (row - top)).to(tl.int32)


@triton.jit
def _mixed(plane, row, left, across, height, width, stride_y, stride_x):
    """Return the value between two pixels of a row."""
    first = _level(plane, row, left, height, width, stride_y, stride_x)
    second = _level(plane, row, left + 1.0, height, width, stride_y, stride_x)
    return first + (second - first) * across


@triton.jit
def _bicubic(plane, row, column, height, width, stride_y, stride_x):
    top = tl.floor(row)
    left = tl.floor(column)
    across = column - left
    first = _curve(plane, top - 1.0, left, across, height, width, stride_y, stride_x)
    second = _curve(plane, top, left, across, height, width, stride_y, stride_x)
    third = _curve(plane, top + 1.0, left, across, height, width, stride_y, stride_x)
    fourth = _curve(plane, top + 2.0, left, across, height, width, stride_y, stride_x)
    value = _cubic(first, second, third, fourth, row - top)
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)


@triton.jit
def _curve(plane, row, left, across, height, width, stride_y, stride_x):
    """Return the value among four pixels of a row."""
    first = _level(plane, row, left - 1.0, height, width, stride_y, stride_x)
    second = _level(plane, row, left, height, width, stride_y, stride_x)
    third = _level(plane, row, left + 1.0, height, width, stride_y, stride_x)
    fourth = _level(plane, row, left + 2.0, height, width, stride_y, stride_x)
    return _cubic(first, second, third, fourth, across)


@triton.jit
def _cubic(v1, v2, v3, v4, d):
    slope = v3 - v1
    bend = 2.0 * (v1 - v2) + v3 - v4
    twist = v2 - v1 - v3 + v4
    return v2 + d * (slope + d * (bend + d * twist))


@triton.jit
def _level(plane, row, column, height, width, stride_y, stride_x):
    """Return the pixel at whole coordinates in float64; beyond the border lie the border's pixels."""
    y = tl.minimum(tl.maximum(row.to(tl.int32), 0), height - 1)
    x = tl.minimum(tl.maximum(column.to(tl.int32), 0), width - 1)
    return tl.load(plane + y * stride_y + x * stride_x).to(tl.float64)

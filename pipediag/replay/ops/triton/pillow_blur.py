"""Blur a batch of 8-bit images as Pillow's ``BoxBlur`` and ``GaussianBlur`` do, in one launch for each pass.

The arithmetic is that of :mod:`pipediag.replay.ops.families.pillow_blur`. The eager kernel takes about twenty launches
for a pass; the thread that issues them competes with the training loop for the interpreter's lock.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._host import blocks, check_images, empty_like
from ._launch import launch

_TILE = (8, 128)
_FRACTION_BITS = tl.constexpr(24)
_HALF = tl.constexpr(1 << 23)


def box_blur(x: Tensor, numbers: Tensor, *, passes: int) -> Tensor:
    """Blur as :func:`..families.pillow_blur.box_blur`; images may have any strides."""
    check_images(x)
    if x.dtype != torch.uint8:
        raise TypeError(f"Pillow's images are uint8, not {x.dtype}")
    samples, channels, height, width = x.shape
    if numbers.shape != (samples, 6):
        raise ValueError(f"numbers of shape {tuple(numbers.shape)}, where {(samples, 6)} is needed")
    made, free = empty_like(x, (height, width), x.dtype), empty_like(x, (height, width), x.dtype)
    if made.numel() == 0:
        return made
    tiles = blocks(height, _TILE[0]) * blocks(width, _TILE[1])
    source = x
    for down in (False,) * passes + (True,) * passes:
        launch(
            _box_kernel,
            (tiles * channels, samples),
            source,
            made,
            numbers,
            *numbers.stride(),
            channels,
            height,
            width,
            *source.stride(),
            *made.stride(),
            DOWN=down,
            ROWS=_TILE[0],
            COLUMNS=_TILE[1],
        )
        source, made, free = made, free, made
    return source


@triton.jit(
    do_not_specialize=["channels", "height", "width", "numbers_stride_n", "numbers_stride"],
    do_not_specialize_on_alignment=["numbers"],
)
def _box_kernel(
    x,
    out,
    numbers,
    numbers_stride_n,
    numbers_stride,
    channels,
    height,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    DOWN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur one tile of one channel of one sample, in one direction."""
    n = tl.program_id(1).to(tl.int64)
    c = (tl.program_id(0) % channels).to(tl.int64)
    tile = tl.program_id(0) // channels
    tiles = tl.cdiv(width, COLUMNS)
    i = (tile // tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    j = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    stored = (i < height) & (j < width)
    plane = x + n * stride_n + c * stride_c
    own = numbers + n * numbers_stride_n
    if DOWN:
        own += 3 * numbers_stride
        line = plane + tl.minimum(j, width - 1) * stride_x
        place, last, stride = i, height - 1, stride_y
    else:
        line = plane + tl.minimum(i, height - 1) * stride_y
        place, last, stride = j, width - 1, stride_x
    radius = tl.load(own).to(tl.int32)
    weight = tl.load(own + numbers_stride).to(tl.int64)
    weight_beyond = tl.load(own + 2 * numbers_stride).to(tl.int64)

    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    for k in range(2 * radius + 1):
        total += _level(line, place + (k - radius), last, stride)
    beyond = _level(line, place - radius - 1, last, stride) + _level(line, place + radius + 1, last, stride)
    value = (total.to(tl.int64) * weight + beyond.to(tl.int64) * weight_beyond + _HALF) >> _FRACTION_BITS
    target = out + n * out_stride_n + c * out_stride_c + i * out_stride_y + j * out_stride_x
    tl.store(target, value.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _level(line, place, last, stride):
    """Return the pixels at places of a line; beyond the border lie the border's pixels."""
    return tl.load(line + tl.minimum(tl.maximum(place, 0), last) * stride).to(tl.int32)

"""Count the levels of each channel in a batch of uint8 images, and replace them by those of tables."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._host import blocks, empty_like
from ._launch import launch

_LEVELS = 256
_BLOCK = 1024
_SLICES = 8  # parts of an image that are counted in parallel


def counts(x: Tensor) -> Tensor:
    """Return the number of pixels of each level, int32 ``(N, C, 256)``, for images ``(N, C, H, W)`` in uint8."""
    samples, channels, height, width = x.shape
    found = torch.zeros((samples, channels, _LEVELS), dtype=torch.int32, device=x.device)
    if x.numel():
        launch(
            _count_kernel,
            (_SLICES, samples * channels),
            x,
            found,
            channels,
            height * width,
            width,
            *x.stride(),
            BLOCK=_BLOCK,
            BINS=_LEVELS,
            SLICES=_SLICES,
        )
    return found


def mapped(x: Tensor, tables: Tensor) -> Tensor:
    """Return images ``(N, C, H, W)`` in uint8 with each level replaced by its entry in ``tables``, uint8
    ``(N, C, 256)``."""
    samples, channels, height, width = x.shape
    out = empty_like(x, (height, width), torch.uint8)
    if x.numel():
        launch(
            _map_kernel,
            (blocks(height * width, _BLOCK), samples * channels),
            x,
            out,
            tables.contiguous(),
            channels,
            height * width,
            width,
            *x.stride(),
            *out.stride(),
            BLOCK=_BLOCK,
            BINS=_LEVELS,
        )
    return out


@triton.jit
def _count_kernel(
    x,
    counts,
    channels,
    pixels,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    SLICES: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    x += (plane // channels) * stride_n + (plane % channels) * stride_c
    bins = tl.arange(0, BINS)
    found = tl.zeros((BINS,), tl.int32)
    for begin in range(tl.program_id(0) * BLOCK, pixels, SLICES * BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < pixels
        level = tl.load(x + (at // width) * stride_y + (at % width) * stride_x, mask=inside, other=0).to(tl.int32)
        outside = tl.sum((at >= pixels).to(tl.int32))  # these were counted as black
        found += tl.histogram(level, BINS) - tl.where(bins == 0, outside, 0)
    tl.atomic_add(counts + plane * BINS + bins, found)


@triton.jit
def _map_kernel(
    x,
    out,
    tables,
    channels,
    pixels,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    n = plane // channels
    c = plane % channels
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < pixels
    i = at // width
    j = at % width
    level = tl.load(x + n * stride_n + c * stride_c + i * stride_y + j * stride_x, mask=inside, other=0).to(tl.int32)
    new = tl.load(tables + plane * BINS + level)
    tl.store(out + n * out_stride_n + c * out_stride_c + i * out_stride_y + j * out_stride_x, new, mask=inside)

"""Apply Gaussian blur to a whole batch in one launch, with separate standard deviations for each sample.

A program loops over the rows that its tile needs, blurs each along x once, and adds the result to all rows of the tile
that use it: ``kx + ky`` multiplications per pixel. torchvision convolves with the outer product of two kernels, which
takes ``kx * ky`` and differs by a few units in the last place of a float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._device import pick, round_half_even
from ._host import blocks, check_images, empty_like, normalization
from ._launch import launch

_TILE = (8, 128)
_MOST_UNROLLED = 9  # taps; more would take long to compile

#: Distance between taps: torchvision spaces k taps from ``-(k - 1) / sqrt(8)`` to ``(k - 1) / sqrt(8)``.
_STEP = tl.constexpr(1.0 / math.sqrt(2.0))


def gaussian_blur(
    x: Tensor,
    sigma: Tensor,
    *,
    kernel_size: tuple[int, int],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """Blur as ``gaussian_blur_image`` of torchvision v2, followed by ``normalize_image`` on request.

    Images are uint8 or float32, of any strides; ``sigma`` is ``(N, 2)``, along x and y, as ``kernel_size``. ``mean``
    and ``std`` have one number for each channel (four at most), or one for all.
    """
    check_images(x)
    samples, channels, height, width = x.shape
    across, down = kernel_size
    if sigma.shape != (samples, 2):
        raise ValueError(f"deviations of shape {tuple(sigma.shape)}, where {(samples, 2)} is needed")
    if across % 2 == 0 or down % 2 == 0 or across // 2 >= width or down // 2 >= height:
        raise ValueError(f"a kernel of {kernel_size} for images of {width} by {height} pixels")
    means, stds = normalization(mean, std, channels, x.dtype)
    out = empty_like(x, (height, width), x.dtype)
    if out.numel() == 0:
        return out
    launch(
        _blur_kernel,
        (blocks(height, _TILE[0]) * blocks(width, _TILE[1]) * channels, samples),
        x,
        out,
        sigma,
        *sigma.stride(),
        *means,
        *stds,
        channels,
        height,
        width,
        *x.stride(),
        *out.stride(),
        ACROSS=across,
        DOWN=down,
        UNROLLED=max(across, down) <= _MOST_UNROLLED,
        NORMALIZE=mean is not None,
        WHOLE=x.dtype == torch.uint8,
        ROWS=_TILE[0],
        COLUMNS=_TILE[1],
    )
    return out


@triton.jit(
    do_not_specialize=["channels", "height", "width", "sigma_stride_n", "sigma_stride"],
    do_not_specialize_on_alignment=["sigma"],
)
def _blur_kernel(
    x,
    out,
    sigma,
    sigma_stride_n,
    sigma_stride,
    mean_0,
    mean_1,
    mean_2,
    mean_3,
    std_0,
    std_1,
    std_2,
    std_3,
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
    ACROSS: tl.constexpr,
    DOWN: tl.constexpr,
    UNROLLED: tl.constexpr,
    NORMALIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur one tile of one channel of one sample."""
    n = tl.program_id(1).to(tl.int64)
    c = (tl.program_id(0) % channels).to(tl.int64)
    tile = tl.program_id(0) // channels
    tiles = tl.cdiv(width, COLUMNS)
    first = (tile // tiles) * ROWS
    i = tl.arange(0, ROWS)
    j = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    plane = x + n * stride_n + c * stride_c
    scale_x = _STEP / tl.load(sigma + n * sigma_stride_n).to(tl.float32)
    scale_y = _STEP / tl.load(sigma + n * sigma_stride_n + sigma_stride).to(tl.float32)
    norm_x = 0.0
    for t in tl.static_range(ACROSS):
        norm_x += _bell(t, scale_x, 1.0, ACROSS)
    norm_y = 0.0
    for t in tl.static_range(DOWN):
        norm_y += _bell(t, scale_y, 1.0, DOWN)
    share_x = 1.0 / norm_x
    share_y = 1.0 / norm_y

    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if UNROLLED:
        for row in tl.static_range(ROWS + DOWN - 1):
            line = plane + _reflected(first + row - DOWN // 2, height) * stride_y
            wide = _blurred_line(line, j, width, stride_x, scale_x, share_x, ACROSS)
            for t in tl.static_range(DOWN):
                if row >= t and row - t < ROWS:
                    added = tl.fma(wide[None, :], _bell(t, scale_y, share_y, DOWN), total)
                    total = tl.where((i == row - t)[:, None], added, total)
    else:
        for row in range(ROWS + DOWN - 1):
            line = plane + _reflected(first + row - DOWN // 2, height) * stride_y
            wide = _blurred_line(line, j, width, stride_x, scale_x, share_x, ACROSS)
            tap = row - i
            weight = tl.where((tap >= 0) & (tap < DOWN), _bell(tap, scale_y, share_y, DOWN), 0.0)
            total = tl.fma(wide[None, :], weight[:, None], total)

    if NORMALIZE:
        std = pick(c, std_0, std_1, std_2, std_3)
        total = tl.div_rn(total - pick(c, mean_0, mean_1, mean_2, mean_3), std)
    if WHOLE:
        total = round_half_even(total).to(tl.int32)
    i += first
    target = out + n * out_stride_n + c * out_stride_c + i[:, None] * out_stride_y + j[None, :] * out_stride_x
    tl.store(target, total.to(out.dtype.element_ty), mask=(i < height)[:, None] & (j < width)[None, :])


@triton.jit
def _blurred_line(line, j, width, stride_x, scale, share, TAPS: tl.constexpr):
    """Return columns ``j`` of a row, blurred along it."""
    total = tl.zeros(j.shape, tl.float32)
    for t in tl.static_range(TAPS):
        pixel = tl.load(line + _reflected(j + (t - TAPS // 2), width) * stride_x).to(tl.float32)
        total = tl.fma(pixel, _bell(t, scale, share, TAPS), total)
    return total


@triton.jit
def _bell(t, scale, share, TAPS: tl.constexpr):
    """Return the weight of tap ``t``: a Gaussian of its distance from the middle tap, in units of the deviation."""
    distance = (t - TAPS // 2) * scale
    return tl.exp(-(distance * distance)) * share


@triton.jit
def _reflected(i, edge):
    """Mirror indices at the first and the last pixel, neither of which is repeated; clamp indices farther out."""
    i = tl.abs(i)
    return tl.maximum((edge - 1) - tl.abs(edge - 1 - i), 0)

"""Turn the decoded planes of JPEGs into RGB pixels in one launch, with the arithmetic of libjpeg.

A JPEG often holds chroma at half the resolution. libjpeg interpolates it between the two or four nearest samples, by
3/4 and 1/4 in each direction (``h2v1_fancy_upsample``, ``h2v2_fancy_upsample`` of its ``jdsample.c``), and converts to
RGB with 16-bit fractions (``jdcolor.c``). Both are integer arithmetic, so the pixels are those of the CPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ._host import blocks
from ._launch import launch

_BLOCK = 1024


def to_rgb(planes: Tensor, table: Tensor, out: Tensor, most_pixels: int) -> None:
    """Write the pixels of JPEGs into ``out``.

    Args:
        planes: uint8, 1-d; the planes of all images.
        table: int64 ``(N, 7)`` on the same device: for each image the offsets of its three planes in ``planes``, of its
            pixels ``(height, width, 3)`` in ``out``, its height and width, and its sampling as in
            :class:`~pipediag.replay.decode.jpeg_header.Jpeg`.
        out: uint8, 1-d.
        most_pixels: number of pixels of the largest image.
    """
    launch(_rgb_kernel, (len(table), blocks(most_pixels, _BLOCK)), planes, table, out, BLOCK=_BLOCK)


@triton.jit(do_not_specialize_on_alignment=["planes", "table", "out"])
def _rgb_kernel(planes, table, out, BLOCK: tl.constexpr):
    row = table + tl.program_id(0) * 7
    height = tl.load(row + 4).to(tl.int32)
    width = tl.load(row + 5).to(tl.int32)
    sampling = tl.load(row + 6).to(tl.int32)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < height * width
    i = at // width
    j = at % width

    y = tl.load(planes + tl.load(row) + at, mask=inside, other=0).to(tl.int32)
    cb = _chroma(planes + tl.load(row + 1), i, j, height, width, sampling, inside) - 128
    cr = _chroma(planes + tl.load(row + 2), i, j, height, width, sampling, inside) - 128
    pixel = out + tl.load(row + 3) + 3 * at
    _store(pixel, y + ((91881 * cr + 32768) >> 16), inside)  # 1.402 * 2**16, rounded
    _store(pixel + 1, y + ((-22554 * cb - 46802 * cr + 32768) >> 16), inside)  # 0.34414 and 0.71414
    _store(pixel + 2, y + ((116130 * cb + 32768) >> 16), inside)  # 1.772


@triton.jit
def _chroma(plane, i, j, height, width, sampling, inside):
    """Return the samples at the pixels of rows ``i`` and columns ``j``."""
    wide = sampling >> 4
    high = sampling & 15
    columns = (width + wide - 1) // wide
    rows = (height + high - 1) // high
    near_row = i // high
    near_column = j // wide
    # The other sample lies on the pixel's own side; beyond the border it is the nearest one itself.
    far_row = tl.minimum(tl.maximum(near_row + 2 * (i & 1) - 1, 0), rows - 1)
    far_column = tl.minimum(tl.maximum(near_column + 2 * (j & 1) - 1, 0), columns - 1)
    interpolated = (wide == 2) & (columns > 2)  # libjpeg repeats the samples of narrower images
    far_row = tl.where(interpolated & (high == 2), far_row, near_row)
    far_column = tl.where(interpolated, far_column, near_column)
    near = 3 * _sample(plane, near_row, near_column, columns, inside)
    near += _sample(plane, far_row, near_column, columns, inside)
    far = 3 * _sample(plane, near_row, far_column, columns, inside)
    far += _sample(plane, far_row, far_column, columns, inside)
    # A row that is its own neighbour gives four times the sample: the sums are then those of one direction, times four.
    rounding = tl.where(high == 2, 8 - (j & 1), 4 + 4 * (j & 1))
    return (3 * near + far + rounding) >> 4


@triton.jit
def _sample(plane, i, j, columns, inside):
    return tl.load(plane + i * columns + j, mask=inside, other=0).to(tl.int32)


@triton.jit
def _store(pixel, value, inside):
    tl.store(pixel, tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8), mask=inside)

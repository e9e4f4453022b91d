"""Crop a box of every sample and resize all boxes to one size: two launches for a whole batch.

The first launch makes a plan: for each position along either axis of the result, the first source pixel and the weights
(``aten/src/ATen/native/cpu/UpSampleKernel.cpp`` and ``UpSample.h``, in the precision that ATen uses). The second
applies it: a pixel of the result is the sum over its source rows of the sums over their columns, without intermediate
results in memory.

From uint8 to uint8, ATen has CPU kernels with fixed-point weights: every sum is exact, and the sum over the columns is
rounded to uint8 before the rows are added. If torchvision does not use them (on CUDA, and for bilinear images with some
releases on some CPUs), it computes in float32 and rounds once. Pillow's weights have more bits, and it may sum over the
rows first (:mod:`pipediag.replay.ops.families.pillow_filters`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..families.pillow_filters import Pass
from ..families.resizing import DIRECT_LIMIT
from ._host import blocks, check_images, empty_like
from ._launch import launch
from ._resample_kernels import apply_kernel, plan_kernel

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
Layout = Literal["chw", "hwc"]

#: Number of pixels that a filter extends to either side if it does not shrink the image.
_RADIUS = {"nearest": 0, "nearest-exact": 0, "bilinear": 1, "bicubic": 2}
_PLAN_BLOCK = 256
_TILE = (8, 128)

_UINT8_SCALE = 1.0 / 255.0


def resized_crop(
    source: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    *,
    size: tuple[int, int],
    antialias: bool,
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
        antialias: whether the filter grows with the scale if the image shrinks; the nearest modes ignore it.
        interpolation: the filter.
        out_dtype: by default that of ``source``. With float32, uint8 images are taken as numbers from 0 to 255 and
            resampled without rounding, as if they had been converted before.
        scale: whether uint8 images are multiplied by 1 / 255 when they are read, as by ``ToDtype(scale=True)``.
        largest: height and width of the largest box, by default those of the images: boxes larger than their image need
            it, and a smaller one saves memory.
        fixed_point: if False, uint8 images are resampled in float32 and rounded once.
        pillow: the pass that Pillow makes first, if uint8 images are resized as by Pillow, bilinearly or bicubically.
            ``antialias`` and ``fixed_point`` must be True then.
    """
    check_images(source)
    dtype = _result_dtype(source.dtype, out_dtype, scale)
    out = empty_like(source, size, dtype)
    images = _Images(source, source, source, source, (source.shape[2], source.shape[3]), source.stride(), "strided")
    filtering = _Filtering(interpolation, antialias, scale, fixed_point, pillow)
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
    antialias: bool,
    interpolation: Interpolation = "bilinear",
    out_dtype: torch.dtype | None = None,
    scale: bool = False,
    fixed_point: bool = True,
    pillow: Pass | None = None,
) -> Tensor:
    """Crop and resize as :func:`resized_crop`, from images of different sizes stored in one flat tensor of uint8.

    Args:
        offset, image_height, image_width: index of each image's first byte, and its size in pixels: ``(N,)``, whole
            numbers of any dtype.
        layout: ``"chw"``, one plane after the other, or ``"hwc"``, pixel by pixel.
    """
    if slab.ndim != 1 or layout not in ("chw", "hwc"):
        raise ValueError(f"a slab with {slab.ndim} dimensions and layout {layout!r}")
    if slab.dtype != torch.uint8:
        raise TypeError(f"a slab is uint8, not {slab.dtype}")
    dtype = _result_dtype(slab.dtype, out_dtype, scale)
    out = torch.empty((top.shape[0], channels, *size), dtype=dtype, device=slab.device)
    images = _Images(slab, offset, image_height, image_width, (0, 0), (0, 0, 0, 0), layout)
    filtering = _Filtering(interpolation, antialias, scale, fixed_point, pillow)
    return _resample(images, (top, left, height, width), out, largest, filtering)


class _Images(NamedTuple):
    """Locations of the pixels: common ``edges`` (height, width) and ``strides``, or separate numbers for each image."""

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
    launch(
        plan_kernel,
        (samples, 2),
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
        DIRECT=out_height + out_width <= DIRECT_LIMIT,
        REAL=tl.float64 if fixed and radius > 0 else tl.float32,
        FIXED=fixed,
        PILLOW=filtering.pillow is not None,
        BLOCK=_PLAN_BLOCK,
    )
    launch(
        apply_kernel,
        (tiles * channels, samples),
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
    )
    return out

"""Map each op to the fused kernel that replays it, if triton works; see also :mod:`pipediag.remedy.kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from .batched import colour, pillow_colour
from .kernels import Static, Table, in_fixed_point, pillow_warps, warps
from .triton import blur, levels, pillow_warp, resample, warp
from .triton import pixels as programs


def _pixels(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    """Run the ``pixels`` programs: ``numbers`` as in :class:`~pipediag.remedy.fuse.Programs`, ``bulk`` their
    operands."""
    dtype, mean, std, longest, contrasts, pillow = static
    samples = len(x)
    flips, codes, tables = numbers.tensor_split((samples, samples * (1 + longest)))
    return programs.run(
        x,
        codes.view(samples, longest),
        bulk,
        tables=tables.view(torch.uint8).view(-1, x.shape[1], 256),
        flips=flips,
        contrast=contrasts,
        pillow=pillow,
        out_dtype=dtype,
        mean=mean,
        std=std,
    )


def _resample(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    height, width, interpolation, antialias, fixed, pillow, converted, *largest = static
    top, left, box_height, box_width = numbers
    return resample.resized_crop(
        x,
        top,
        left,
        box_height,
        box_width,
        size=(height, width),
        interpolation=interpolation,
        antialias=antialias,
        out_dtype=torch.float32 if converted else None,
        scale=converted == "multiply",
        fixed_point=pillow is not None or in_fixed_point(interpolation, fixed),
        pillow=pillow,
        largest=tuple(largest) if largest else None,
    )


def resample_ragged(memory: Tensor, numbers: Tensor, static: Static) -> Tensor:
    """Resize images of different sizes, all with the same number of channels, at the offsets in ``memory`` that
    ``numbers`` gives."""
    height, width, interpolation, antialias, fixed, pillow, converted, *largest, channels, layout = static
    top, left, box_height, box_width, offset, image_height, image_width = numbers
    return resample.resized_crop_ragged(
        memory,
        offset,
        image_height,
        image_width,
        top,
        left,
        box_height,
        box_width,
        channels=channels,
        layout=layout,
        size=(height, width),
        largest=(largest[0], largest[1]),
        interpolation=interpolation,
        antialias=antialias,
        out_dtype=torch.float32 if converted else None,
        scale=converted == "multiply",
        fixed_point=pillow is not None or in_fixed_point(interpolation, fixed),
        pillow=pillow,
    )


def _gaussian_blur(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    *kernel, mean, std = static
    return blur.gaussian_blur(x, numbers, kernel_size=(kernel[0], kernel[1]), mean=mean, std=std)


def _equalize(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return levels.mapped(x, colour.equalizing(levels.counts(x), x.shape[-2] * x.shape[-1]))


def _autocontrast(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return levels.mapped(x, pillow_colour.stretching(x))


_WARPS: Table = {
    **warps(warp.affine, warp.affine, warp.perspective),
    **pillow_warps(pillow_warp.affine, pillow_warp.perspective),
}

KERNELS: Table = {
    "pixels": _pixels,
    "fast_resample": _resample,
    "fast_gaussian_blur": _gaussian_blur,
    "fast_equalize": _equalize,
    "fast_pillow_autocontrast": _autocontrast,
    **{f"fast_{name}": kernel for name, kernel in _WARPS.items()},
}

"""Map each op to the fused kernel that replays it, if triton works; see also :mod:`pipediag.replay.ops.kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .batched import colour, pillow_colour
from .kernels import Static, Table, resizing, warped, warped_to_size
from .triton import blur, levels, pillow_warp, resample, warp
from .triton import pixels as programs


def _pixels(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    """Run the ``pixels`` programs: ``numbers`` as in :class:`.pixel_programs.Programs`, ``bulk`` their
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
    *settings, converted, height, width = static
    return resample.resized_crop(x, *numbers, **_converting(settings, converted), largest=(height, width))


def resample_ragged(memory: Tensor, numbers: Tensor, static: Static) -> Tensor:
    """Resize images of different sizes, all with the same number of channels, at the offsets in ``memory`` that
    ``numbers`` gives."""
    *settings, converted, height, width, channels, layout = static
    box, image = numbers[:4], numbers[4:]
    return resample.resized_crop_ragged(
        memory,
        *image,
        *box,
        **_converting(settings, converted),
        largest=(height, width),
        channels=channels,
        layout=layout,
    )


def _converting(settings: Sequence[Any], converted: str | None) -> dict[str, Any]:
    """Return the settings of a resize that also converts its input, in the way that ``converted`` names."""
    out_dtype = torch.float32 if converted else None
    return {**resizing(settings), "out_dtype": out_dtype, "scale": converted == "multiply"}


def _gaussian_blur(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    *kernel, mean, std = static
    return blur.gaussian_blur(x, numbers, kernel_size=(kernel[0], kernel[1]), mean=mean, std=std)


def _equalize(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return levels.mapped(x, colour.equalizing(levels.counts(x), x.shape[-2] * x.shape[-1]))


def _autocontrast(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return levels.mapped(x, pillow_colour.stretching(x))


KERNELS: Table = {
    "pixels": _pixels,
    "fast_resample": _resample,
    "fast_gaussian_blur": _gaussian_blur,
    "fast_equalize": _equalize,
    "fast_pillow_autocontrast": _autocontrast,
    "fast_affine": warped(warp.affine),
    "fast_rotate": warped_to_size(warp.affine),
    "fast_perspective": warped(warp.perspective),
    "fast_pillow_affine": warped_to_size(pillow_warp.affine),
    "fast_pillow_perspective": warped_to_size(pillow_warp.perspective),
}

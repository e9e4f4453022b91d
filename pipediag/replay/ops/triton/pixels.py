"""Apply colour operations to single pixels, separately for each sample and in its own order: one launch for a batch.

Each sample has a small program, a row of codes and operands that its worker has written. The kernel runs it on a pixel
in registers, so it reads and writes every image once for any number of operations. Only contrast needs more: the mean
grey of the image at that point, which takes another launch that runs the program up to there.

A pixel is held in float32. At any point of the program it has the meaning of uint8 (whole numbers from 0 to 255,
truncated after each operation) or of a floating image; :attr:`PixelOp.TO_FLOAT` and :attr:`PixelOp.TO_UINT8` change
that. The arithmetic is that of torchvision's kernels (``transforms/v2/functional/_color.py``) on the CPU, for the
operations named after Pillow that of :mod:`pipediag.replay.ops.families.pillow_colour`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch
from torch import Tensor

from ._host import blocks, check_images, normalization
from ._launch import launch

_TILE = (4, 128)
_SUM_BLOCK = 256
_SLICES = 64  # number of partial sums per image; fixed, so that the result does not depend on the GPU

FLIP_HORIZONTALLY = 1  #: bit of ``flips``
FLIP_VERTICALLY = 2  #: bit of ``flips``


class PixelOp(enum.IntEnum):
    """Codes of a program, named after torchvision's functions; :func:`encode` gives the operands.

    Those after Pillow, which come last, are for uint8 pixels only.
    """

    END = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    HUE = 4
    GAMMA = 5
    GRAYSCALE = 6
    INVERT = 7
    SOLARIZE = 8
    POSTERIZE = 9
    TO_FLOAT = 10
    TO_UINT8 = 11
    PILLOW_CONTRAST = 12
    PILLOW_SATURATION = 13
    PILLOW_HUE = 14
    PILLOW_GRAYSCALE = 15
    POINT = 16


#: Operations that need the mean grey of the image.
CONTRASTS = frozenset({PixelOp.CONTRAST, PixelOp.PILLOW_CONTRAST})


def encode(op: PixelOp, *parameters: float) -> tuple[int, float, float]:
    """Return the code and the two operands of one operation.

    Its parameters are: a factor (brightness, contrast, saturation, hue); gamma and, if not 1, the gain; a threshold
    (solarize); a number of bits (posterize); none (invert, and grayscale, which keeps three channels). TO_FLOAT takes a
    multiplier and a divisor: 1 / 255 and 1, the defaults, for ``ToDtype(scale=True)``, 1 and 255 for ``ToTensor``, 1
    and 1 for a plain cast. TO_UINT8 takes a multiplier: 255.999, the default, for ``ToDtype(scale=True)``, or 1. POINT
    takes the index of a table.
    """
    fewest, most = _PARAMETERS[op]
    if not fewest <= len(parameters) <= most:
        raise ValueError(f"{op.name} with {len(parameters)} parameters, where {fewest} to {most} are needed")
    if op in (PixelOp.CONTRAST, PixelOp.SATURATION):
        # The complement is computed in double precision, as in torchvision.
        return int(op), parameters[0], 1.0 - parameters[0]
    if op is PixelOp.POSTERIZE:
        levels = float(1 << int(parameters[0]))
        return int(op), levels, 1.0 / levels
    if op is PixelOp.PILLOW_HUE:
        return int(op), float(int(parameters[0] * 255) % 256), 0.0
    first, second = (*parameters, *_DEFAULTS[op][len(parameters) :])
    return int(op), first, second


#: The fewest and the most parameters of each operation.
_PARAMETERS = {
    **dict.fromkeys(PixelOp, (1, 1)),
    **dict.fromkeys((PixelOp.END, PixelOp.GRAYSCALE, PixelOp.INVERT, PixelOp.PILLOW_GRAYSCALE), (0, 0)),
    PixelOp.GAMMA: (1, 2),
    PixelOp.TO_FLOAT: (0, 2),
    PixelOp.TO_UINT8: (0, 1),
}

#: The operands that replace missing parameters.
_DEFAULTS = {
    **dict.fromkeys(PixelOp, (0.0, 0.0)),
    PixelOp.GAMMA: (1.0, 1.0),
    PixelOp.TO_FLOAT: (1.0 / 255.0, 1.0),
    PixelOp.TO_UINT8: (255.0 + 1.0 - 1e-3, 0.0),
}


def run(
    x: Tensor,
    codes: Tensor,
    operands: Tensor,
    *,
    tables: Tensor | None = None,
    flips: Tensor | None = None,
    contrast: int,
    pillow: bool = False,
    out_dtype: torch.dtype | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """Run the program of each sample on its pixels.

    Args:
        x: images ``(N, C, H, W)``, uint8 or float32, of any strides, with 1 or 3 channels. With 1, saturation and hue
            do not change a pixel, as in torchvision.
        codes: ``(N, K)``, int32, of :class:`PixelOp`; a program ends with its first 0, or after K operations.
        operands: ``(N, K, 2)``, float32, as :func:`encode` gives them.
        tables: ``(T, C, 256)``, uint8: the new levels for POINT.
        flips: ``(N,)``, int32, bits :data:`FLIP_HORIZONTALLY` and :data:`FLIP_VERTICALLY`: the image is mirrored while
            it is read. A flip between two operations on single pixels may be moved before both.
        contrast: the largest number of :data:`CONTRASTS` in any program, or 0. The caller knows it; reading ``codes``
            would wait for the device. Programs with more have no defined result.
        pillow: whether any program has operations of Pillow.
        out_dtype: of the result, by default that of ``x``. All programs must end with pixels of this meaning.
        mean: of each channel, or one for all, to subtract at the end from floating pixels.
        std: divisor after that; required with ``mean``.
    """
    check_images(x)
    samples, channels, height, width = x.shape
    dtype = out_dtype or x.dtype
    tables = x.new_empty((0, channels, 256), dtype=torch.uint8) if tables is None else tables
    if channels not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels here, not {channels}")
    if codes.ndim != 2 or codes.shape[0] != samples or operands.shape != (*codes.shape, 2):
        raise ValueError(f"codes {tuple(codes.shape)} and operands {tuple(operands.shape)} for {samples} samples")
    if not 0 <= contrast <= codes.shape[1]:
        raise ValueError(f"{contrast} contrasts in programs of {codes.shape[1]} operations")
    if tables.dtype != torch.uint8 or tables.shape[1:] != (channels, 256):
        raise ValueError(f"tables of {channels} channels are (T, {channels}, 256) and uint8, not {tuple(tables.shape)}")
    if pillow and x.dtype != torch.uint8:
        raise TypeError(f"operations of Pillow take uint8, not {x.dtype}")
    if dtype != torch.uint8 and not dtype.is_floating_point:
        raise TypeError(f"images become uint8 or floating here, not {dtype}")
    means, stds = normalization(mean, std, channels, dtype)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel() == 0:
        return out

    from ._pixel_kernels import pixel_kernel, sum_kernel

    codes, operands = codes.contiguous(), operands.contiguous()
    sums = torch.empty((samples, contrast, _SLICES), dtype=torch.float64, device=x.device) if contrast else x
    flipping = x if flips is None else flips
    constants = {
        "CHANNELS": channels,
        "FLOATING": x.dtype != torch.uint8,
        "PILLOW": pillow,
        "SLICES": _SLICES,
    }
    programs = (codes, operands, tables.contiguous(), sums, codes.shape[1])
    for done in range(contrast):
        launch(
            sum_kernel,
            (_SLICES, samples),
            x,
            *programs,
            done,
            contrast,
            height,
            width,
            *x.stride(),
            BLOCK=_SUM_BLOCK,
            **constants,
        )
    launch(
        pixel_kernel,
        (blocks(height, _TILE[0]) * blocks(width, _TILE[1]), samples),
        x,
        out,
        *programs,
        contrast,
        flipping,
        flipping.stride(0),
        *means[:3],
        *stds[:3],
        height,
        width,
        *x.stride(),
        *out.stride(),
        CONTRAST=contrast > 0,
        FLIP=flips is not None,
        NORMALIZE=mean is not None,
        ROWS=_TILE[0],
        COLUMNS=_TILE[1],
        **constants,
    )
    return out

"""Check and shape kernel arguments on the host, for all launchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._launch import launch

#: Maximum number of channels with separate arguments. These are scalars, which need no copy to the device.
_MOST_CHANNELS = 4

#: A kernel argument for each channel.
Channels: TypeAlias = tuple[float, float, float, float]

#: Rows and columns of the result that one program of a warp computes.
_TILE = (8, 32)


def check_images(x: Tensor) -> None:
    """Check that ``x`` is a batch ``(N, C, H, W)`` in uint8 or float32."""
    if x.ndim != 4:
        raise ValueError(f"a batch has 4 dimensions (N, C, H, W), not {x.ndim}")
    if x.dtype not in (torch.uint8, torch.float32):
        raise TypeError(f"images are uint8 or float32 here, not {x.dtype}")


def per_channel(values: float | Sequence[float], channels: int) -> Channels:
    """Return one number per channel, padded to four kernel arguments; a single number applies to all channels."""
    numbers = [float(v) for v in values] if isinstance(values, Sequence) else [float(values)]
    if len(numbers) == 1:
        numbers *= _MOST_CHANNELS
    elif len(numbers) != channels or channels > _MOST_CHANNELS:
        raise ValueError(f"{len(numbers)} numbers for {channels} channels; at most {_MOST_CHANNELS} can differ")
    first, second, third, fourth = (numbers + [0.0] * _MOST_CHANNELS)[:_MOST_CHANNELS]
    return first, second, third, fourth


def normalization(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, dtype: torch.dtype
) -> tuple[Channels, Channels]:
    """Return a mean and a standard deviation per channel; None for both stands for no normalization."""
    if (mean is None) != (std is None) or (mean is not None and not dtype.is_floating_point):
        raise ValueError("only floating images can be normalized, with a mean and a standard deviation")
    return per_channel(mean or 0.0, channels), per_channel(std or 1.0, channels)


def empty_like(x: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return an empty batch with the samples, channels and memory format of ``x``, and images of ``size``."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.empty(
        (x.shape[0], x.shape[1], *size),
        dtype=dtype,
        device=x.device,
        memory_format=torch.channels_last if last else torch.contiguous_format,
    )


def blocks(extent: int, block: int) -> int:
    """Return the number of blocks that cover ``extent``."""
    return -(-extent // block)


def launch_warp(
    kernel: Any,
    x: Tensor,
    transform: Tensor,
    numbers: int,
    fill: float | Sequence[float],
    size: tuple[int, int],
    **constants: Any,
) -> Tensor:
    """Launch a warp: return ``(N, C, *size)`` for images ``(N, C, H, W)`` and their transforms ``(N, numbers)``.

    ``constants`` are those of this kernel; the constants of all warps are added.
    """
    samples, channels, height, width = x.shape
    if transform.shape != (samples, numbers):
        raise ValueError(f"transforms of shape {tuple(transform.shape)}, where {(samples, numbers)} is needed")
    fills = per_channel(fill, channels)
    out = empty_like(x, size, x.dtype)
    if out.numel() == 0:
        return out
    tiles = blocks(size[0], _TILE[0]) * blocks(size[1], _TILE[1])
    launch(
        kernel,
        (tiles, samples),
        x,
        out,
        transform,
        *transform.stride(),
        *fills,
        height,
        width,
        *size,
        *x.stride(),
        *out.stride(),
        CHANNELS=channels,
        PERSPECTIVE=numbers == 8,
        ROWS=_TILE[0],
        COLUMNS=_TILE[1],
        **constants,
    )
    return out

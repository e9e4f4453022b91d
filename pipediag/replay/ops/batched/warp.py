"""Apply affine, perspective and elastic warps to a whole batch, with a separate transform for each sample.

A warp is a grid, which gives for each pixel of the result its source position in the image, and ATen's ``grid_sample``.
The arithmetic of the grids is torchvision's, rounding by rounding, since nearest neighbours change with the last bit.
The numbers that describe the transforms (:mod:`.warp_numbers`) arrive as float64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

Interpolation: TypeAlias = Literal["nearest", "bilinear"]
Fill: TypeAlias = float | Sequence[float] | None

INTERPOLATIONS = ("nearest", "bilinear")


def affine(x: Tensor, matrix: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``affine_image`` of torchvision v2, with a separate matrix for each sample; bit-equal on the CPU.

    Args:
        x: images ``(N, C, H, W)``, uint8 or floating, of any strides.
        matrix: ``(N, 6)``, as :func:`.affine_numbers` returns them.
        interpolation: how pixels are interpolated.
        fill: value outside the images: one number, or one for each channel. None differs from 0 only at the edges of
            bilinear images: their pixels are multiplied by the coverage once for None, and twice for a number.

    Returns:
        a batch of the shape and dtype of ``x``.

    Raises:
        ValueError: the interpolation is unknown, or the number of fills is neither one nor the number of channels.
    """
    return rotate(x, matrix, interpolation=interpolation, fill=fill)


def rotate(
    x: Tensor, matrix: Tensor, *, interpolation: Interpolation, fill: Fill, size: tuple[int, int] | None = None
) -> Tensor:
    """Rotate as ``rotate_image`` of torchvision v2 when it interpolates, with a separate angle for each sample.

    Bit-equal on the CPU. For quarter turns about the centre torchvision moves pixels without a grid (``torch.rot90``);
    the results are the same for uint8 and for nearest interpolation, and otherwise equal up to rounding.

    Args:
        x: images ``(N, C, H, W)``, uint8 or floating, of any strides.
        matrix: ``(N, 6)``, as :func:`.rotate_numbers` returns them.
        interpolation: how pixels are interpolated.
        fill: as for :func:`affine`.
        size: height and width of the result, by default those of ``x``.

    Returns:
        ``(N, C, *size)`` in the dtype of ``x``.

    Raises:
        ValueError: the interpolation is unknown, or the number of fills is neither one nor the number of channels.
    """
    height, width = x.shape[-2:]
    out_height, out_width = size or (height, width)
    dtype = _grid_dtype(x)
    across = torch.linspace((1 - out_width) * 0.5, (out_width - 1) * 0.5, out_width, device=x.device)
    down = torch.linspace((1 - out_height) * 0.5, (out_height - 1) * 0.5, out_height, device=x.device)
    grid = _products(across.to(dtype), down.to(dtype), _rescaled(matrix, height, width, dtype))
    return _sample(x, grid, interpolation, fill)


def perspective(x: Tensor, coefficients: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``perspective_image`` of torchvision v2, with separate coefficients for each sample; bit-equal on the
    CPU.

    Args:
        x: images ``(N, C, H, W)``, uint8 or floating, of any strides.
        coefficients: ``(N, 8)``, as :func:`.perspective_numbers` returns them: ``x = (ax + by + c) / (gx + hy + 1)``,
            ``y = (dx + ey + f) / (gx + hy + 1)``.
        interpolation: how pixels are interpolated.
        fill: as for :func:`affine`.

    Returns:
        a batch of the shape and dtype of ``x``.

    Raises:
        ValueError: the interpolation is unknown, or the number of fills is neither one nor the number of channels.
    """
    height, width = x.shape[-2:]
    dtype = _grid_dtype(x)
    across = torch.linspace(0.5, width - 0.5, width, dtype=dtype, device=x.device)
    down = torch.linspace(0.5, height - 0.5, height, dtype=dtype, device=x.device)
    numerator = _products(across, down, _rescaled(coefficients[:, :6], height, width, dtype))
    last = pad(coefficients[:, 6:].to(dtype), (0, 1), value=1.0)
    denominator = _products(across, down, last[:, :, None])
    return _sample(x, numerator.div_(denominator).sub_(1.0), interpolation, fill)


def elastic(x: Tensor, displacement: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``elastic_image`` of torchvision v2, with a separate displacement for each sample; bit-equal on the CPU.

    Args:
        x: images ``(N, C, H, W)``, uint8 or floating, of any strides.
        displacement: ``(N, H, W, 2)``, floating, in units of half the image, x before y.
        interpolation: how pixels are interpolated.
        fill: as for :func:`affine`.

    Returns:
        a batch of the shape and dtype of ``x``.

    Raises:
        ValueError: the interpolation is unknown, the displacements do not match the images, or the number of fills is
            neither one nor the number of channels.
    """
    samples, _, height, width = x.shape
    if displacement.shape != (samples, height, width, 2):
        raise ValueError(f"displacements of shape {tuple(displacement.shape)} for images of shape {tuple(x.shape)}")
    dtype = torch.float32 if x.dtype == torch.float16 else _grid_dtype(x)  # as torchvision does on the CPU
    across = torch.linspace((1 - width) / width, (width - 1) / width, width, dtype=dtype, device=x.device)
    down = torch.linspace((1 - height) / height, (height - 1) / height, height, dtype=dtype, device=x.device)
    identity = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width)), -1)
    return _sample(x, identity + displacement.to(dtype), interpolation, fill)


def _grid_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


def _rescaled(matrix: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return factors ``(N, 3, 2)`` to positions in units of half the image, for matrices ``(N, 6)`` to positions in
    pixels.

    The divisor is a tensor because CUDA divides by a Python number as a multiplication by its reciprocal.
    """
    halves = torch.full((2,), 0.5 * height, dtype=dtype, device=matrix.device)
    halves[0].fill_(0.5 * width)
    return matrix.to(dtype).view(-1, 2, 3).transpose(1, 2) / halves


def _products(across: Tensor, down: Tensor, factors: Tensor) -> Tensor:
    """Return ``(x, y, 1) @ factors`` as ``(N, H, W, k)`` for all x in ``across`` ``(W,)`` and y in ``down`` ``(H,)``,
    with ``factors`` ``(N, 3, k)`` and k up to 2.

    On the CPU this is torchvision's own matrix product, which rounds as its library does on this processor. On other
    devices, products and sums are computed one by one and rounded in the same way, independent of TF32.
    """
    if across.device.type == "cpu":
        return _matrix_products(across, down, factors)
    return _plain_products(across, down, factors, fused=cpu_fuses_products())


@functools.cache
def cpu_fuses_products() -> bool:
    """Return whether torchvision's matrix product for grids rounds a product and a sum only once on this CPU."""
    places = torch.arange(64, dtype=torch.float32, device="cpu") - 31.5
    factors = torch.tensor([[[0.0311, 0.0097], [-0.0173, 0.0211], [0.0057, -0.0071]]], device="cpu")
    return not torch.equal(_matrix_products(places, places, factors), _plain_products(places, places, factors, False))


def _matrix_products(across: Tensor, down: Tensor, factors: Tensor) -> Tensor:
    width, height, columns = len(across), len(down), factors.shape[2]
    ones = torch.ones((height, width), dtype=across.dtype, device=across.device)
    points = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width), ones), -1).view(1, -1, 3)
    # Always two columns, as in torchvision: a matrix with one may be rounded differently.
    products = points.expand(len(factors), -1, -1).bmm(factors.expand(-1, -1, 2))
    return products.view(-1, height, width, 2)[..., :columns]


def _plain_products(across: Tensor, down: Tensor, factors: Tensor, fused: bool) -> Tensor:
    dtype = factors.dtype
    wide = torch.promote_types(dtype, torch.float32)  # matrix products of half precision are summed in float32
    x, y, one = factors.to(wide)[:, :, None, None].unbind(1)
    horizontal, down = across.to(wide)[:, None] * x, down.to(wide)[:, None, None]
    if fused and wide == torch.float32:
        # A product of two float32 numbers is exact in float64, so only the sum is rounded.
        total = (down.double() * y.double() + horizontal.double()).float()
    else:
        total = horizontal + down * y
    return total.add_(one).to(dtype)


def _sample(x: Tensor, grid: Tensor, interpolation: str, fill: Fill) -> Tensor:
    """Return the pixels of ``x`` at the positions of ``grid`` ``(N, H', W', 2)``, computed in the dtype of the grid."""
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation {interpolation!r} is not one of {INTERPOLATIONS}")
    fills = _fills(fill, x.shape[1])
    pixels = x.to(grid.dtype)
    warped = _grid_sample(pixels, grid, interpolation)
    whole = interpolation == "nearest" and all(value.is_integer() for value in fills)
    if fill is not None and (interpolation == "bilinear" or any(fills)):
        # All samples share one mask, so the images need not be copied to add it as a channel.
        mask = torch.ones((1, 1, 1, 1), dtype=grid.dtype, device=x.device).expand(len(x), 1, *x.shape[2:])
        inside = _grid_sample(mask, grid, interpolation)
        colour = _colour(fills, warped)
        if interpolation == "nearest":
            warped = torch.where(inside < 0.5, colour, warped)
        else:
            warped = warped.sub_(colour).mul_(inside).add_(colour)
    if not x.is_floating_point() and not whole:
        warped = warped.round_()
    return warped.to(x.dtype)


def _grid_sample(pixels: Tensor, grid: Tensor, interpolation: str) -> Tensor:
    return grid_sample(pixels, grid, mode=interpolation, padding_mode="zeros", align_corners=False)


def _fills(fill: Fill, channels: int) -> tuple[float, ...]:
    values = tuple(float(value) for value in fill) if isinstance(fill, Sequence) else (float(fill or 0),)
    if len(values) not in (1, channels):
        raise ValueError(f"{len(values)} fills for images with {channels} channels")
    return values


def _colour(fills: tuple[float, ...], like: Tensor) -> Tensor:
    """Return the fills as ``(1, C, 1, 1)``, or as one channel if all are equal.

    They are made of constants, which are passed as kernel arguments, since a copy from the host would block it.
    """
    distinct = fills[:1] if len(set(fills)) == 1 else fills
    channels = [torch.full((1, 1, 1, 1), value, dtype=like.dtype, device=like.device) for value in distinct]
    return torch.cat(channels, 1) if len(channels) > 1 else channels[0]

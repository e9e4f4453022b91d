"""Apply blur, sharpening and noise to batches, with one set of parameters for each sample.

Images are ``(N, C, H, W)``, uint8 or floating. Neither autocast nor TF32 affects these kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as nn

from .pointwise import Parameter, add_scaled_, float_dtype, scaled, to_range


def gaussian_blur(x: Tensor, sigma: Tensor, *, kernel_size: tuple[int, int]) -> Tensor:
    """Blur as ``gaussian_blur_image`` of torchvision v2, equal up to float32's rounding.

    torchvision convolves once with the outer product of two kernels. Here the two are applied in sequence, which takes
    ``kx + ky`` instead of ``kx * ky`` multiplications per pixel and rounds differently. No order of the sum would be
    exact everywhere: the CPU's library chooses its own, by processor, channels and size of the kernel.

    Args:
        x: images whose sides are longer than half the kernel, since borders are mirrored.
        sigma: ``(N, 2)`` standard deviations, of x and of y, float64.
        kernel_size: of x and of y, both odd.

    Raises:
        RuntimeError: an image is too small for the kernel.
    """
    planes = x.shape[0] * x.shape[1]
    across, down = kernel_size
    # Depthwise convolutions run in full precision; a convolution of a single plane uses cuDNN, possibly with TF32.
    dtype = torch.float64 if x.dtype == torch.float64 or planes == 1 else torch.float32
    mirrored = nn.pad(x.to(dtype), (across // 2, across // 2, down // 2, down // 2), mode="reflect")
    rows, columns = _gaussians(sigma.to(dtype), kernel_size)
    blurred = _convolved(mirrored.reshape(1, planes, *mirrored.shape[-2:]), rows, (1, across))
    blurred = _convolved(blurred, columns, (down, 1)).view(x.shape)
    return (blurred if x.is_floating_point() else blurred.round_()).to(x.dtype)


def adjust_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image, except at the border, as ``adjust_sharpness_image`` of torchvision v2.

    Bit-equal for uint8, otherwise equal up to float32's rounding.

    Args:
        x: images with 1 or 3 channels; those with a side of 2 pixels or less do not change.
        factor: ``(N,)``, float64.

    Raises:
        TypeError: ``x`` has neither 1 nor 3 channels.
    """
    if x.shape[1] not in (1, 3):
        raise TypeError(f"images with {x.shape[1]} channels, where 1 or 3 are possible")
    if min(x.shape[-2:]) <= 2:
        return x.clone()
    out = x.to(float_dtype(x), copy=True)
    inner = out[..., 1:-1, 1:-1]
    # The weights are 1/13, and 5/13 for the centre. A thirteenth of a whole number is never halfway between two
    # integers, so uint8 rounds the same for any order of the sum.
    smooth = nn.avg_pool2d(out, 3, stride=1, divisor_override=13).add_(inner, alpha=4.0 / 13.0)
    if not x.is_floating_point():
        smooth.round_()
    add_scaled_(inner, smooth.sub_(inner), 1.0 - factor)
    return to_range(out, x.dtype)


def gaussian_noise(x: Tensor, noise: Tensor, sigma: Parameter, *, mean: Parameter = 0.0, clip: bool = True) -> Tensor:
    """Add noise as ``gaussian_noise_image`` of torchvision v2, with the normal ``noise`` it would have drawn.
    Bit-equal.

    Args:
        x: images ``(N, C, H, W)``.
        noise: shaped like ``x``; of its dtype, or float32 for uint8.
        sigma: one for all samples, or ``(N,)`` in float64.
        mean: likewise.
        clip: whether the result is clamped to the range of the dtype; without it, uint8 wraps around.
    """
    if x.is_floating_point():
        out = _shifted(scaled(noise, sigma), mean).add_(x)
        return out.clamp_(0, 1) if clip else out
    whole = _shifted(scaled(noise, sigma * 255), mean * 255).to(torch.int16).add_(x)
    return (whole.clamp_(0, 255) if clip else whole).to(x.dtype)


def _gaussians(sigma: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return kernels ``(N, size)`` along x and y for deviations ``(N, 2)``, computed together if of equal size."""
    if sizes[0] == sizes[1]:
        along_x, along_y = _gaussian(sigma, sizes[0]).unbind(1)
        return along_x, along_y
    return _gaussian(sigma[:, 0], sizes[0]), _gaussian(sigma[:, 1], sizes[1])


def _gaussian(sigma: Tensor, size: int) -> Tensor:
    """Return kernels ``(..., size)`` for deviations ``(...)`` in pixels. The limit contains the factor 2 of the
    exponent, as its square root."""
    limit = (size - 1) / (2.0 * math.sqrt(2.0))
    steps = torch.linspace(-limit, limit, size, dtype=sigma.dtype, device=sigma.device)
    return (steps / sigma[..., None]).square_().neg_().softmax(-1)


def _convolved(planes: Tensor, kernel: Tensor, shape: tuple[int, int]) -> Tensor:
    """Convolve planes ``(1, N * C, H, W)`` with their sample's kernel ``(N, size)``, reshaped to ``shape``."""
    groups = planes.shape[1]
    weight = kernel.repeat_interleave(groups // len(kernel), 0).view(groups, 1, *shape)
    with torch.autocast(planes.device.type, enabled=False):
        return nn.conv2d(planes, weight, groups=groups)


def _shifted(out: Tensor, by: Parameter) -> Tensor:
    if isinstance(by, Tensor):
        return out.add_(by.to(out.dtype)[:, None, None, None])
    return out.add_(by) if by else out

"""Apply blur, sharpening and noise to batches, with one set of parameters for each sample.

Images are ``(N, C, H, W)``, uint8 or floating. Neither autocast nor TF32 affects these kernels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nn

from ..arguments import pair
from ..exactness import approximate, rounded_once, sharpened
from ..op import NotRecordable, Op, State
from ..operation import Encode, Functional, Fused, Operation, Static, by_factor, from_triton, with_factor
from .pointwise import add_scaled_, float_dtype, has_colour, largest, scaled, to_range


def gaussian_blur(x: Tensor, sigma: Tensor, *, kernel_size: tuple[int, int]) -> Tensor:
    """Blur as ``gaussian_blur_image`` of torchvision v2, equal up to float32's rounding.

    torchvision convolves once with the outer product of two kernels. Here the two are applied in sequence, which takes
    ``kx + ky`` instead of ``kx * ky`` multiplications per pixel and rounds differently. No order of the sum would be
    bit-equal everywhere: the CPU's library chooses its own by processor, channels and kernel size.

    ``sigma`` are ``(N, 2)`` deviations along x and y, in pixels, as is ``kernel_size``, both odd. An image whose sides
    are not longer than half the kernel raises ``RuntimeError``, since borders are mirrored.
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

    Bit-equal for uint8, otherwise equal up to float32's rounding. Images with a side of 2 pixels or less do not change.
    """
    has_colour(x)  # raises for other channels
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


def gaussian_noise(x: Tensor, noise: Tensor, *, sigma: float, mean: float, clip: bool) -> Tensor:
    """Add noise as ``gaussian_noise_image`` of torchvision v2. Bit-equal.

    ``noise`` are the standard normal values that torchvision would draw, of the dtype of ``x``, or float32 for uint8.
    ``sigma`` and ``mean`` are for the range [0, 1], and multiplied by 255 for uint8, which wraps around without
    ``clip``.
    """
    levels = largest(x.dtype)
    shift = scaled(noise, sigma * levels)
    if mean:
        shift.add_(mean * levels)
    out = shift.add_(x) if x.is_floating_point() else shift.to(torch.int16).add_(x)
    return to_range(out, x.dtype) if clip else out.to(x.dtype)


def _gaussians(sigma: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return kernels ``(N, size)`` along x and y for deviations ``(N, 2)``; equal sizes are computed together."""
    if sizes[0] == sizes[1]:
        along_x, along_y = _gaussian(sigma, sizes[0]).unbind(1)
        return along_x, along_y
    return _gaussian(sigma[:, 0], sizes[0]), _gaussian(sigma[:, 1], sizes[1])


def _gaussian(sigma: Tensor, size: int) -> Tensor:
    """Return kernels ``(..., size)`` for deviations ``(...)`` in pixels.

    Formula: ``_get_gaussian_kernel1d`` of torchvision. The steps are distances divided by the square root of 2.
    """
    limit = (size - 1) / (2.0 * math.sqrt(2.0))
    steps = torch.linspace(-limit, limit, size, dtype=sigma.dtype, device=sigma.device)
    return (steps / sigma[..., None]).square_().neg_().softmax(-1)


def _convolved(planes: Tensor, kernel: Tensor, shape: tuple[int, int]) -> Tensor:
    """Convolve planes ``(1, N * C, H, W)`` with their sample's kernel ``(N, size)``, reshaped to ``shape``."""
    groups = planes.shape[1]
    weight = kernel.repeat_interleave(groups // len(kernel), 0).view(groups, 1, *shape)
    with torch.autocast(planes.device.type, enabled=False):
        return nn.conv2d(planes, weight, groups=groups)


# ---- operations


def encode_blur(state: State, kernel_size: Any, sigma: Any = None) -> list[Op]:
    return prepare_gaussian_blur(state, kernel_size)(sigma)


def prepare_gaussian_blur(state: State, kernel_size: Any) -> Encode:
    kernel = pair(kernel_size)
    op = state.op("gaussian_blur", static=kernel)

    def encode(sigma: Any = None) -> list[Op]:
        across, down = pair([side * 0.15 + 0.35 for side in kernel] if sigma is None else sigma)
        if not (across > 0 and down > 0):
            raise NotRecordable(f"a blur with sigma {across}, {down}, where it must be positive")
        return [op.given(float(across), float(down))]

    return encode


def encode_noise(state: State, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> list[Op]:
    """Draw the noise here, from the generator that torchvision would use."""
    if not sigma >= 0:
        raise NotRecordable(f"noise with sigma {sigma}, where it must not be negative")
    if state.strided:
        raise NotRecordable("noise is drawn in the order of the pixels in memory, which is unusual here")
    drawn = torch.randn(state.shape, dtype=state.dtype if state.dtype.is_floating_point else torch.float32)
    return [state.op("gaussian_noise", static=(float(mean), float(sigma), bool(clip)), bulk=drawn)]


_FUSED_BLUR = from_triton("blur", "gaussian_blur")


def _fused_blur(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    *kernel, mean, std = static
    return _FUSED_BLUR(x, numbers, kernel_size=(kernel[0], kernel[1]), mean=mean, std=std)


def _gaussian_noise(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    mean, sigma, clip = static
    return gaussian_noise(x, bulk, sigma=sigma, mean=mean, clip=clip)


OPERATIONS = (
    Operation(
        "gaussian_blur",
        lambda x, numbers, static, bulk: gaussian_blur(x, numbers, kernel_size=static),
        approximate,
        fused=Fused(Operation("fast_gaussian_blur", _fused_blur), further=(None, None)),
    ),
    Operation("adjust_sharpness", by_factor(adjust_sharpness), sharpened, approximate),
    Operation("gaussian_noise", _gaussian_noise, rounded_once),
)
FUNCTIONALS = (
    Functional("gaussian_blur", encode_blur, prepare_gaussian_blur, ("sigma",)),
    with_factor("adjust_sharpness", "sharpness_factor"),
    Functional("gaussian_noise", encode_noise, draws=True),
)
OF_PICTURES = {"gaussian_blur": encode_blur}

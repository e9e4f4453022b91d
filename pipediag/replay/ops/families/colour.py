"""Apply colour operations to batches.

Images are ``(N, C, H, W)``, uint8 or floating; a parameter is a float64 tensor ``(N,)`` on the same device, with one
value for each sample. For each sample, a function gives the result of the torchvision v2 kernel that it names, by the
same formulas. The ranges of parameters are checked where they are drawn: a check here would wait for the device.
Results are always new tensors, even if nothing changes. Functions for colours raise ``TypeError`` for images with
neither 1 nor 3 channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..exactness import approximate, blended, blended_with_mean, exact, rounded_once
from ..op import NotRecordable, Op, State
from ..operation import (
    Functional,
    Fused,
    Operation,
    alike,
    by_factor,
    from_triton,
    levelled,
    with_factor,
    without_numbers,
)
from ..triton.pixels import PixelOp
from .pointwise import add_scaled_, converted, float_dtype, has_colour, largest, per_sample, scaled, to_range

_BINS = 256


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Scale by ``factor`` and clamp, as ``adjust_brightness_image``. Bit-equal."""
    has_colour(x)  # raises for other channels
    return to_range(scaled(x, factor), x.dtype)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its own mean grey, as ``adjust_contrast_image``.

    Equal up to the rounding of the mean. The mean of a uint8 image of up to 65 793 pixels is exact, and such an image
    is bit-equal, except that torch itself may round its last 15 values differently, which truncation can turn into
    another level.
    """
    grey = _grey(x) if has_colour(x) else x
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    total = grey.sum(dim=(1, 2, 3), keepdim=True, dtype=accumulator)
    # Divide by a tensor: CUDA divides by a Python number as a multiplication by its reciprocal, which rounds twice.
    mean = total.div_(torch.full_like(total, x.shape[-2] * x.shape[-1]))
    return _blend(x, mean.to(float_dtype(x)), factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each pixel with its grey, as ``adjust_saturation_image``. Bit-equal. Grey images do not change."""
    return _blend(x, _grey(x), factor) if has_colour(x) else x.clone()


def adjust_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by ``factor`` of a full circle in float32, as ``adjust_hue_image``. Bit-equal. Images with 1 channel
    do not change.
    """
    if not has_colour(x):
        return x.clone()
    hue, saturation, value = _hsv(converted(x, torch.float32, scale=True))
    hue.add_(per_sample(factor, torch.float32)).remainder_(1.0)
    return converted(_rgb(hue, saturation, value), x.dtype, scale=True)


def adjust_gamma(x: Tensor, gamma: Tensor, *, gain: float) -> Tensor:
    """Compute ``gain * x ** gamma`` on the range [0, 1], as ``adjust_gamma_image``.

    Equal up to the last bits of the power function. They differ between devices and, on the CPU, even between the
    pixels of one image.
    """
    base = converted(x, float_dtype(x), scale=True)
    power = base.pow(gamma.to(base.dtype)[:, None, None, None])
    if gain != 1.0:
        power.mul_(gain).clamp_(0.0, 1.0)
    return converted(power, x.dtype, scale=True)


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels that are not below ``threshold``, as ``solarize_image``. Bit-equal."""
    return torch.where(x >= threshold.to(float_dtype(x))[:, None, None, None], invert(x), x)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the ``bits`` (whole numbers from 0 to 8) highest bits of each value, as ``posterize_image``. Bit-equal."""
    bits = bits.to(torch.int32)[:, None, None, None]
    if not x.is_floating_point():
        return x & (255 << (8 - bits)).to(x.dtype)
    levels = (1 << bits).to(x.dtype)
    return x.mul(levels).floor_().clamp_(torch.zeros_like(levels), levels - 1).div_(levels)


def invert(x: Tensor) -> Tensor:
    """Invert the pixels, as ``invert_image``. Bit-equal."""
    return 1.0 - x if x.is_floating_point() else x.bitwise_not()


def grayscale(x: Tensor, *, channels: int) -> Tensor:
    """Convert to grey as ``rgb_to_grayscale_image``, or as ``grayscale_to_rgb_image`` for images with one channel.
    Bit-equal.
    """
    grey = _luminance(x).to(x.dtype) if has_colour(x) else x
    return grey if channels == 1 and grey is not x else grey.repeat(1, channels, 1, 1)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel of each image to the full range, as ``autocontrast_image``. Bit-equal."""
    has_colour(x)  # raises for other channels
    low, high = (extreme[:, :, None, None].to(float_dtype(x)) for extreme in torch.aminmax(x.flatten(2), dim=2))
    flat = low == high
    span = high.sub_(low).mul_(1.0 / largest(x.dtype)).masked_fill_(flat, 1)
    return to_range(x.sub(low.masked_fill_(flat, 0)).div_(span), x.dtype)


def equalize(x: Tensor) -> Tensor:
    """Spread each channel's histogram over the full range by Pillow's rule, as ``equalize_image``. Bit-equal.

    Floating images are equalized as uint8, as in torchvision.
    """
    index = converted(x, torch.uint8, scale=True).flatten(2).long()
    ones = torch.ones((), dtype=torch.int32, device=x.device).expand_as(index)
    bins = torch.zeros((*index.shape[:2], _BINS), dtype=torch.int32, device=x.device)
    table = equalizing(bins.scatter_add_(2, index, ones), index.shape[2])
    return converted(table.gather(2, index).view(x.shape), x.dtype, scale=True)


def permuted(x: Tensor, permutation: Tensor) -> Tensor:
    """Make channel ``permutation[n, c]`` of sample ``n`` its channel ``c``: ``permute_channels_image``, bit-equal."""
    if permutation.shape[1] != x.shape[1]:
        raise ValueError(f"permutations of {permutation.shape[1]} channels for images with {x.shape[1]}")
    return x.gather(1, permutation.long()[:, :, None, None].expand_as(x))


def _luminance(x: Tensor) -> Tensor:
    """Return grey values ``(N, 1, H, W)`` with the weights of ITU-R 601, in :func:`float_dtype`."""
    red, green, blue = x.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def _grey(x: Tensor) -> Tensor:
    """Return grey values ``(N, 1, H, W)``, whole numbers for uint8, in :func:`float_dtype`."""
    luminance = _luminance(x)
    return luminance if x.is_floating_point() else luminance.floor_()


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return to_range(add_scaled_(scaled(x, factor), other, 1.0 - factor), x.dtype)


def _hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value, each ``(N, 1, H, W)``; a grey pixel has hue and saturation 0.

    Formula: Pillow's ``Convert.c``, in the order of torchvision's ``_rgb_to_hsv``.
    """
    low, high = torch.aminmax(rgb, dim=1, keepdim=True)
    chroma = high - low
    is_grey = chroma == 0
    divisor = chroma + is_grey
    saturation = chroma.div_(torch.where(is_grey, divisor, high))
    red, green, _ = rgb.split(1, dim=1)
    to_red, to_green, to_blue = (high - rgb).div_(divisor).split(1, dim=1)
    least_red = torch.where(high == green, to_red.add(2.0).sub_(to_blue), to_green.add(4.0).sub_(to_red))
    hue = torch.where(high == red, to_blue - to_green, least_red)
    return hue.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0), saturation, high


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Invert :func:`_hsv`.

    Over the six sectors of the hue circle, a channel is high in two sectors, falls in one, is low in two and rises in
    one; the channels are two sectors apart.
    """
    sector = hue.mul_(6)
    progress = sector.frac()
    # Numbered so that each channel is high in sectors 0 and 1, falls in 2, is low in 3 and 4, and rises in 5.
    shift = torch.arange(1, 10, 4, dtype=torch.uint8, device=hue.device)[:, None, None]
    sector = sector.to(torch.uint8).add(shift).remainder_(6)
    part = progress.mul_(saturation)
    low = 1.0 - saturation
    falling = (1.0 - part).mul_(value)
    rising = part.add_(low).mul_(value)
    low.mul_(value)
    not_high = torch.where(sector < 3, falling, torch.where(sector < 5, low, rising)).clamp_(0.0, 1.0)
    return torch.where(sector < 2, value, not_high)


def equalizing(histogram: Tensor, pixels: int) -> Tensor:
    """Return look-up tables ``(..., 256)`` in uint8 for histograms ``(..., 256)`` of ``pixels`` pixels each.

    Formula: Pillow's ``ImageOps.equalize``.
    """
    cumulative = histogram.cumsum(-1)
    brightest = histogram.gather(-1, cumulative.argmax(-1, keepdim=True))
    step = (pixels - brightest) // (_BINS - 1)
    darker = cumulative - histogram
    spread = (darker + step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=_BINS - 1)
    untouched = torch.arange(_BINS, device=histogram.device)
    return torch.where(step == 0, untouched, spread).to(torch.uint8)


# ---- operations


def encode_gamma(state: State, gamma: float, gain: float = 1) -> list[Op]:
    if not 0 <= gamma < math.inf:
        raise NotRecordable(f"a gamma of {gamma}, where it must not be negative")
    return [levelled("gamma", state).op("adjust_gamma", float(gamma), static=(float(gain),))]


def rgb_to_grayscale(state: State, num_output_channels: int = 1, *, name: str = "grayscale") -> list[Op]:
    if num_output_channels not in (1, 3):
        raise NotRecordable("a grey image has one channel or three")
    if state.channels == num_output_channels == 1:
        return []
    return [state.op(name, static=(num_output_channels,), shape=(num_output_channels, *state.size))]


def grayscale_to_rgb(state: State) -> list[Op]:
    return [] if state.channels >= 3 else rgb_to_grayscale(state, 3)


def permute_channels(state: State, permutation: Any) -> list[Op]:
    return [state.op("permute_channels", *(int(i) for i in permutation))]


_FUSED_COUNTS, _FUSED_MAPPED = from_triton("levels", "counts"), from_triton("levels", "mapped")


_EQUALIZE = Fused(
    Operation(
        "fast_equalize",
        lambda x, numbers, static, bulk: _FUSED_MAPPED(x, equalizing(_FUSED_COUNTS(x), x.shape[-2] * x.shape[-1])),
    ),
    on_bytes=True,
)
OPERATIONS = (
    *(
        Operation(name, kernel, rule, rule_of_v1, each_pixel=True, code=code)
        for name, kernel, rule, rule_of_v1, code in (
            ("adjust_brightness", by_factor(adjust_brightness), rounded_once, None, PixelOp.BRIGHTNESS),
            ("adjust_saturation", by_factor(adjust_saturation), blended, approximate, PixelOp.SATURATION),
            ("adjust_hue", by_factor(adjust_hue), rounded_once, approximate, PixelOp.HUE),
            ("posterize", by_factor(posterize), rounded_once, None, PixelOp.POSTERIZE),
            ("solarize", by_factor(solarize), rounded_once, None, PixelOp.SOLARIZE),
            ("invert", alike(invert), rounded_once, None, PixelOp.INVERT),
        )
    ),
    Operation(
        "adjust_gamma",
        lambda x, numbers, static, bulk: adjust_gamma(x, numbers[:, 0], gain=static[0]),
        approximate,
        each_pixel=True,
        code=PixelOp.GAMMA,
    ),
    Operation(
        "grayscale",
        lambda x, numbers, static, bulk: grayscale(x, channels=static[0]),
        blended,
        approximate,
        each_pixel=True,
        code=PixelOp.GRAYSCALE,
    ),
    Operation("permute_channels", lambda x, numbers, static, bulk: permuted(x, numbers.long()), exact, each_pixel=True),
    Operation(
        "adjust_contrast",
        by_factor(adjust_contrast),
        blended_with_mean,
        approximate,
        by_order=True,
        code=PixelOp.CONTRAST,
    ),
    Operation("autocontrast", alike(autocontrast), rounded_once, approximate, by_order=True),
    Operation("equalize", alike(equalize), rounded_once, by_order=True, fused=_EQUALIZE),
)
FUNCTIONALS = (
    *(with_factor(f"adjust_{what}", f"{what}_factor") for what in ("brightness", "contrast", "saturation")),
    with_factor("adjust_hue", "hue_factor", -0.5, 0.5),
    Functional("adjust_gamma", encode_gamma),
    with_factor("posterize", "bits", high=8, whole=True),
    with_factor("solarize", "threshold", high=math.nan),
    *map(without_numbers, ("invert", "autocontrast", "equalize")),
    Functional("rgb_to_grayscale", rgb_to_grayscale, aliases=("to_grayscale",)),
    Functional("grayscale_to_rgb", grayscale_to_rgb),
    Functional("permute_channels", permute_channels),
)
OF_PICTURES = {"permute_channels": permute_channels}

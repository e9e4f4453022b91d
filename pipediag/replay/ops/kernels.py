"""Map each op to the batched kernel that replays it.

Each kernel takes a batch ``(N, C, H, W)``, the samples' numbers ``(N, k)`` in float64, the op's static part, which all
samples share, and its drawn tensors (bulk, N first). It returns the batch after the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from .batched import colour, erasing, filters, geometry, pillow_blur, pillow_colour, pillow_warp, pointwise, warp

Static = tuple[Any, ...]
Kernel = Callable[[Tensor, Tensor, Static, Tensor], Tensor]
Table = dict[str, Kernel]


def _factor(kernel: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    return lambda x, numbers, static, bulk: kernel(x, numbers[:, 0])


def _alike(kernel: Callable[[Tensor], Tensor]) -> Kernel:
    """Wrap an op that takes no per-sample numbers."""
    return lambda x, numbers, static, bulk: kernel(x)


def _crop(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    height, width = static
    return geometry.crop(x, numbers[:, 0], numbers[:, 1], height=height, width=width)


def _resample(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return geometry.resized_crop(x, *numbers[:, :4].unbind(1), **resizing(static))


def resizing(static: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of a resize, as its kernels name them."""
    height, width, interpolation, antialias, fixed, pillow = static
    return {
        "size": (height, width),
        "interpolation": interpolation,
        "antialias": antialias,
        "fixed_point": pillow is not None or in_fixed_point(interpolation, fixed),
        "pillow": pillow,
    }


def in_fixed_point(interpolation: str, fixed: bool) -> bool:
    """Return whether uint8 images are resized in fixed point on this machine; v1 (``fixed`` is False) never does."""
    return fixed and (interpolation == "bicubic" or geometry.uint8_in_fixed_point())


def _pad(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    padding, fill, mode = static
    if fill is None or len(set(fill)) == 1:
        return F.pad_image(x, list(padding), fill=0 if fill is None else fill[0], padding_mode=mode)
    channels = [
        F.pad_image(x[:, c : c + 1], list(padding), fill=value, padding_mode=mode) for c, value in enumerate(fill)
    ]
    return torch.cat(channels, 1)


def warped(kernel: Callable[..., Tensor]) -> Kernel:
    """Wrap a warp whose result has the size of its input."""

    def call(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
        interpolation, fill = static
        return kernel(x, numbers, interpolation=interpolation, fill=fill)

    return call


def warped_to_size(kernel: Callable[..., Tensor]) -> Kernel:
    """Wrap a warp whose result has a size of its own."""

    def call(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
        height, width, interpolation, fill = static
        return kernel(x, numbers, size=(height, width), interpolation=interpolation, fill=fill)

    return call


def _elastic(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    interpolation, fill = static
    return warp.elastic(x, bulk, interpolation=interpolation, fill=fill)


def _pillow_pick(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    height, width, fill = static
    return pillow_warp.pick(x, bulk, size=(height, width), fill=fill)


def _pillow_affine_in_fixed_point(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    height, width, fill = static
    return pillow_warp.affine_in_fixed_point(x, numbers, size=(height, width), fill=fill)


def _gaussian_noise(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    mean, sigma, clip = static
    return filters.gaussian_noise(x, bulk, sigma=sigma, mean=mean, clip=clip)


def _erase(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    top, left, height, width = numbers[:, :4].unbind(1)
    return erasing.erase(x, top, left, height, width, numbers[:, 4:])


def _erase_drawn(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    top, left, height, width = numbers[:, :4].unbind(1)
    return erasing.erase_packed(x, top, left, height, width, bulk, numbers[:, 4].long())


def _to_dtype(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    dtype, how = static
    if how == "divide":
        return pointwise.to_dtype_by_division(x, dtype)
    return pointwise.to_dtype(x, dtype, scale=how == "multiply")


KERNELS: Table = {
    "horizontal_flip": _alike(lambda x: x.flip(-1)),
    "vertical_flip": _alike(lambda x: x.flip(-2)),
    "crop": _crop,
    "resample": _resample,
    "pad": _pad,
    "affine": warped(warp.affine),
    "rotate": warped_to_size(warp.rotate),
    "perspective": warped(warp.perspective),
    "elastic": _elastic,
    "turn": lambda x, numbers, static, bulk: torch.rot90(x, k=static[0], dims=(-2, -1)),
    "adjust_brightness": _factor(colour.adjust_brightness),
    "adjust_contrast": _factor(colour.adjust_contrast),
    "adjust_saturation": _factor(colour.adjust_saturation),
    "adjust_hue": _factor(colour.adjust_hue),
    "adjust_gamma": lambda x, numbers, static, bulk: colour.adjust_gamma(x, numbers[:, 0], gain=static[0]),
    "adjust_sharpness": _factor(filters.adjust_sharpness),
    "posterize": _factor(colour.posterize),
    "solarize": _factor(colour.solarize),
    "invert": _alike(colour.invert),
    "autocontrast": _alike(colour.autocontrast),
    "equalize": _alike(colour.equalize),
    "grayscale": lambda x, numbers, static, bulk: colour.grayscale(x, channels=static[0]),
    "pillow_adjust_brightness": _factor(pillow_colour.adjust_brightness),
    "pillow_adjust_contrast": _factor(pillow_colour.adjust_contrast),
    "pillow_adjust_saturation": _factor(pillow_colour.adjust_saturation),
    "pillow_adjust_hue": _factor(pillow_colour.adjust_hue),
    "pillow_adjust_sharpness": _factor(pillow_colour.adjust_sharpness),
    "pillow_autocontrast": _alike(pillow_colour.autocontrast),
    "pillow_grayscale": lambda x, numbers, static, bulk: pillow_colour.grayscale(x, channels=static[0]),
    "pillow_point": lambda x, numbers, static, bulk: pillow_colour.point(x, bulk),
    "pillow_smooth": _alike(pillow_colour.smooth),
    "pillow_box_blur": lambda x, numbers, static, bulk: pillow_blur.box_blur(x, numbers, passes=static[0]),
    "pillow_pick": _pillow_pick,
    "pillow_affine_in_fixed_point": _pillow_affine_in_fixed_point,
    "pillow_affine": warped_to_size(pillow_warp.affine),
    "pillow_perspective": warped_to_size(pillow_warp.perspective),
    "permute_channels": lambda x, numbers, static, bulk: colour.permute_channels(x, numbers.long()),
    "gaussian_blur": lambda x, numbers, static, bulk: filters.gaussian_blur(x, numbers, kernel_size=static),
    "gaussian_noise": _gaussian_noise,
    "erase": _erase,
    "erase_drawn": _erase_drawn,
    "normalize": lambda x, numbers, static, bulk: pointwise.normalize(x, *static),
    "to_dtype": _to_dtype,
}


#: The op that resizes images of different sizes, read where they lie in a batch's memory. Only a fused kernel exists.
RAGGED = "fast_resample_ragged"


def apply(name: str, parts: Sequence[Tensor], numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    """Replay one op on images in several tensors, whose rows together are those of ``numbers``.

    Images of different sizes are possible for an op whose results have one size.
    """
    if len({part.shape[1:] for part in parts}) == 1:
        kernel = KERNELS.get(name) or _fast().KERNELS[name]
        return kernel(parts[0] if len(parts) == 1 else torch.cat(list(parts)), numbers, static, bulk)
    done, begin = [], 0
    for part in parts:
        own = slice(begin, begin + len(part))
        done.append(apply(name, [part], numbers[:, own] if name == "fast_resample" else numbers[own], static, bulk))
        begin += len(part)
    return torch.cat(done)


def apply_ragged(memory: Tensor, numbers: Tensor, static: Static) -> Tensor:
    """Replay :data:`RAGGED`; ``numbers`` gives the box of each image, its offset in ``memory`` and its size."""
    made: Tensor = _fast().resample_ragged(memory, numbers, static)
    return made


def _fast() -> Any:
    """Import the fused kernels on first use, since they need triton."""
    from . import fused_kernels as fast

    return fast

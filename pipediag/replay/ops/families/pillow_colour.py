"""Change the colours of a batch of 8-bit images ``(N, C, H, W)`` as Pillow does, bit by bit.

Images have one channel (mode L) or three (RGB); a parameter is a float64 tensor ``(N,)`` on the same device. Pillow
blends in float32 with a rounding after each step, and truncates (``Blend.c``); its conversions between RGB and HSV mix
float32 and float64 (``Convert.c``). Results are always new tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arguments import BANDS, MODES
from ..exactness import exact
from ..op import NotRecordable, Op, State
from ..operation import Fused, Operation, alike, by_factor, from_triton
from ..triton.pixels import PixelOp
from . import colour
from .pointwise import per_sample


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black, as ``ImageEnhance.Brightness``."""
    return _blend(torch.zeros_like(x, dtype=torch.float32), x, factor)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with each image's mean grey, as ``ImageEnhance.Contrast``."""
    total = _grey(x).sum((1, 2, 3), keepdim=True, dtype=torch.int64).double()
    mean = total.div_(torch.full_like(total, x.shape[-2] * x.shape[-1])).add_(0.5).floor_()
    return _blend(mean.float(), x, factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with each pixel's grey, as ``ImageEnhance.Color``."""
    return _blend(_grey(x).float(), x, factor)


def adjust_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by ``factor`` of a full circle in mode HSV, as torchvision does with Pillow images. Images with 1
    channel do not change."""
    if x.shape[1] == 1:
        return x.clone()
    hue, saturation, value = _hsv(x)
    steps = (factor * 255).trunc_().to(torch.int64)[:, None, None]
    return _rgb((hue + steps) % 256, saturation, value)


def grayscale(x: Tensor, *, channels: int) -> Tensor:
    """Convert to mode L, and then to ``channels`` equal channels."""
    return _grey(x).to(torch.uint8).repeat(1, channels, 1, 1)


def adjust_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed image, except at the border, as ``ImageEnhance.Sharpness``."""
    return _blend(smooth(x).float(), x, factor)


def smooth(x: Tensor) -> Tensor:
    """Average each pixel, with a weight of 5, with its neighbours, except at the border, as ``ImageFilter.SMOOTH``."""
    out = x.clone()
    if min(x.shape[-2:]) >= 3:
        inner = x[..., 1:-1, 1:-1].int()
        total = x.int().unfold(-1, 3, 1).sum(-1).unfold(-2, 3, 1).sum(-1) + 4 * inner
        out[..., 1:-1, 1:-1] = (2 * total + 13) // 26  # a thirteenth, rounded to nearest; it is never halfway
    return out


def stretched(x: Tensor) -> Tensor:
    """Stretch each channel of each image to the full range, as ``ImageOps.autocontrast``."""
    return mapped(x, stretching(x))


def stretching(x: Tensor) -> Tensor:
    """Return the tables of levels ``(N, C, 256)`` of :func:`autocontrast`."""
    low, high = (extreme[:, :, None].double() for extreme in torch.aminmax(x.flatten(2), dim=2))
    flat = low == high
    scale = torch.full_like(low, 255) / (high - low).masked_fill_(flat, 255)
    offset = (-low * scale).masked_fill_(flat, 0)
    levels = torch.arange(256, dtype=torch.float64, device=x.device)
    return (levels * scale).add_(offset).clamp_(0, 255).to(torch.uint8)


def mapped(x: Tensor, tables: Tensor) -> Tensor:
    """Replace each level by that of a table ``(N, C, 256)``, as ``Image.point``."""
    channels = x.flatten(2).flatten(0, 1)
    return tables.flatten(0, 1).gather(1, channels.long()).reshape(x.shape)


def _grey(x: Tensor) -> Tensor:
    """Return the grey values ``(N, 1, H, W)`` of mode L, as int32 unless ``x`` is grey."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.to(torch.int32).split(1, dim=1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def _blend(other: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return ``other + factor * (x - other)``; product and sum are rounded separately."""
    return (x - other).mul_(per_sample(factor, torch.float32)).add_(other).clamp_(0, 255).to(torch.uint8)


def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value of RGB images, each ``(N, H, W)`` as int64 from 0 to 255."""
    low, high = torch.aminmax(x.float(), dim=1)
    chroma = high - low
    is_grey = chroma == 0
    divisor = chroma + is_grey
    saturation = chroma / torch.where(is_grey, divisor, high)
    red, green, _ = x.unbind(1)
    to_red, to_green, to_blue = ((high[:, None] - x) / divisor[:, None]).unbind(1)
    least_red = torch.where(
        high == green, 2.0 + to_red.double() - to_blue.double(), 4.0 + to_green.double() - to_red.double()
    ).float()
    hue = torch.where(high == red, to_blue - to_green, least_red).double()
    hue = (hue / torch.full_like(hue, 6)).add_(1.0).fmod_(1.0).float().masked_fill_(is_grey, 0)
    hue, saturation = ((part.double() * 255).to(torch.int64) for part in (hue, saturation))
    return hue, saturation, high.to(torch.int64)


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return the RGB images ``(N, 3, H, W)`` for integers ``(N, H, W)`` from 0 to 255."""
    turn = hue.double() * 6
    turn = turn / torch.full_like(turn, 255)
    sector = turn.floor()
    progress = (turn - sector).float()
    strength = (saturation.double() / torch.full_like(turn, 255)).float()
    rest = 1.0 - progress.double()
    shares = (strength.double(), (strength * progress).double(), strength.double() * rest)
    low, falling, rising = ((value * (1.0 - share) + 0.5).floor_().to(torch.int64) for share in shares)
    channels = []
    for ahead in (0, 4, 2):  # red is high in sectors 5 and 0, falls in 1, is low in 2 and 3, and rises in 4
        here = (sector + ahead) % 6
        moving = torch.where(here == 1, falling, rising)
        channels.append(torch.where((here == 1) | (here == 4), moving, torch.where(here % 5 == 0, value, low)))
    return torch.stack(channels, 1).to(torch.uint8)


# ---- operations


def convert(state: State, mode: str | None = None, matrix: Any = None, *unused: Any, **named: Any) -> list[Op]:
    if matrix or mode not in (None, *BANDS):
        raise NotRecordable(f"a picture of mode {MODES[state.channels]} is converted to {mode}")
    if mode is None or BANDS[mode] == state.channels:
        return []
    return rgb_to_grayscale(state, BANDS[mode])


def rgb_to_grayscale(state: State, num_output_channels: int = 1) -> list[Op]:
    return colour.rgb_to_grayscale(state, num_output_channels, name="pillow_grayscale")


def adjusted(what: str, state: State, factor: float) -> list[Op]:
    """Encode torchvision's function ``adjust_{what}``."""
    if what == "hue" and not -0.5 <= factor <= 0.5:
        raise NotRecordable(f"adjust_hue by {factor}, where -0.5 to 0.5 is allowed")
    return [state.op(f"pillow_adjust_{what}", float(factor))]


def encode_hue(state: State, hue_factor: float) -> list[Op]:
    return adjusted("hue", state, hue_factor)


def point(state: State, lut: Sequence[float], mode: str | None = None) -> list[Op]:
    levels = np.rint(np.asarray(lut, np.float64)).clip(0, 255).astype(np.uint8)
    if mode is not None or len(levels) != 256 * state.channels:
        raise NotRecordable("a picture is mapped to another mode")
    tables = torch.from_numpy(levels).view(state.channels, 256)
    return [state.op("pillow_point", bulk=tables)]


def autocontrast(
    state: State, cutoff: Any = 0, ignore: Any = None, mask: Any = None, preserve_tone: bool = False
) -> list[Op]:
    if cutoff or ignore is not None or mask is not None or preserve_tone:
        raise NotRecordable("autocontrast with options has no kernel on the device")
    return [state.op("pillow_autocontrast")]


def equalize(state: State, mask: Any = None) -> list[Op]:
    if mask is not None:
        raise NotRecordable("equalize with a mask has no kernel on the device")
    return [state.op("equalize")]


_FUSED_MAPPED = from_triton("levels", "mapped")
_AUTOCONTRAST = Operation("fast_pillow_autocontrast", alike(lambda x: _FUSED_MAPPED(x, stretching(x))))
OPERATIONS = (
    *(
        Operation(name, kernel, exact, each_pixel=True, code=code)
        for name, kernel, code in (
            ("pillow_adjust_brightness", by_factor(adjust_brightness), PixelOp.BRIGHTNESS),  # the same arithmetic
            ("pillow_adjust_saturation", by_factor(adjust_saturation), PixelOp.PILLOW_SATURATION),
            ("pillow_adjust_hue", by_factor(adjust_hue), PixelOp.PILLOW_HUE),
            ("pillow_point", lambda x, numbers, static, bulk: mapped(x, bulk), PixelOp.POINT),
        )
    ),
    Operation(
        "pillow_grayscale",
        lambda x, numbers, static, bulk: grayscale(x, channels=static[0]),
        exact,
        each_pixel=True,
        code=PixelOp.PILLOW_GRAYSCALE,
    ),
    Operation("pillow_adjust_contrast", by_factor(adjust_contrast), exact, code=PixelOp.PILLOW_CONTRAST),
    Operation("pillow_adjust_sharpness", by_factor(adjust_sharpness), exact),
    Operation("pillow_autocontrast", alike(stretched), exact, fused=Fused(_AUTOCONTRAST, on_bytes=True)),
    Operation("pillow_smooth", alike(smooth), exact),
)
METHODS = {"convert": convert, "point": point}
IMAGE_OPS = {"autocontrast": autocontrast, "equalize": equalize}
OF_PICTURES = {"adjust_hue": encode_hue, "rgb_to_grayscale": rgb_to_grayscale}

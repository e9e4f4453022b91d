"""Draw a few samples of a certificate: the CPU's pixels, the device's, and their difference."""

from __future__ import annotations

import base64
import heapq
import io
import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from ...session import Pictured

#: Limits on the pictures of one certificate: their number, and their bytes in base64. A session holds up to three.
MOST, NBYTES = 4, 20_000
#: Sides in pixels, of which the largest is chosen that has room for this many pictures.
_SIDES, _ENOUGH = (96, 72, 48), 2
#: Number of colours in a picture's palette, with which it takes a quarter of the bytes. Differences have no palette.
_COLOURS = 64


class Pictures:
    """Collector of the images that differ the most, and of the first equal ones if too few differ."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, Tensor, Tensor]] = []  # a heap, the least different first
        self._number = 0

    def add(self, made: Tensor, want: Tensor) -> None:
        """Take in a tensor of a batch as the device made it, and as the CPU made it.

        Images are ``uint8`` or floating, CHW or HWC, of 1 or 3 channels, as a batch or a single one. Other tensors are
        left out.
        """
        pairs = zip(made, want, strict=False) if want.dim() == 4 else [(made, want)]
        try:
            for one, other in pairs:
                self._add(_planes(one.as_subclass(Tensor)), _planes(other.as_subclass(Tensor)))
        except Exception:  # a certificate does not need pictures
            pass

    def drawn(self) -> tuple[Pictured, ...]:
        """Return the pictures, the most different first; none if drawing fails."""
        kept = sorted(self._kept, key=lambda one: (-one[0], -one[1]))
        found: list[Pictured] = []
        try:
            for side in _SIDES:
                found = _that_fit([_pictured(want, made, largest, side) for largest, _, want, made in kept])
                if len(found) >= min(_ENOUGH, len(kept)):
                    break
        except Exception:
            return ()
        return tuple(found)

    def _add(self, made: Tensor, want: Tensor) -> None:
        if made.shape != want.shape or made.dtype != want.dtype:
            raise ValueError("no pair of images")
        made, want = _levels(made.cpu(), want), _levels(want, want)
        largest = float((made - want).abs().max())
        if not math.isfinite(largest):
            raise ValueError("no finite difference")
        self._number -= 1  # of two that differ as much, the first is kept
        add = heapq.heappush if len(self._kept) < MOST else heapq.heappushpop
        add(self._kept, (largest, self._number, want, made))


def _planes(image: Tensor) -> Tensor:
    """Return an image as CHW."""
    if image.dim() != 3 or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError("no image")
    if image.shape[0] not in (1, 3):
        image = image.permute(2, 0, 1)
    if image.shape[0] not in (1, 3) or min(image.shape) < 1 or min(image.shape[1:]) < 2:
        raise ValueError("no image")
    return image


def _levels(image: Tensor, scale: Tensor) -> Tensor:
    """Return an image in levels; the range of ``scale`` becomes 0 to 255 if it is floating-point."""
    if image.dtype == torch.uint8:
        return image.float()
    low, high = (float(end) for end in torch.aminmax(scale.float()))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("no finite range")
    return (image.float() - low) * (255.0 / ((high - low) or 1.0))


def _pictured(want: Tensor, made: Tensor, largest: float, side: int) -> Pictured:
    apart = (made - want).abs()
    scaled = apart * (255.0 / largest) if largest else apart
    height, width = want.shape[1:]
    shrunk = max(1.0, max(height, width) / side)
    size = (max(1, int(height / shrunk)), max(1, int(width / shrunk)))
    # A pixel shows the largest of its differences, so that a single one stays visible.
    difference = adaptive_max_pool2d(scaled, size)
    # Shrunk by torch and not by Pillow, whose function a script may have replaced.
    cpu, device = (_png(_image(adaptive_avg_pool2d(levels, size))) for levels in (want, made))
    return Pictured(cpu, device, _base64(_image(difference)), round(largest, 4))


def _image(levels: Tensor) -> Image.Image:
    values = levels.clamp(0, 255).round().to(torch.uint8)
    return Image.fromarray((values[0] if len(values) == 1 else values.permute(1, 2, 0)).contiguous().numpy())


def _png(image: Image.Image) -> str:
    return _base64(image if image.mode == "L" else image.quantize(_COLOURS, dither=Image.Dither.NONE))


def _base64(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _that_fit(pictures: Sequence[Pictured]) -> list[Pictured]:
    """Return the first pictures that have room together."""
    found, room = [], NBYTES
    for one in pictures:
        room -= len(one.cpu) + len(one.device) + len(one.difference)
        if room < 0:
            break
        found.append(one)
    return found

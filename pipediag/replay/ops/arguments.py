"""Read the arguments of torchvision's and Pillow's functions, in all the forms that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL.Image

from .op import NotRecordable

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers

#: Modes of Pillow images with one byte per channel, and their number of channels.
BANDS = {"L": 1, "RGB": 3}
MODES = {channels: mode for mode, channels in BANDS.items()}


def interpolation_name(given: Any) -> str:
    """Return the name of a mode given as a string, an ``InterpolationMode`` or Pillow's number."""
    if isinstance(given, int):
        return INTERPOLATIONS[given]
    return str(getattr(given, "value", given))


def output_size(old: tuple[int, int], size: Any, max_size: int | None) -> tuple[int, int]:
    """Return (height, width) of a resized image, by the rule of ``torchvision.transforms.functional.resize``."""
    if isinstance(size, int):
        size = [size]
    if size is not None and len(size) == 2:
        return int(size[0]), int(size[1])
    height, width = old
    short, long = (width, height) if width <= height else (height, width)
    if size is None:
        if not isinstance(max_size, int):
            raise NotRecordable("max_size must be an integer where size is None")
        new_short, new_long = int(max_size * short / long), max_size
    else:
        new_short, new_long = size[0], int(size[0] * long / short)
        if max_size is not None and new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if width <= height else (new_short, new_long)


def pair(given: Any) -> tuple[Any, Any]:
    """Return two values; a single number, or a sequence of one, is used for both."""
    values = [given] if isinstance(given, (int, float)) else list(given)
    return values[0], values[-1]


def paddings(padding: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) in pixels."""
    given = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = {1: given * 4, 2: given * 2, 4: given}[len(given)]
    return int(left), int(top), int(right), int(bottom)


def fills(fill: Any) -> tuple[float, ...] | None:
    """Return one value for all channels, or one for each; None for torchvision's None, which differs from 0."""
    if fill is None:
        return None
    return tuple(float(v) for v in fill) if isinstance(fill, Sequence) else (float(fill),)


def colour_of(colour: Any, channels: int) -> tuple[int, ...]:
    """Return the levels of any colour that Pillow takes; None is black."""
    levels: Any = PIL.Image.new(MODES[channels], (1, 1), colour or 0).getpixel((0, 0))
    return levels if isinstance(levels, tuple) else (levels,)

"""Copy the pixels of Pillow's pictures as they are in memory, a row after the other, without packing them."""

from __future__ import annotations

import functools
from typing import Any

#: Bytes of a pixel in memory, by mode.
_BYTES = {"L": 1, "P": 1, "I;16": 2, "LA": 4, "RGB": 4, "RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}


def size_of(mode: str, size: tuple[int, int]) -> int:
    """Return the bytes of a picture's pixels; 0 if its mode is not known here."""
    return size[0] * size[1] * _BYTES.get(mode, 0)


def pixels_of(picture: Any) -> bytearray | None:
    """Return the pixels of a loaded picture; None if its mode is not known here."""
    mode, (width, height) = picture.mode, picture.size
    nbytes = size_of(mode, picture.size)
    if not nbytes:
        return None
    data = bytearray(nbytes)
    mapped(mode, picture.size, data).paste(picture.im, (0, 0, width, height))
    return data


def with_pixels(mode: str, size: tuple[int, int], data: Any) -> Any:
    """Return a new core image with these pixels."""
    return mapped(mode, size, data).copy()


def mapped(mode: str, size: tuple[int, int], data: Any) -> Any:
    """Return a core image whose memory is ``data``. Pillow takes it for read-only."""
    if len(data) != size_of(mode, size):
        raise ValueError("the pixels do not fit the size")
    return core().map_buffer(data, size, "raw", 0, (mode, size[0] * _BYTES[mode], 1))


@functools.cache
def core() -> Any:
    """Return Pillow's compiled module."""
    from PIL import Image

    return vars(Image)["core"]

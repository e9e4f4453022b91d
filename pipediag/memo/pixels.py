"""Copy the pixels of Pillow's pictures as they are in memory, a row after the other, without packing them."""

from __future__ import annotations

import functools
from typing import Any

#: Bytes of a pixel in memory, by mode.
_BYTES = {"L": 1, "P": 1, "I;16": 2, "LA": 4, "RGB": 4, "RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}


def pixels_of(picture: Any) -> bytearray | None:
    """Return the pixels of a loaded picture; None if its mode is not known here."""
    mode, (width, height) = picture.mode, picture.size
    if mode not in _BYTES or not width or not height:
        return None
    data = bytearray(width * height * _BYTES[mode])
    _mapped(mode, picture.size, data).paste(picture.im, (0, 0, width, height))
    return data


def with_pixels(mode: str, size: tuple[int, int], data: Any) -> Any:
    """Return a new core image with these pixels."""
    image = _core().new(mode, size)
    image.paste(_mapped(mode, size, data), (0, 0, *size))
    return image


def _mapped(mode: str, size: tuple[int, int], data: Any) -> Any:
    """Return a core image whose memory is ``data``."""
    if len(data) != size[0] * size[1] * _BYTES[mode]:
        raise ValueError("the pixels do not fit the size")
    return _core().map_buffer(data, size, "raw", 0, (mode, size[0] * _BYTES[mode], 1))


@functools.cache
def _core() -> Any:
    from PIL import Image

    return vars(Image)["core"]

"""Read from a JPEG's header whether the device decodes it as the CPU does."""

from __future__ import annotations

import io
import re
from functools import lru_cache
from typing import NamedTuple

from PIL.JpegImagePlugin import JpegImageFile

#: Larger images are decoded in the worker: their pixels would take too much of the device's memory at once.
_MOST_PIXELS = 1 << 25

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _HUFFMAN, _ARITHMETIC, _SCAN, _JFIF, _ADOBE = 0xC0, 0xC4, 0xCC, 0xDA, 0xE0, 0xEE
#: Segments that begin a frame; all but one are other kinds of JPEG than baseline.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_HUFFMAN, 0xC8, _ARITHMETIC}
#: Segments of applications, and comments.
_METADATA = frozenset({*range(0xE0, 0xF0), 0xFE})
#: Height and width of 16 pixels, for a picture that is quick to decode.
_SMALL = b"\x00\x10\x00\x10"
#: Sampling factors of luminance that the decoder knows (4:4:4, 4:2:2, 4:2:0), with chroma at 1 x 1.
_SAMPLINGS = frozenset({0x11, 0x21, 0x22})
#: First marker after a scan's data that is neither a stuffed byte nor a restart.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")


class Jpeg(NamedTuple):
    """File that the device decodes as the CPU does.

    Attributes:
        height, width: of its pixels.
        sampling: luminance samples for one of chroma, horizontally in the upper four bits, vertically in the lower.
    """

    data: bytes
    height: int
    width: int
    sampling: int


def decodable(data: bytes) -> Jpeg | None:
    """Return the JPEG if the device decodes it as the CPU does, or None for any other file.

    Such a file is baseline, 8 bits, YCbCr with 4:4:4, 4:2:2 or 4:2:0 sampling, in one complete scan. If the CPU's
    decoder raises for a file, the result is None, so that the user's code gets the error.
    """
    if data[:2] != _SOI:
        return None
    at, ids, is_ycc, height, width, sampling = 2, b"", None, 0, 0, 0
    needed = b""  # the segments that decoding depends on
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 2:
            return None
        segment = data[at : at + 2 + size]
        body = segment[4:]
        at += len(segment)
        if kind == _SCAN:
            end = _MARKER.search(data, at)
            whole = end is not None and end.group() == _EOI and body[:1] == b"\x03"
            # libjpeg's rule: JFIF is YCbCr; then Adobe's marker decides, then the names of the components.
            is_known = whole and bool(ids) and (is_ycc if is_ycc is not None else ids == b"\x01\x02\x03")
            return Jpeg(data, height, width, sampling) if is_known and _is_sound(needed + segment) else None
        if kind == _JFIF and body[:5] == b"JFIF\0":
            is_ycc = True
        elif kind == _ADOBE and body[:5] == b"Adobe" and len(body) >= 12 and is_ycc is None:
            is_ycc = body[11] == 1
        elif kind in _FRAMES:
            if kind != _BASELINE or len(body) != 15 or body[0] != 8 or body[5] != 3:
                return None
            height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
            ids, sampling = body[6:15:3], body[7]
            if not 0 < height * width <= _MOST_PIXELS or sampling not in _SAMPLINGS or body[10:14:3] != b"\x11\x11":
                return None
            segment = segment[:5] + _SMALL + segment[9:]
        elif kind == _ARITHMETIC:
            return None
        if kind not in _METADATA:
            needed += segment
    return None


@lru_cache(maxsize=256)
def _is_sound(segments: bytes) -> bool:
    """Return whether the CPU's decoder accepts the tables, frame and scan header; it does not check the data."""
    try:
        with JpegImageFile(io.BytesIO(_SOI + segments + _EOI)) as picture:
            picture.load()
    except Exception:  # Pillow raises errors of many kinds
        return False
    return True

"""Open JPEGs without decoding them, so that their bytes can travel to the device instead of their pixels.

Inside :func:`undecoded_files`, ``PIL.Image.open`` returns an :class:`Undecoded` picture for a JPEG that the device
decodes as Pillow does. Its size, mode and metadata are known from the header. Whatever needs pixels decodes it first,
as Pillow always does, so user code sees a usual picture. Any other file opens as before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import PIL.Image
from PIL.JpegImagePlugin import JpegImageFile

from ..patches import replaced

#: Larger images are decoded in the worker: their pixels would take too much of the device's memory at once.
_MOST_PIXELS = 1 << 25

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _HUFFMAN, _ARITHMETIC, _SCAN, _JFIF, _ADOBE = 0xC0, 0xC4, 0xCC, 0xDA, 0xE0, 0xEE
#: Segments that begin a frame: the second half of each range and C1 to C3 are other kinds of JPEG than baseline.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_HUFFMAN, 0xC8, _ARITHMETIC}
#: Sampling factors of luminance that the decoder knows (4:4:4, 4:2:2, 4:2:0), with chroma at 1 x 1.
_SAMPLINGS = frozenset({0x11, 0x21, 0x22})
#: First marker after a scan's data that is neither a stuffed byte nor a restart.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")


def is_decodable(data: bytes) -> bool:
    """Return whether a file is a JPEG that the device decodes as Pillow does: baseline, 8 bits, YCbCr with 4:4:4, 4:2:2
    or 4:2:0 sampling, in one complete scan."""
    if data[:2] != _SOI:
        return False
    at, ids, is_ycc = 2, b"", None
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + size]
        at += 2 + size
        if kind == _SCAN:
            end = _MARKER.search(data, at)
            whole = end is not None and end.group() == _EOI and body[:1] == b"\x03"
            # libjpeg's rule: JFIF is YCbCr; then Adobe's marker decides, then the names of the components.
            return whole and bool(ids) and (is_ycc if is_ycc is not None else ids == b"\x01\x02\x03")
        if kind == _JFIF and body[:5] == b"JFIF\0":
            is_ycc = True
        elif kind == _ADOBE and body[:5] == b"Adobe" and len(body) >= 12 and is_ycc is None:
            is_ycc = body[11] == 1
        elif kind in _FRAMES:
            if kind != _BASELINE or len(body) != 15 or body[0] != 8 or body[5] != 3:
                return False
            height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
            if not 0 < height * width <= _MOST_PIXELS or body[7] not in _SAMPLINGS or body[10:14:3] != b"\x11\x11":
                return False
            ids = body[6:15:3]
        elif kind == _ARITHMETIC:
            return False
    return False


class Undecoded(PIL.Image.Image):
    """JPEG whose pixels nobody has needed yet. It becomes a usual picture as soon as one does.

    Attributes:
        encoded: the file's bytes, which :func:`is_decodable` accepts.
    """

    encoded: bytes

    def copy(self) -> UndecodedPicture:
        twin = UndecodedPicture()
        twin.__dict__.update(_mode=self.mode, _size=self.size, info=self.info.copy(), encoded=self.encoded)
        return twin

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if mode in (None, self.mode) and not args and not kwargs:
            return self.copy()
        self.load()
        return self.convert(mode, *args, **kwargs)

    def __deepcopy__(self, memo: Any) -> UndecodedPicture:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        self.load()
        if isinstance(other, Undecoded):
            other.load()
        return bool(self == other)

    __hash__ = None  # type: ignore[assignment]  # as any picture

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)


class UndecodedPicture(Undecoded):
    """Picture that Pillow would hold without its file, such as a converted one."""

    def load(self) -> Any:
        with PIL.Image.open(io.BytesIO(self.encoded)) as again:
            again.load()
            core = again.im
        self.__class__ = PIL.Image.Image  # type: ignore[assignment]
        self.im = core
        del self.__dict__["encoded"]
        return self.load()


class UndecodedFile(Undecoded, JpegImageFile):
    """Picture that ``PIL.Image.open`` returned."""

    def load(self) -> Any:
        return self._opened().load()

    def draft(self, mode: Any, size: Any) -> Any:
        """Choose another size to decode to, which the device does not know."""
        return self._opened().draft(mode, size)

    def _opened(self) -> JpegImageFile:
        """Turn into what Pillow opened."""
        self.__class__ = JpegImageFile  # type: ignore[assignment]
        del self.__dict__["encoded"]
        return self


def is_undecoded(value: Any) -> bool:
    return isinstance(value, Undecoded)


@contextmanager
def undecoded_files() -> Iterator[None]:
    """Let ``PIL.Image.open`` return JPEGs undecoded inside the context."""
    with replaced(PIL.Image, "open", _opening(PIL.Image.open)):
        yield


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    def open(*args: Any, **kwargs: Any) -> Any:
        picture = original(*args, **kwargs)
        if type(picture) is JpegImageFile and picture.mode == "RGB" and picture.fp is not None:
            file = picture.fp
            at = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(at)
            if is_decodable(data):
                picture.__class__ = UndecodedFile
                picture.__dict__["encoded"] = data
        return picture

    return open

"""Pictures whose pixels are those of the cache, read-only, until somebody may write to them.

Pixels are copied as they are in memory, a row after the other, without packing them.

Pillow has pictures that use others' pixels itself: those of mapped files. Its methods copy the pixels of a read-only
picture before they write. Only ``frombytes``, what ``load`` returns, and what is done with a picture's core afterwards
would not be safe. So a picture gets pixels of its own as soon as anything calls ``load`` on it that may write: it is
neither one of Pillow's methods that loading and augmenting consist of, nor somebody else who does not use what ``load``
returns.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from .. import patches
from ..usercode.attributes import ByObject

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


#: Methods of Pillow's ``Image`` that read the pixels after ``load`` and do not keep or return the picture's core.
_READERS = (
    *("convert", "copy", "crop", "getchannel", "getextrema", "histogram", "reduce", "resize", "split", "tobytes"),
    *("transpose", "_Image__transformer"),
)
#: The core image of each picture with such pixels.
_lent = ByObject[Any]()
#: Code of functions noted by :func:`watch`.
_ours: set[CodeType] = set()


def lend(picture: Any, core: Any) -> None:
    """Give a picture a core image that others use, too."""
    picture.im, picture.readonly = core, 1
    _lent.set(picture, core)


def is_lent(picture: Any) -> bool:
    """Return whether a picture's present core image is not its own."""
    core = _lent.get(picture)
    return core is not None and vars(picture).get("_im") is core


def own(picture: Any) -> None:
    """Give a picture pixels of its own if it has none."""
    if is_lent(picture):
        picture.im, picture.readonly = picture.im.copy(), 0
    _lent.pop(picture)


def own_all() -> None:
    """Give all pictures pixels of their own."""
    for picture in _lent.objects():
        own(picture)


def reader_calls() -> bool:
    """Return whether the caller was called by a function that only reads."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == patches.__file__:
        frame = frame.f_back
    code = frame.f_code
    return code in _readers() or code in _ours or (not _is_pillows(code) and _discards(code, frame.f_lasti))


@functools.lru_cache(maxsize=256)
def _discards(code: CodeType, call: int) -> bool:
    """Return whether a function's call at the offset ``call`` in its code is a statement ``….load()``."""
    shown = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL")]
    at = sum(one.offset <= call for one in shown) - 1  # the offset may be that of a cache behind the call
    before, after = shown[at - 1], shown[min(at + 1, len(shown) - 1)]
    is_load = before.opname in ("LOAD_METHOD", "LOAD_ATTR") and before.argval == "load"
    return is_load and shown[at].opname.startswith("CALL") and after.opname == "POP_TOP"


def _is_pillows(code: CodeType) -> bool:
    from PIL import Image

    return os.path.dirname(code.co_filename) == os.path.dirname(Image.__file__)


def load_stand_in(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for ``Image.load``."""

    def load(self: Any) -> Any:
        if self in _lent and not reader_calls():
            own(self)
        return plain(self)

    return watch(load)


def copy_stand_in(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for ``Image.copy``: the copy of a picture with lent pixels has them, too."""

    def copy(self: Any) -> Any:
        if getattr(self, "tile", None):
            self.load()
        if not is_lent(self):
            return plain(self)
        image = self.im
        new = self._new(image)
        lend(new, image)
        return new

    return watch(copy)


def owning_stand_in(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a method that writes without asking whether it may, such as ``Image.frombytes``."""

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        own(self)
        return plain(self, *args, **kwargs)

    return watch(write)


def can_lend() -> bool:
    """Return whether what watches lent pictures is in place, and nobody has replaced it."""
    from PIL import Image, ImageFile

    return all(map(_is_ours, (Image.Image.load, Image.Image.frombytes, ImageFile.ImageFile.load)))


def watch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note a function of ours that calls ``load`` and does not write, or calls :func:`own` where it must."""
    _ours.add(function.__code__)
    return function


def _is_ours(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    while code is not None and code.co_filename == patches.__file__:  # layers
        function = getattr(function, "__wrapped__", None)
        code = getattr(function, "__code__", None)
    return code in _ours


@functools.cache
def _readers() -> frozenset[CodeType]:
    from PIL import Image, ImageFile

    methods = [getattr(Image.Image, name, None) for name in _READERS] + [ImageFile.ImageFile.load]
    return frozenset(inspect.unwrap(method).__code__ for method in methods if inspect.isfunction(method))

"""Open JPEGs with Pillow without decoding them, so that their bytes can travel to the device instead of their pixels.

Inside :func:`undecoded_pictures`, ``PIL.Image.open`` returns an undecoded picture for a JPEG that the device decodes as
Pillow does. Its size, mode and metadata are known from the header. Code that needs pixels decodes it first, as with any
picture of Pillow, so user code sees a usual picture. Any other file opens as before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import get_ident
from typing import Any

import PIL.Image
from PIL import ImageOps
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile

from ...patches import replaced
from .jpeg_header import decodable
from .undecoded import Undecoded, is_undecoded


class _Picture(Undecoded, PIL.Image.Image):
    @cached_property
    def lasting(self) -> UndecodedPicture:
        """The same picture, which user code cannot close, decode or write into."""
        return self.copy()

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
        if isinstance(other, _Picture):
            other.load()
        return bool(self == other)

    __hash__ = None  # type: ignore[assignment]  # as any picture

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)


class UndecodedPicture(_Picture):
    """Picture that is no longer bound to its file, such as a converted one."""

    def load(self) -> Any:
        with PIL.Image.open(io.BytesIO(self.encoded.data)) as again:
            again.load()
            core = again.im
        _turned(self, PIL.Image.Image).im = core
        return self.load()

    def close(self) -> None:
        _turned(self, PIL.Image.Image).close()


class UndecodedFile(_Picture, JpegImageFile):
    """Picture that ``PIL.Image.open`` returned."""

    def load(self) -> Any:
        return _opened(self).load()

    def draft(self, mode: Any, size: Any) -> Any:
        """Choose another size to decode to, which the device does not know."""
        return _opened(self).draft(mode, size)

    def verify(self) -> None:
        _opened(self).verify()

    def close(self) -> None:
        _opened(self).close()

    def __exit__(self, *args: Any) -> None:
        _opened(self).__exit__(*args)


def _opened(picture: Any) -> Any:
    """Turn the picture into the one that Pillow opened, unless it is that already; return it."""
    return _turned(picture, JpegImageFile) if type(picture) is UndecodedFile else picture


def _turned(picture: Any, cls: type) -> Any:
    """Turn an undecoded picture into a usual one of type ``cls``; return it."""
    picture.__class__ = cls
    for name in ("encoded", "lasting"):
        picture.__dict__.pop(name, None)
    return picture


@contextmanager
def undecoded_pictures() -> Iterator[None]:
    """Let ``PIL.Image.open`` return JPEGs undecoded inside the context, in the calling thread.

    ``ImageOps.exif_transpose`` leaves those undecoded that it does not turn.
    """
    turning = replaced(ImageOps, "exif_transpose", _turning(ImageOps.exif_transpose))
    with replaced(PIL.Image, "open", _opening(PIL.Image.open)), turning:
        yield


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    thread = get_ident()

    def open(*args: Any, **kwargs: Any) -> Any:
        picture = original(*args, **kwargs)
        usual = get_ident() == thread and type(picture) is JpegImageFile
        if usual and picture.mode == "RGB" and picture.fp is not None:
            file = picture.fp
            at = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(at)
            encoded = decodable(data)
            if encoded is not None:
                if picture._exclusive_fp:  # Pillow closes it when it decodes the picture
                    file.close()
                    picture.fp = io.BytesIO(data)
                    picture.fp.seek(at)
                picture.__class__ = UndecodedFile
                picture.__dict__["encoded"] = encoded
        return picture

    return open


def _turning(original: Callable[..., Any]) -> Callable[..., Any]:
    def exif_transpose(image: Any, *, in_place: bool = False) -> Any:
        if is_undecoded(image) and image.getexif().get(Base.Orientation) not in range(2, 9):
            return None if in_place else image.copy()
        return original(image, in_place=in_place)

    return exif_transpose

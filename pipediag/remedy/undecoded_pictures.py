"""Open JPEGs with Pillow without decoding them, so that their bytes can travel to the device instead of their pixels.

Inside :func:`undecoded_pictures`, ``PIL.Image.open`` returns an undecoded picture for a JPEG that the device decodes as
Pillow does. Its size, mode and metadata are known from the header. Whatever needs pixels decodes it first, as Pillow
always does, so user code sees a usual picture. Any other file opens as before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import PIL.Image
from PIL.JpegImagePlugin import JpegImageFile

from ..patches import replaced
from .jpeg_header import decodable_size
from .undecoded import Undecoded


class _Picture(Undecoded, PIL.Image.Image):
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
    """Picture that Pillow would hold without its file, such as a converted one."""

    def load(self) -> Any:
        with PIL.Image.open(io.BytesIO(self.encoded)) as again:
            again.load()
            core = again.im
        self.__class__ = PIL.Image.Image  # type: ignore[assignment]
        self.im = core
        del self.__dict__["encoded"]
        return self.load()


class UndecodedFile(_Picture, JpegImageFile):
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


@contextmanager
def undecoded_pictures() -> Iterator[None]:
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
            if decodable_size(data):
                picture.__class__ = UndecodedFile
                picture.__dict__["encoded"] = data
        return picture

    return open

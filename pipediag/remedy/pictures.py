"""Provide recording pictures, which stand for Pillow images as :mod:`pipediag.remedy.images` does for tensors.

Pillow's own Python code runs on them (``Image.rotate``, most of ``ImageOps``, torchvision's functions for pictures). It
ends at the methods of :data:`pipediag.remedy.picture_ops.METHODS`, which are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import PIL.Image

from .ops import NotRecordable, Op
from .picture_ops import METHODS, MODES
from .tape import Tape, session


class RecordingPicture(PIL.Image.Image):
    """Recording image that stands for a Pillow image; it has no image core."""

    stands_for = PIL.Image.Image
    tape: Tape

    @staticmethod
    def of(tape: Tape) -> RecordingPicture:
        picture = RecordingPicture.__new__(RecordingPicture)
        mode = MODES[tape.state.channels]
        info = dict(getattr(tape.source, "info", {}))
        picture.__dict__.update(tape=tape, _mode=mode, info=info, _size=tape.state.size[::-1], readonly=0)
        picture.__dict__.update(palette=None, _exif=None, pyaccess=None)
        return picture

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN:
            return object.__getattribute__(self, name)
        if not session.active:
            with session.idle():
                return getattr(self.tape.pixels(), name)
        if name in _ITS_OWN:
            return object.__getattribute__(self, name)
        if name in _RECORDED:
            return functools.partial(_RECORDED[name], self)
        if not hasattr(PIL.Image.Image, name) and name not in getattr(self.tape.source, "__dict__", {}):
            raise AttributeError(name)
        what = "a numpy array" if name.startswith("__array") else repr(name)
        raise NotRecordable(f"{what} of a picture would need its pixels")

    def getbands(self) -> tuple[str, ...]:
        return tuple(PIL.Image.getmodebandnames(self._mode))

    def point(self, lut: Any, mode: str | None = None) -> Any:
        if isinstance(lut, PIL.Image.ImagePointHandler):
            return lut.point(self)
        if callable(lut):  # a table can be pickled
            lut = [lut(level) for level in range(256)] * self.tape.state.channels
        return _RECORDED["point"](self, lut, mode)

    def filter(self, filter: Any) -> Any:
        return _RECORDED["filter"](self, filter() if isinstance(filter, type) else filter)


def recorded(encode: Callable[..., list[Op]], fn: Callable[..., Any]) -> Callable[..., RecordingPicture]:
    """Return what records ``fn``, a function of a picture or a method, by its encoder."""

    def record(picture: RecordingPicture, *args: Any, **kwargs: Any) -> RecordingPicture:
        tape = picture.tape
        return RecordingPicture.of(tape.then(encode(tape.state, *args, **kwargs), fn, args, kwargs))

    return record


_RECORDED = {name: recorded(encode, getattr(PIL.Image.Image, name)) for name, encode in METHODS.items()}

#: Attributes that need no pixels.
_KNOWN = frozenset(
    {"tape", "_mode", "mode", "_size", "size", "width", "height", "info", "palette", "getbands", "stands_for"}
    | {"__class__", "__dict__", "__doc__", "__module__", "close", "__del__", "format"}
)
#: Methods whose own code, or Pillow's, ends at recorded methods.
_ITS_OWN = frozenset({"point", "filter", "rotate"})

"""Pillow's pictures: what ``load`` decodes.

``Image.open`` runs as ever, and reads the file's header. Only the decoding of JPEG and PNG pictures of one frame is
remembered, with everything that ``load`` leaves in the picture: pixels, text and other chunks behind them, the place in
the file, and whether the file is closed.

Large pictures are decoded where they are kept, so that nothing is copied, and handed out with lent pixels.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..patches import is_native
from ..usercode.attributes import is_exactly
from . import lent
from .arena import Entry, Space
from .calls import PILLOW, Call, Remembering
from .keys import NoKey, digest, file_state
from .lent import mapped, pixels_of, size_of
from .values import Unfit

#: Classes whose ``load`` is understood, with the decoder that they use.
_DECODERS = {("PIL.JpegImagePlugin", "JpegImageFile"): "jpeg", ("PIL.PngImagePlugin", "PngImageFile"): "zip"}
#: Modes of pictures whose pixels may be lent: without a palette, and four bytes a pixel, as Pillow's decoders expect.
_LENT = {"RGB", "RGBA", "RGBX", "CMYK"}
#: Bytes of pixels from which lending takes less time than copying.
_LARGE = 1 << 16
#: Attributes that are set by what a hit does itself.
_SET_ANYWAY = {"_im", "im", "fp", "tile", "map", "readonly", "_readonly", "info", "palette"}
#: Methods that ``load`` calls, if a class has them.
_STEPS = ("load_prepare", "load_read", "load_seek", "load_end")


def _stand_in(memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    def load(self: Any) -> Any:
        reads = lent.reader_calls()
        if self.tile or not reads:
            lent.own(self)
        if not self.tile:
            return plain(self)
        decoding = _Decoding(self, memo)
        lends = reads and lent.can_lend()
        unpack = partial(_filled, self, lends)
        try:
            pixels = memo.recall(PILLOW, decoding.key, partial(decoding.run, plain), decoding.packed, unpack)
        finally:
            has_moved = decoding.end(lends)
        return _pillow()[0].Image.Image.load(self) if has_moved else pixels

    return lent.watch(load)


class _Decoding:
    """A picture's decoding, in place if there is room."""

    def __init__(self, picture: Any, memo: Remembering) -> None:
        self._picture, self._memo = picture, memo
        self._space: Space | None = None
        self._may_be_kept = False

    def key(self) -> bytes:
        found = _key(self._picture)
        self._may_be_kept = True
        return found

    def run(self, plain: Callable[[Any], Any]) -> Any:
        picture = self._picture
        self._file, held = picture.fp, vars(picture)
        self._before = held | {name: one.copy() for name, one in held.items() if is_exactly(one, dict, list)}
        nbytes = size_of(picture.mode, picture.size)
        if self._may_be_kept and picture.mode in _LENT and nbytes >= _LARGE:
            self._space = self._memo.arena.space(nbytes)
        if self._space is not None:
            picture.im = mapped(picture.mode, picture.size, self._space.body)
            self._image = picture.im
        return plain(picture)

    def packed(self, result: Any) -> tuple[Any, Any]:
        """Describe what ``load`` has changed.

        Raises:
            Unfit: it left what a hit cannot leave.
        """
        picture, file, space = self._picture, self._file, self._space
        head = _changes(picture, self._before, None if file.closed else file.tell())
        if space is not None and picture.im is self._image:
            return head, space
        pixels = pixels_of(picture)
        if pixels is None:
            raise Unfit
        return head, [pixels]

    def end(self, lends: bool) -> bool:
        """Take the picture's pixels out of what is written to. Return whether they were there."""
        picture, space = self._picture, self._space
        if space is None:
            return False
        if picture.im is self._image:
            if space.kept is None:
                picture.im = picture.im.copy()
            else:
                _hand_out(picture, mapped(picture.mode, picture.size, space.kept), lends)
        self._image = None
        if space.kept is None:
            self._memo.arena.give_back(space)
        return True


def _key(picture: Any) -> bytes:
    kind, held = type(picture), vars(picture)
    (tile,) = picture.tile
    if tile[0] != _DECODERS.get((kind.__module__, kind.__qualname__)) or "load" in held:
        raise NoKey
    if held.get("_im", held.get("im")) is not None or held.get("is_animated") or not _is_pillows(kind, tile[0]):
        raise NoKey
    module, logger, versions = _pillow()
    if logger.isEnabledFor(logging.DEBUG):  # some chunks are logged
        raise NoKey
    png = sys.modules.get("PIL.PngImagePlugin")
    return digest(
        (kind.__qualname__, picture.mode, picture.size, *tile, picture.decodermaxblock, picture.decoderconfig),
        (module.LOAD_TRUNCATED_IMAGES, getattr(png, "MAX_TEXT_CHUNK", 0), getattr(png, "MAX_TEXT_MEMORY", 0)),
        (versions, picture.info.get("interlace"), _closes(picture)),
        file_state(picture.fp),
    )


def _is_pillows(kind: type, decoder: str) -> bool:
    """Return whether no code of the user's takes part in the decoding."""
    image = sys.modules["PIL.Image"]
    steps = [getattr(kind, name, None) for name in _STEPS]
    own = all(is_native(step, kind) for step in steps if step is not None) and is_native(image._getdecoder, image)
    return own and decoder not in image.DECODERS


@functools.cache
def _pillow() -> tuple[Any, logging.Logger, tuple[str, ...]]:
    """Return the module whose settings count, the logger, and the versions."""
    from PIL import Image, ImageFile

    core: Any = vars(Image)["core"]
    return ImageFile, logging.getLogger("PIL"), (core.PILLOW_VERSION, core.jpeglib_version, core.zlib_version)


def _changes(picture: Any, before: dict[str, Any], place: int | None) -> tuple[Any, ...]:
    """Return what ``load`` has changed beside the pixels.

    Raises:
        Unfit: it left what a hit cannot leave.
    """
    after, image = vars(picture), picture.im
    gone = set(before) - set(after) or set(before["info"]) - set(picture.info)
    closed = picture.fp is None and (place is None) == _closes(picture)
    readonly = after.get("_readonly", after.get("readonly"))  # the property is also true for a mapped core image
    if gone or not closed or picture.tile or readonly or picture.map is not None:
        raise Unfit
    if (image.mode, image.size) != (picture.mode, picture.size) or before["palette"] is not picture.palette:
        raise Unfit
    info = {name: one for name, one in picture.info.items() if before["info"].get(name, picture) != one}
    changed = {
        name: one
        for name, one in after.items()
        if (old := before.get(name, picture)) is not one
        and name not in _SET_ANYWAY
        and (not is_exactly(old, dict, list) or old != one)
    }
    # Marshal refuses what is not exactly of a simple type, such as Pillow's text with a language.
    return picture.mode, picture.size, info, changed, place


def _closes(picture: Any) -> bool:
    return bool(picture._exclusive_fp and picture._close_exclusive_fp_after_loading)


@lent.watch
def _filled(picture: Any, lends: bool, entry: Entry) -> Any:
    """Leave the picture as ``load`` would."""
    mode, size, info, changed, place = entry.head
    image, file = mapped(mode, size, entry.body), picture.fp
    if place is not None:
        file.seek(place)
    picture.tile, picture.map = [], None
    _hand_out(picture, image, lends and mode in _LENT and len(entry.body) >= _LARGE)
    picture.info.update(info)
    vars(picture).update(changed)
    if _closes(picture):
        file.close()
    picture.fp = None
    return _pillow()[0].Image.Image.load(picture)


def _hand_out(picture: Any, image: Any, lends: bool) -> None:
    if lends:
        lent.lend(picture, image)
    else:
        picture.im, picture.readonly = image.copy(), 0


CALLS = (
    Call("PIL.ImageFile", "ImageFile", "load", _stand_in),
    Call("PIL.Image", "Image", "load", lambda memo, plain: lent.load_stand_in(plain)),
    Call("PIL.Image", "Image", "copy", lambda memo, plain: lent.copy_stand_in(plain)),
    Call("PIL.Image", "Image", "frombytes", lambda memo, plain: lent.owning_stand_in(plain)),
)

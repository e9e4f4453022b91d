"""Pillow's pictures: what ``load`` decodes.

``Image.open`` runs as ever, and reads the file's header. Only the decoding of JPEG and PNG pictures of one frame is
remembered, with everything that ``load`` leaves in the picture: pixels, text and other chunks behind them, the place in
the file, and whether the file is closed.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..arena import Entry
from ..keys import NoKey, digest, file_state
from ..pixels import pixels_of, with_pixels
from ..values import Packed, Unfit
from .call import PILLOW, Call, Remembering

#: Classes whose ``load`` is understood, with the decoder that they use.
_DECODERS = {("PIL.JpegImagePlugin", "JpegImageFile"): "jpeg", ("PIL.PngImagePlugin", "PngImageFile"): "zip"}
#: Attributes that are set by what a hit does itself.
_SET_ANYWAY = {"_im", "im", "fp", "tile", "map", "readonly", "_readonly", "info", "palette"}


def _stand_in(memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    def load(self: Any) -> Any:
        if not self.tile:
            return plain(self)
        file, before = self.fp, {}

        def loaded() -> Any:
            before.update(_state(self))
            return plain(self)

        def pack(result: Any) -> Packed:
            return _packed(self, before, None if file.closed else file.tell())

        return memo.recall(PILLOW, partial(_key, self), loaded, pack, partial(_filled, self))

    return load


def _key(picture: Any) -> bytes:
    kind, held = type(picture), vars(picture)
    (tile,) = picture.tile
    if tile[0] != _DECODERS.get((kind.__module__, kind.__qualname__)) or "load" in held:
        raise NoKey
    if held.get("_im", held.get("im")) is not None or getattr(picture, "is_animated", False):
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


@functools.cache
def _pillow() -> tuple[Any, logging.Logger, tuple[str, ...]]:
    """Return the module whose settings count, the logger, and the versions."""
    from PIL import Image, ImageFile

    core: Any = vars(Image)["core"]
    return ImageFile, logging.getLogger("PIL"), (core.PILLOW_VERSION, core.jpeglib_version, core.zlib_version)


def _state(picture: Any) -> dict[str, Any]:
    """Return the picture's attributes; containers that ``load`` may change are copied."""
    return {name: type(one)(one) if type(one) in (dict, list) else one for name, one in vars(picture).items()}


def _packed(picture: Any, before: dict[str, Any], place: int | None) -> Packed:
    """Describe what ``load`` has changed.

    Raises:
        Unfit: it left what a hit cannot leave.
    """
    after, image = vars(picture), picture.im
    gone = set(before) - set(after) or set(before["info"]) - set(picture.info)
    closed = picture.fp is None and (place is None) == _closes(picture)
    if gone or not closed or picture.tile or picture.readonly or picture.map is not None:
        raise Unfit
    if (image.mode, image.size) != (picture.mode, picture.size) or before["palette"] is not picture.palette:
        raise Unfit
    info = {name: one for name, one in picture.info.items() if before["info"].get(name, picture) != one}
    changed = {
        name: one
        for name, one in after.items()
        if name not in _SET_ANYWAY and not _is_same(before.get(name, picture), one)
    }
    pixels = pixels_of(picture)
    if pixels is None:
        raise Unfit
    # Marshal refuses what is not exactly of a simple type, such as Pillow's text with a language.
    return (picture.mode, picture.size, info, changed, place), [pixels]


def _closes(picture: Any) -> bool:
    return bool(picture._exclusive_fp and picture._close_exclusive_fp_after_loading)


def _is_same(before: Any, after: Any) -> bool:
    return before == after if type(before) in (dict, list) else before is after


def _filled(picture: Any, entry: Entry) -> Any:
    """Leave the picture as ``load`` would."""
    mode, size, info, changed, place = entry.head
    image, file = with_pixels(mode, size, entry.body), picture.fp
    if place is not None:
        file.seek(place)
    picture.im, picture.tile, picture.map, picture.readonly = image, [], None, 0
    picture.info.update(info)
    vars(picture).update(changed)
    if _closes(picture):
        file.close()
    picture.fp = None
    return _pillow()[0].Image.Image.load(picture)


CALLS = (Call("PIL.ImageFile", "ImageFile", "load", _stand_in),)

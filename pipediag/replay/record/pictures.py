"""Provide recording pictures, which stand for Pillow images as :mod:`pipediag.replay.record.images` does for tensors.

Pillow's own Python code runs on them (``Image.rotate``, most of ``ImageOps``, torchvision's functions for pictures). It
ends at the methods of :data:`pipediag.replay.ops.table.METHODS`, which are recorded. So are the functions of
``ImageOps`` and the enhancers that read pixels themselves; :mod:`pipediag.replay.record.hooks` patches those.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import PIL.Image
from PIL import ImageEnhance, ImageOps
from torchvision.transforms import _functional_pil as by_torchvision

from ...patches import beneath, is_native
from ..decode.undecoded import UndecodedFile, UndecodedPicture
from ..ops.arguments import MODES
from ..ops.families.pillow_colour import adjusted
from ..ops.op import NotRecordable, Op, encoded, gives_itself
from ..ops.table import IMAGE_OPS, METHODS
from .call import itself
from .session import on_pixels, session
from .tape import Tape


class RecordingPicture(PIL.Image.Image):
    """Recording image that stands for a Pillow image; it has no image core."""

    stands_for = PIL.Image.Image
    tape: Tape

    @staticmethod
    def of(tape: Tape) -> RecordingPicture:
        picture = RecordingPicture.__new__(RecordingPicture)
        mode = MODES[tape.state.channels]
        picture.__dict__.update(tape=tape, _mode=mode, _size=tape.state.size[::-1], readonly=0)
        picture.__dict__.update(palette=None, _exif=None, pyaccess=None)
        session.note_made(picture)
        return picture

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN:
            return object.__getattribute__(self, name)
        if not session.active:
            with session.idle():
                return getattr(self.tape.pixels(), name)
        if name in _ITS_OWN:
            return object.__getattribute__(self, name)
        if name in _NOTES and self.tape.is_original and hasattr(self.tape.given, name):
            return getattr(self.tape.given, name)
        if name in _RECORDED and _is_pillows(name):
            return functools.partial(_RECORDED[name], self)
        if not hasattr(PIL.Image.Image, name) and name not in getattr(self.tape.given, "__dict__", {}):
            raise AttributeError(f"{type(self.tape.given).__name__!r} object has no attribute {name!r}")
        what = "a numpy array" if name.startswith("__array") else repr(name)
        instead = "convert it with torchvision's to_tensor or pil_to_tensor, or use numpy before the transforms"
        instead = instead if what.startswith("a ") else "do it before the transforms"
        session.settles(NotRecordable(f"{what} of a picture would need its pixels: {instead}"))
        return getattr(self.settled(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the real picture: Pillow's methods copy some to their results, and no others."""
        if session.active:
            session.settles(NotRecordable(f"{name!r} of a picture is set"))
        setattr(self.settled(), name, value)

    def close(self) -> None:
        """Do nothing: there are no pixels to let go of."""

    def __repr__(self) -> str:
        if session.active:
            session.settles(NotRecordable("a picture is printed"))
        return repr(self.settled())

    def __reduce_ex__(self, protocol: Any) -> Any:
        if session.active:
            session.settles(NotRecordable("a picture is pickled or copied in full"))
        return itself, (self.settled(),)  # pickle refuses what makes an object of another class than this one

    def settled(self) -> Any:
        """Return the real picture, which this one stands for from now on even if it is written into."""
        self.tape.is_needed()
        with session.idle():
            picture = self.tape.pixels()
        self.__dict__["tape"] = Tape.of_real(picture, self.tape.state)
        return picture

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


def lasting(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Return a picture that keeps the pixels when the user's is written into, or closed.

    Both share the pixels until then (:func:`own`). Pixels that may be written into unseen are copied: those of an
    array, of a file that may hold more frames, and those that a drawing or a pixel access holds.
    """
    if isinstance(picture, (UndecodedFile, UndecodedPicture)):
        return picture.lasting
    known: PIL.Image.Image | None = session.given.get(id(picture), (None, None))[1]
    if known is not None and known.im is picture.im:
        return known
    picture.load()
    if picture.readonly or type(picture) is not PIL.Image.Image or _holders(picture) > _ALONE:
        return picture._new(picture.im.copy())
    twin: PIL.Image.Image = picture._new(picture.im)
    session.given[id(picture)] = picture, twin
    return twin


def _holders(picture: PIL.Image.Image) -> int:
    return sys.getrefcount(picture.im)


_ALONE = _holders(PIL.Image.new("L", (1, 1)))


def own(picture: PIL.Image.Image) -> None:
    """Give a picture pixels of its own: they may be written into now."""
    known = session.given.pop(id(picture), None)
    if known is not None and known[1].im is picture.im:
        picture.im = picture.im.copy()


def recorded(encode: Callable[..., list[Op]], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that records ``fn``, a function of a picture or a method, by its encoder."""

    def tried(picture: RecordingPicture, args: Any, kwargs: Any) -> tuple[Any, Any]:
        with session.idle(), session.beginning_nowhere():
            blank = PIL.Image.new(picture.mode, picture.size)
            return blank, fn(blank, *args, **kwargs)

    def record(picture: RecordingPicture, *args: Any, **kwargs: Any) -> Any:
        tape = picture.tape
        try:
            if tape.settled:  # its pixels may be written into, which nothing here sees
                raise NotRecordable(session.why)
            ops = encoded(encode, tape.state, args, kwargs)
            unchanged = gives_itself(
                fn, picture.mode, args, kwargs, ops, functools.partial(tried, picture, args, kwargs)
            )
            if unchanged and not ops and session.calls is not None:
                return picture
            return RecordingPicture.of(tape.then(ops, fn, args, kwargs))
        except NotRecordable as error:
            session.settles(error)
        return on_pixels(picture, fn, args, kwargs)

    return record


_RECORDED = {name: recorded(encode, getattr(PIL.Image.Image, name)) for name, encode in METHODS.items()}
#: By name, the functions that stand for Pillow's methods while calls on real pictures are recorded.
OF_TWINS: dict[str, Callable[..., Any]] = {}


def _is_pillows(name: str) -> bool:
    """Return whether a method of pictures is Pillow's own, and not user code that was put in its place."""
    method = beneath(vars(PIL.Image.Image).get(name))
    return (method is not None and method is OF_TWINS.get(name)) or is_native(method, PIL.Image.Image)


#: Attributes that need no pixels.
_KNOWN = frozenset(
    {"tape", "settled", "stands_for", "_mode", "mode", "_size", "size", "width", "height", "palette"}
    | {"__class__", "__dict__", "__doc__", "__module__", "close", "__del__", "__reduce_ex__", "getbands"}
)
#: Attributes that a picture has from its file, or its maker. What a function leaves of them is known to Pillow only.
_NOTES = frozenset({"info", "format", "filename"})
#: Methods whose own code, or Pillow's, ends at recorded methods.
_ITS_OWN = frozenset({"point", "filter", "rotate"})

#: Pillow's enhancers, and what each adjusts in torchvision's words.
_ENHANCERS: dict[type, str] = {
    ImageEnhance.Brightness: "brightness",
    ImageEnhance.Contrast: "contrast",
    ImageEnhance.Color: "saturation",
    ImageEnhance.Sharpness: "sharpness",
}


def image_ops() -> dict[str, Callable[[Any], Callable[..., Any]]]:
    """Return what makes the functions that record those of ``PIL.ImageOps`` that read or paste pixels, by name."""
    encoded = {name: functools.partial(recorded, encode) for name, encode in IMAGE_OPS.items()}
    return encoded | {"pad": lambda original: _pad}


def _pad(image: Any, size: Any, method: int = 3, color: Any = None, centering: Any = (0.5, 0.5)) -> Any:
    """Record ``ImageOps.pad`` as a resize and a border: it pastes one picture into another."""
    made = ImageOps.contain(image, size, method)
    if not isinstance(made, RecordingPicture):
        raise NotRecordable("a picture is resized to nothing")
    across, down = size[0] - made.width, size[1] - made.height
    left, top = (round(free * max(0, min(share, 1))) for free, share in zip((across, down), centering, strict=True))
    return ImageOps.expand(made, (left, top, across - left, down - top), color)


def enhancers(begun: Callable[[Any, str], Any]) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield owner, name and what makes the replacement of each method of the enhancers.

    ``begun`` returns a recording picture for a real one if the recording begins there: see :func:`.plain_code.begun`.
    """
    for enhancer, what in _ENHANCERS.items():
        yield enhancer, "__init__", functools.partial(_begun, begun, what)
    yield ImageEnhance._Enhance, "enhance", _enhanced


def _begun(begun: Callable[[Any, str], Any], what: str, original: Callable[..., None]) -> Callable[..., None]:
    """Keep only the picture in an enhancer; the image that it is blended with would need pixels."""

    @functools.wraps(original)
    def begin(self: Any, image: Any) -> None:
        image = begun(image, f"adjust_{what}")
        if session.active and isinstance(image, RecordingPicture):
            self.image = image
        else:
            original(self, image)

    return begin


def _enhanced(original: Callable[..., Any]) -> Callable[..., Any]:
    def record(kind: type, picture: Any, factor: float) -> Any:
        what = _ENHANCERS.get(kind)
        if what is None:
            raise NotRecordable(f"{kind.__name__} is not one of Pillow's own enhancers")
        adjust = getattr(by_torchvision, f"adjust_{what}")
        return recorded(functools.partial(adjusted, what), adjust)(picture, factor)

    @functools.wraps(original)
    def enhance(self: Any, factor: float) -> Any:
        kind = type(self)
        if session.twins is not None:
            plain = functools.partial(original, self)
            return session.twins.through(
                lambda picture, factor: plain(factor), functools.partial(record, kind), (self.image, factor), {}
            )
        if not session.active or not isinstance(self.image, RecordingPicture):
            return original(self, factor)
        return record(kind, self.image, factor)

    return enhance

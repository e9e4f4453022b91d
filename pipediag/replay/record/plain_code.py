"""Begin to record at calls of the user's own code that no transform object holds.

A function of torchvision or a method of Pillow that plain code calls on a real image may be recorded from that call on:
a recording image takes the place of the real one. A call is named by the line of the user's code that makes it, or that
calls the transform that makes it, and by its function. :class:`Tried` finds the calls from which on nothing needs the
pixels; :class:`Calls` begins at those and at no others.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import PIL.Image

from ...frames import in_package, is_installed, is_ours, is_users
from ...usercode.places import short
from ..ops.op import NotRecordable
from .call import spoken
from .images import Unreadable
from .session import session, why_not_now
from .substitutes import is_recording, stand_in, stand_in_for_stack
from .tape import Tape

_RECORD = os.path.dirname(os.path.abspath(__file__)) + os.sep
_REPLAY = os.path.dirname(_RECORD[:-1]) + os.sep
_FETCHES = _RECORD + "batches.py"
#: Packages whose own code changes no image for a sample; any other package may call a transform that it was given.
_WITHOUT = frozenset({"torch", "torchvision", "PIL"})


class Site(NamedTuple):
    """Call of a function of torchvision or Pillow by a line of the user's code, or of a library's if there is none.

    ``column`` is where the call begins and ends, and ``mode`` that of a picture: a line may change an image and its
    mask, of which only one is needed in the worker.
    """

    file: str
    line: int
    column: tuple[int, int]
    function: str
    mode: str = ""

    @property
    def where(self) -> str:
        return f"{short(self.file)}:{self.line}"

    @property
    def text(self) -> str:
        """The line as it is written."""
        return line_at(self.file, self.line)

    def __str__(self) -> str:
        return f"{self.function} ({self.where})"


def line_at(file: str, line: int) -> str:
    """Return a line as it is written, without its indentation."""
    return linecache.getline(file, line).strip()


def line_of_users() -> tuple[str, int, tuple[int, int]] | None:
    """Return file, line and columns of the innermost running code of the user's. If none makes this sample, those of
    the library that does so with transforms that it was given, such as webdataset; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    found: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file):
            found = frame
            break
        if _begins_a_sample(file) and frame.f_code.co_name != "__torch_function__":
            break
        if found is None and _may_call_a_transform(file):
            found = frame
        frame = frame.f_back
    if found is None:
        return None
    return found.f_code.co_filename, found.f_lineno, _columns(found.f_code)[found.f_lasti // 2]


@functools.lru_cache(256)
def _columns(code: CodeType) -> list[tuple[int, int]]:
    """Return the columns of each instruction; where Python does not know them, the same for all."""
    if sys.version_info < (3, 11):
        return [(0, 0)] * (len(code.co_code) // 2)
    return [(begin or 0, end or 0) for _, _, begin, end in code.co_positions()]


_is_users = functools.lru_cache(1024)(is_users)


@functools.lru_cache(1024)
def _begins_a_sample(file: str) -> bool:
    """Return whether code of ours calls the user's dataset, or a library's functions for itself."""
    return file == _FETCHES or (file.startswith(_REPLAY) and not file.startswith(_RECORD))


@functools.lru_cache(1024)
def _may_call_a_transform(file: str) -> bool:
    return is_installed(file) and not is_ours(file) and in_package(file).split(os.sep)[0] not in _WITHOUT


def site_of(function: str, mode: str = "") -> Site | None:
    line = line_of_users()
    return None if line is None else Site(*line, function, mode)


class Calls:
    """The calls at which a recording begins. Only calls of functions that were ``compared`` are recorded, if given."""

    def __init__(self, sites: Iterable[Site] = (), compared: frozenset[str] | None = None) -> None:
        self._sites = frozenset(sites)
        self._compared = compared

    def begins_at(self, site: Site) -> bool:
        return site in self._sites

    def began(self, image: Any, site: Site) -> None:
        """Note that a recording image has taken the place of a real one."""

    def wrote(self, fn: Callable[..., Any]) -> None:
        """Note that a call of ``fn`` is being recorded.

        Raises:
            NotRecordable: it must not be.
        """
        if self._compared is not None and spoken(fn) not in self._compared:
            raise NotRecordable(f"{spoken(fn)} was not among the calls that were compared")

    def needs(self, tapes: Iterable[Tape], why: str) -> None:
        """Note that code needs the pixels of images with these tapes."""


class Tried(Calls):
    """Begins at every call but those after which code needed the pixels."""

    def __init__(self, stays: dict[Site, str]) -> None:
        super().__init__()
        self.stays = stays  # these calls, each with the reason
        self.written: dict[Site, None] = {}  # all recorded calls, in their order
        self.blamed = False  # whether this pass has added to ``stays``
        self._origins: dict[int, tuple[Tape, Site]] = {}

    def begins_at(self, site: Site) -> bool:
        return site not in self.stays

    def began(self, image: Any, site: Site) -> None:
        for tape in tapes_of(image):
            self._origins[id(tape)] = tape, site

    def wrote(self, fn: Callable[..., Any]) -> None:
        site = site_of(spoken(fn))
        if site is not None:
            self.written[site] = None

    def needs(self, tapes: Iterable[Tape], why: str) -> None:
        line = line_of_users()
        where = "" if line is None else f" ({short(line[0])}:{line[1]})"
        for tape in tapes:
            _, site = self._origins.get(id(tape.first), (None, None))
            if site is not None and site not in self.stays:
                self.stays[site] = f"{why}{where}"
                self.blamed = True

    @property
    def called(self) -> tuple[Site, ...]:
        """The recorded calls, those of one function in one line together."""
        return tuple({str(site): site for site in reversed(self.written)}.values())[::-1]

    def begun(self, images: Iterable[Any]) -> frozenset[Site]:
        """Return the calls at which the recording of these images began."""
        origins = (self._origins.get(id(tape.first)) for image in images for tape in tapes_of(image))
        return frozenset(origin[1] for origin in origins if origin is not None)


def tapes_of(image: Any) -> list[Tape]:
    """Return the tapes of a recording image, or of all images in a stack."""
    return [one.tape for one in image.singles()] if isinstance(image, Unreadable) else [image.tape]


def begun(image: Any, function: str, kinds: Any = None) -> Any:
    """Return a recording image in place of a real one if the recording begins at this call of ``function``; otherwise
    the image itself. ``kinds`` holds the types of recording images that the function takes, if not all."""
    calls = session.calls
    if calls is None or not session.active or is_recording(image):
        return image
    site = site_of(function, image.mode if isinstance(image, PIL.Image.Image) else "")
    if site is None or not calls.begins_at(site):
        return image
    if why := why_not_now():
        session.settles(NotRecordable(why))
        return image
    made = stand_in(image)
    if made is None:
        made = stand_in_for_stack(image)
    if made is None or (kinds is not None and type(made) not in kinds):
        return image
    calls.began(made, site)
    return made

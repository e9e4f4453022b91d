"""Find out what a terminal or another stream can show, and make text safe for it."""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from typing import Any, NamedTuple, TextIO, TypeVar

_T = TypeVar("_T")
#: Columns of a stream that is no terminal, and the bounds of a report.
_COLUMNS, _FEWEST, _MOST = 80, 40, 100


class Look(NamedTuple):
    """How a report looks on a stream: its width, with colours or not, and with block characters or not."""

    width: int
    colour: bool
    fancy: bool


def look_of(stream: TextIO) -> Look:
    """Return the look that suits ``stream``; the variables NO_COLOR and FORCE_COLOR decide about colours."""
    live = stream.isatty()
    colour = live and os.environ.get("TERM") != "dumb"
    if os.environ.get("FORCE_COLOR"):
        colour = True
    if os.environ.get("NO_COLOR"):
        colour = False
    width = max(_FEWEST, min(_MOST, columns(stream))) if live else _COLUMNS
    return Look(width, colour, shown_by("█", stream) == "█")


def columns(stream: TextIO) -> int:
    """Return the width of a terminal; 80 if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def fresh_line(stream: TextIO) -> str:
    """Return what moves the cursor of a terminal to the start of a line: the script may have left one unfinished.

    So many spaces reach the next line from everywhere but from the start of one.
    """
    return " " * columns(stream) + "\r" if stream.isatty() else ""


def shown_by(text: str, stream: TextIO) -> str:
    """Return text with the characters escaped that the stream's encoding does not have."""
    encoding = str(getattr(stream, "encoding", None) or "ascii")
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode("ascii")


def printable(text: str, keep: str = "") -> str:
    """Return text in one line, without control characters that names in files, arguments and errors may hold.

    White space becomes a space. Other control characters, marks of direction and lone surrogates are escaped. The
    characters in ``keep`` stay.
    """
    return text if text.isprintable() else "".join(c if c in keep else _printable(c) for c in text)


def _printable(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def all_printable(value: _T) -> _T:
    """Return a dataclass, sequence or text with all text in it :func:`printable`. Lines of code keep their tabs."""
    return _cleaned(value, "")  # type: ignore[no-any-return]


def _cleaned(value: Any, keep: str) -> Any:
    if isinstance(value, str):
        return printable(value, keep)
    if isinstance(value, (list, tuple)):
        return type(value)(_cleaned(one, keep) for one in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    names = [f.name for f in dataclasses.fields(value) if f.init]
    code = {"code", "lines"} if hasattr(value, "language") else {"code"}
    cleaned = {name: _cleaned(getattr(value, name), "\t" if name in code else "") for name in names}
    return dataclasses.replace(value, **cleaned)

"""Find the heaviest parts of a training step in a profiler's record of some steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...session import Share

#: Maximum number of table rows.
MOST = 8
#: A module with at least this share of all modules' time is replaced by its submodules.
_OPENED = 0.25

#: A module: its name in the script, then the names of the submodules on the path to the part.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """One operator or kernel that ran: its name, milliseconds of device time, and its module."""

    name: str
    ms: float
    module: Path = ()


def heaviest(pieces: Iterable[Piece], steps: int) -> list[Share]:
    """Return the names that take most time, heaviest first, with calls and milliseconds per step."""
    calls, times = Counter[str](), defaultdict[str, float](float)
    for piece in pieces:
        calls[piece.name] += 1
        times[piece.name] += piece.ms
    ranked = sorted(times.items(), key=lambda row: -row[1])
    return [Share(name, calls[name] / steps, ms / steps) for name, ms in ranked[:MOST] if ms > 0]


def heaviest_modules(pieces: Iterable[Piece], calls: Mapping[Path, int], steps: int) -> list[Share]:
    """Return the modules that take most time, heaviest first; they do not overlap.

    The outermost modules come first, and every module with a large share is replaced by its submodules, so a model
    appears as its blocks. The time that such a module spends outside its submodules is a row of its own.
    """
    own, whole = defaultdict[Path, float](float), defaultdict[Path, float](float)
    for piece in pieces:
        if piece.ms > 0:
            own[piece.module] += piece.ms
            for depth in range(1, len(piece.module) + 1):
                whole[piece.module[:depth]] += piece.ms
    outermost = [path for path in whole if len(path) == 1]
    enough = _OPENED * sum(whole[path] for path in outermost)

    def rows(path: Path) -> Iterator[tuple[Path, float]]:
        inside = [other for other in whole if other[:-1] == path]
        if not inside or whole[path] < enough:
            yield path, whole[path]
            return
        if own[path] > 0:
            yield path, own[path]
        for child in inside:
            yield from rows(child)

    ranked = sorted((row for path in outermost for row in rows(path)), key=lambda row: -row[1])
    return [Share(".".join(path), calls.get(path, 0) / steps, ms / steps) for path, ms in ranked[:MOST]]

"""Find the heaviest parts of a training step in a profiler's record of some steps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..session import Share

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
    calls: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for piece in pieces:
        calls[piece.name] += 1
        times[piece.name] += piece.ms  # type: ignore[assignment]
    return [Share(name, calls[name] / steps, ms / steps) for name, ms in times.most_common(MOST) if ms > 0]


def heaviest_modules(pieces: Iterable[Piece], calls: Mapping[Path, int], steps: int) -> list[Share]:
    """Return the modules that take most time, heaviest first; they do not overlap.

    The search begins with the outermost modules and opens every module with a large share, so a model appears as its
    blocks. The time that an opened module spends outside its submodules is a row of its own.
    """
    own: Counter[Path] = Counter()
    for piece in pieces:
        if piece.module and piece.ms > 0:
            own[piece.module] += piece.ms  # type: ignore[assignment]
    whole: Counter[Path] = Counter()
    for path, ms in own.items():
        for depth in range(1, len(path) + 1):
            whole[path[:depth]] += ms
    rows: dict[Path, float] = {path: ms for path, ms in whole.items() if len(path) == 1}
    enough = _OPENED * sum(rows.values())
    pending = [path for path, ms in rows.items() if ms >= enough]
    while pending:
        path = pending.pop()
        inside = [other for other in whole if len(other) == len(path) + 1 and other[: len(path)] == path]
        if not inside:
            continue
        del rows[path]
        if own[path] > 0:
            rows[path] = own[path]
        for child in inside:
            rows[child] = whole[child]
            if whole[child] >= enough:
                pending.append(child)
    ordered = sorted(rows.items(), key=lambda row: -row[1])[:MOST]
    return [Share(".".join(path), calls.get(path, 0) / steps, ms / steps) for path, ms in ordered]

"""Show a worker's time for a sample: its parts as one bar, and the lines of code that take it."""

from __future__ import annotations

from collections.abc import Sequence

from ...analysis import Diagnosis
from ...analysis.numbers.hot_lines import hottest
from ...analysis.words import number, percent
from ...session import HotLine
from .. import evidence
from ..document import Table
from . import bars
from .parts import Chart, Drawing, PageBlock, Part, with_drawings

#: Minimum share that has the strongest colour.
_LARGE = 0.4
_HEADERS = ("part", "ms", "CPU ms", "share", "where")


def part(diagnosis: Diagnosis) -> Part | None:
    inside, rows = diagnosis.session.inside, evidence.worker_rows(diagnosis)
    if inside is None or not rows:
        return None
    whole = inside.whole.wall_ms
    shares = [cost.wall_ms / whole for _, _, cost in evidence.worker_parts(diagnosis)]
    parts = [
        bars.Segment(name, share, _heat(share), f"{ms} ms, {told}")
        for (name, ms, _, told, _), share in zip(rows, shares, strict=True)
    ]
    places = [where for *_, where in rows]
    hot = hottest(inside)
    lines = under([*zip(places, shares, strict=True)], hot)
    root = bars.Segment(f"a sample: {number(whole)} ms", 1.0, "neutral")
    drawings, begin = [], 0.0
    for one in parts:
        drawings.append(bars.bar(one.note, one.share, _strength(one.share), begin))
        begin += one.share
    blocks: list[PageBlock] = [Drawing(bars.stack(root.name, [root], 26)), Drawing(bars.stack(_told(parts), parts, 34))]
    lead = f"A sample in a worker, averaged over {inside.samples}: loading, then the transforms in their order."
    if any(line.colour for line in lines):
        blocks.append(Drawing(bars.stack(_told(lines), lines, 26)))
        lead += " Below them, their hottest lines of code."
    table = Table(_HEADERS, "lrrrc", rows)
    blocks.append(with_drawings(table, "Parts of a worker's time for a sample", "", drawings))
    if hot:
        blocks.append(_source(hot))
    return Part("worker", "Inside a worker", blocks, lead)


def under(parts: Sequence[tuple[str, float]], lines: Sequence[HotLine]) -> list[bars.Segment]:
    """Return the lines of code as the lowest level of the flame graph, each below the part that it belongs to.

    ``parts`` are places and shares. A line belongs to the part that begins nearest above it in the same file. Lines
    that belong to none are left out; gaps have no colour.
    """
    begins = [_split(where) for where, _ in parts]
    own: list[list[HotLine]] = [[] for _ in parts]
    for line in lines:
        file, number_ = _split(line.where)
        above = [(begin, n) for n, (of, begin) in enumerate(begins) if file and of == file and 0 < begin <= number_]
        if above:
            own[max(above)[1]].append(line)
    found = []
    for (_, share), inner in zip(parts, own, strict=True):
        fits = min(1.0, share / sum(line.share for line in inner)) if inner else 1.0
        found += [_line(line, fits * line.share) for line in inner]
        found.append(bars.Segment("", share - fits * sum(line.share for line in inner), ""))
    return found


def _split(where: str) -> tuple[str, int]:
    """Return the file and the line of a place; "" and 0 if it has no line."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdecimal() else ("", 0)


def _line(line: HotLine, width: float) -> bars.Segment:
    return bars.Segment(line.text, width, _heat(line.share), f"{percent(line.share)}, {line.where}")


def _told(parts: Sequence[bars.Segment]) -> str:
    """Return a level of the flame graph in words."""
    return "; ".join(f"{part.name}: {part.note}" for part in parts if part.colour)


def _source(lines: Sequence[HotLine]) -> Chart:
    rows = []
    for line in lines:
        told = percent(line.share)
        drawn = bars.bar(told, line.share, _strength(line.share))
        rows.append([line.where or "a library", drawn, told, line.text])
    return Chart("The hottest lines", ("line", "", "share", "source"), "cgrs", rows)


def _strength(share: float) -> str:
    """Return the colour of a share that stands alone in a row."""
    return "accent" if share >= _LARGE else "soft"


def _heat(share: float) -> str:
    """Return the colour of a share in a stack: stronger for more."""
    return "t4" if share >= _LARGE else "t3" if share >= 0.2 else "t2" if share >= 0.08 else "t1"

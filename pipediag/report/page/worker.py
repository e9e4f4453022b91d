"""Show a worker's time for a sample: its parts as one bar, the lines that take it, and how it is distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis import Diagnosis
from ...analysis.numbers.hot_lines import hottest
from ...analysis.words import number, percent
from ...session import HotLine
from .. import evidence
from ..document import Table
from . import svg
from .parts import Chart, Drawing, PageBlock, Part, with_drawings
from .svg import Drawn, anchor, coordinate, element, image, place

#: Minimum share that has the strongest colour.
_LARGE = 0.4
_HEADERS = ("part", "ms", "CPU ms", "share", "where")
_HEIGHT, _AXIS, _TOP = 160.0, 20.0, 30.0
#: Number of edges with a figure.
_LABELLED = 5
#: Values far below the others are not drawn if fewer than this share of all, and at least this many empty bars apart.
_FEW, _EMPTY = 0.1, 5


def part(diagnosis: Diagnosis) -> Part | None:
    inside, rows = diagnosis.session.inside, evidence.worker_rows(diagnosis)
    if inside is None or not rows:
        return None
    whole = inside.whole.wall_ms
    shares = [cost.wall_ms / whole for _, _, cost in evidence.worker_parts(diagnosis)]
    parts = [
        svg.Segment(name, share, _heat(share), f"{ms} ms, {told}")
        for (name, ms, _, told, _), share in zip(rows, shares, strict=True)
    ]
    places = [where for *_, where in rows]
    hot = hottest(inside)
    lines = under([*zip(places, shares, strict=True)], hot)
    root = svg.Segment(f"a sample: {number(whole)} ms", 1.0, "neutral")
    drawings, begin = [], 0.0
    for one in parts:
        drawings.append(svg.bar(one.note, one.share, _strength(one.share), begin))
        begin += one.share
    blocks: list[PageBlock] = [Drawing(svg.stack(root.name, [root], 26)), Drawing(svg.stack(_told(parts), parts, 34))]
    lead = f"A sample in a worker, averaged over {inside.samples}: loading, then the transforms in their order."
    if any(line.colour for line in lines):
        blocks.append(Drawing(svg.stack(_told(lines), lines, 26)))
        lead += " Below them, their hottest lines of code."
    table = Table(_HEADERS, "lrrrc", rows)
    blocks.append(with_drawings(table, "Parts of a worker's time for a sample", "", drawings))
    if hot:
        blocks.append(_source(hot))
    return Part("worker", "Inside a worker", blocks, lead)


def under(parts: Sequence[tuple[str, float]], lines: Sequence[HotLine]) -> list[svg.Segment]:
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
        found += [
            svg.Segment(line.text, fits * line.share, _heat(line.share), f"{percent(line.share)}, {line.where}")
            for line in inner
        ]
        found.append(svg.Segment("", share - fits * sum(line.share for line in inner), ""))
    return found


def _split(where: str) -> tuple[str, int]:
    """Return the file and the line of a place; "" and 0 if it has no line."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdecimal() else ("", 0)


def _told(parts: Sequence[svg.Segment]) -> str:
    """Return a level of the flame graph in words."""
    return "; ".join(f"{part.name}: {part.note}" for part in parts if part.colour)


def _source(lines: Sequence[HotLine]) -> Chart:
    rows = []
    for line in lines:
        told = percent(line.share)
        drawn = svg.bar(told, line.share, _strength(line.share))
        rows.append([line.where or "a library", drawn, told, line.text])
    return Chart("The hottest lines", ("line", "", "share", "source"), "cgrs", rows)


def _strength(share: float) -> str:
    """Return the colour of a share that stands alone in a row."""
    return "accent" if share >= _LARGE else "soft"


def _heat(share: float) -> str:
    """Return the colour of a share in a stack: stronger for more."""
    return "t4" if share >= _LARGE else "t3" if share >= 0.2 else "t2" if share >= 0.08 else "t1"


def sample_times(diagnosis: Diagnosis) -> Part | None:
    tail = diagnosis.session.tail
    if tail is None or not tail.samples:
        return None
    blocks: list[PageBlock] = []
    told = f"median {number(tail.p50_ms)} ms, 99 % below {number(tail.p99_ms)} ms"
    lead = f"{tail.samples} samples as the workers made them: {told}."
    if any(tail.counts) and len(tail.edges_ms) == len(tail.counts) + 1:
        edges, counts, left_out = without_stragglers(tail.edges_ms, tail.counts)
        marks = {"median": tail.p50_ms, "99 % below": tail.p99_ms}
        blocks.append(Drawing(histogram(f"Histogram of the samples' milliseconds: {told}", edges, counts, marks)))
        lead += f" Not drawn: {left_out} below {number(edges[0])} ms." if left_out else ""
    if tail.slowest:
        most = max(slow.ms for slow in tail.slowest) or 1.0
        rows = [
            [slow.index or "unknown", svg.bar(f"{number(slow.ms)} ms", slow.ms / most), number(slow.ms)]
            for slow in tail.slowest
        ]
        blocks.append(Chart("The slowest samples, by their index in the dataset", ("index", "", "ms"), "cgr", rows))
    return Part("samples", "Sample times", blocks, lead)


def histogram(label: str, edges: Sequence[float], counts: Sequence[int], marks: Mapping[str, float]) -> Drawn:
    """Return bars of equal width, ``counts[k]`` between ``edges[k]`` and ``edges[k + 1]``, in milliseconds.

    ``marks`` are values with their names. At least one count must not be zero.
    """
    n, most, usable = len(counts), max(counts), _HEIGHT - _TOP
    drawn = []
    for k, count in enumerate(counts):
        if not count:
            continue
        height = max(1.0, usable * count / most)
        drawn.append(
            element(
                "rect",
                element("title", f"{number(edges[k])} to {number(edges[k + 1])} ms: {count}"),
                class_="fill soft edge",
                x=place(k / n),
                width=place(1 / n),
                y=coordinate(_HEIGHT - height),
                height=coordinate(height),
            )
        )
    drawn.append(element("line", class_="rail", x1="0%", x2="100%", y1=_HEIGHT, y2=_HEIGHT))
    for row, (name, value) in enumerate(marks.items()):
        share, top = position(edges, value), 12 * row
        dx, end = (-5, "end") if share > 0.5 else (5, "start")
        text = f"{name} {number(value)} ms"
        drawn.append(element("line", class_="mark", x1=place(share), x2=place(share), y1=top, y2=_HEIGHT))
        drawn.append(element("text", text, class_="tick halo", x=place(share), dx=dx, y=top + 10, text_anchor=end))
    for k in sorted({round(i * n / (_LABELLED - 1)) for i in range(_LABELLED)}):
        text = f"{number(edges[k])} ms"
        drawn.append(element("text", text, class_="tick", x=place(k / n), y=_HEIGHT + 15, text_anchor=anchor(k / n)))
    return image(label, _HEIGHT + _AXIS, drawn)


def without_stragglers(edges: Sequence[float], counts: Sequence[int]) -> tuple[Sequence[float], Sequence[int], int]:
    """Return edges and counts without a few values far below the others, and the number of these values."""
    least, seen, empty = _FEW * sum(counts), 0, 0
    for k, count in enumerate(counts):
        if count and empty >= _EMPTY and 0 < seen < least:
            return edges[k:], counts[k:], seen
        seen, empty = seen + count, 0 if count else empty + 1
    return edges, counts, 0


def position(edges: Sequence[float], value: float) -> float:
    """Return the place of a value along bars of equal width, as a share of the whole."""
    n = len(edges) - 1
    for k in range(n):
        if value <= edges[k + 1]:
            width = edges[k + 1] - edges[k]
            return (k + (max(0.0, value - edges[k]) / width if width > 0 else 0.0)) / n
    return 1.0

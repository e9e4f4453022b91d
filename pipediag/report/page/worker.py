"""Show a worker's time for a sample: its parts as one bar, the lines that take it, and how it is distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis import Diagnosis
from ...analysis.numbers.hot_lines import hottest
from ...analysis.words import number, percent
from ...session import HotLine
from .. import evidence
from ..document import Table
from . import flame, svg
from .parts import Chart, Drawing, PageBlock, Part, with_drawings
from .svg import Drawn, anchor, coordinate, element, image, place

#: Minimum share that has the strongest colour.
_LARGE = 0.4
_HEADERS = ("part", "ms", "CPU ms", "share", "where")
_HEIGHT, _AXIS, _TOP = 160.0, 20.0, 30.0
#: Number of edges with a figure.
_LABELLED = 5
#: Values far from the others are not drawn if fewer than this share of all, below or above them, and at least this many
#: empty bars apart. Those far above are listed by their index.
_FEW_BELOW, _FEW_ABOVE, _EMPTY = 0.1, 0.02, 5


def part(diagnosis: Diagnosis) -> Part | None:
    inside, rows = diagnosis.session.inside, evidence.worker_rows(diagnosis)
    if inside is None or not rows:
        return None
    shares = [cost.wall_ms / inside.whole.wall_ms for _, _, cost in evidence.worker_parts(diagnosis)]
    drawings, begin = [], 0.0
    for share, (*_, told, _) in zip(shares, rows, strict=True):
        drawings.append(svg.bar(told, share, _strength(share), begin))
        begin += share
    blocks: list[PageBlock] = [*flame.flames(diagnosis)]
    table = Table(_HEADERS, "lrrrc", rows)
    blocks.append(with_drawings(table, "Parts of a worker's time for a sample", "", drawings))
    if hot := hottest(inside):
        blocks.append(_source(hot))
    lead = f"A sample in a worker, averaged over {inside.samples}: loading, then the transforms in their order."
    lead += " Below them, the functions and lines that were seen to run, and what these call."
    return Part("worker", "Inside a worker", blocks, lead)


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


def sample_times(diagnosis: Diagnosis) -> Part | None:
    tail = diagnosis.session.tail
    if tail is None or not tail.samples:
        return None
    blocks: list[PageBlock] = []
    told = f"median {number(tail.p50_ms)} ms, 99 % below {number(tail.p99_ms)} ms"
    lead = f"{tail.samples} samples as the workers made them: {told}."
    if any(tail.counts) and len(tail.edges_ms) == len(tail.counts) + 1:
        edges, counts, under, over = without_stragglers(tail.edges_ms, tail.counts)
        marks = {"median": tail.p50_ms, "99 % below": tail.p99_ms}
        blocks.append(Drawing(histogram(f"Histogram of the samples' milliseconds: {told}", edges, counts, marks)))
        ends = ((under, "below", edges[0]), (over, "above", edges[-1]))
        left_out = [f"{few} {side} {number(edge)} ms" for few, side, edge in ends if few]
        lead += f" Not drawn: {', '.join(left_out)}." if left_out else ""
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


def without_stragglers(
    edges: Sequence[float], counts: Sequence[int]
) -> tuple[Sequence[float], Sequence[int], int, int]:
    """Return edges and counts without a few values far from the others, and how many these are below and above."""
    first, under = _stragglers(counts, _FEW_BELOW)
    last, over = _stragglers(counts[::-1], _FEW_ABOVE)
    last = len(counts) - last
    return edges[first : last + 1], counts[first:last], under, over


def _stragglers(counts: Sequence[int], few: float) -> tuple[int, int]:
    """Return the number of bars before those of most values if few lie there, far apart, and how many these are."""
    least, seen, empty = few * sum(counts), 0, 0
    for k, count in enumerate(counts):
        if count and empty >= _EMPTY and 0 < seen < least:
            return k, seen
        seen, empty = seen + count, 0 if count else empty + 1
    return 0, 0


def position(edges: Sequence[float], value: float) -> float:
    """Return the place of a value along bars of equal width, as a share of the whole."""
    n = len(edges) - 1
    for k in range(n):
        if value <= edges[k + 1]:
            width = edges[k + 1] - edges[k]
            return (k + (max(0.0, value - edges[k]) / width if width > 0 else 0.0)) / n
    return 1.0

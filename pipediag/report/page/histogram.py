"""Draw a histogram with marks at single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis.sentences import number
from .svg import Drawn, anchor, coordinate, element, image, place

_HEIGHT, _AXIS, _TOP = 160.0, 20.0, 30.0
#: Number of edges with a figure.
_LABELLED = 5
#: Share of the values, and number of empty bars, that set a few values apart.
_FEW, _EMPTY = 0.1, 5


def histogram(
    label: str, edges: Sequence[float], counts: Sequence[int], marks: Mapping[str, float], unit: str
) -> Drawn:
    """Return bars of equal width, ``counts[k]`` between ``edges[k]`` and ``edges[k + 1]``, with figures below edges.

    ``marks`` are values with their names. Needs at least one count that is not zero.
    """
    n, most, usable = len(counts), max(counts), _HEIGHT - _TOP
    drawn = []
    for k, count in enumerate(counts):
        if not count:
            continue
        height = max(1.0, usable * count / most)
        told = f"{number(edges[k])} to {number(edges[k + 1])} {unit}: {count}"
        drawn.append(
            element(
                "rect",
                element("title", told),
                class_="fill soft edge",
                x=place(k / n),
                width=place(1 / n),
                y=coordinate(_HEIGHT - height),
                height=coordinate(height),
            )
        )
    drawn.append(element("line", class_="rail", x1="0%", x2="100%", y1=_HEIGHT, y2=_HEIGHT))
    for row, (name, value) in enumerate(marks.items()):
        share = position(edges, value)
        top = 12 * row
        drawn.append(element("line", class_="mark", x1=place(share), x2=place(share), y1=top, y2=_HEIGHT))
        text = f"{name} {number(value)} {unit}"
        end = "end" if share > 0.5 else "start"
        drawn.append(
            element(
                "text",
                text,
                class_="tick halo",
                x=place(share),
                dx=-5 if share > 0.5 else 5,
                y=top + 10,
                text_anchor=end,
            )
        )
    for k in sorted({round(i * n / (_LABELLED - 1)) for i in range(_LABELLED)}):
        text = f"{number(edges[k])} {unit}"
        drawn.append(element("text", text, class_="tick", x=place(k / n), y=_HEIGHT + 15, text_anchor=anchor(k / n)))
    return image(label, _HEIGHT + _AXIS, drawn)


def without_stragglers(edges: Sequence[float], counts: Sequence[int]) -> tuple[Sequence[float], Sequence[int], int]:
    """Return edges and counts without a few values far below the others, and their number.

    They are few and far if they are less than a tenth of all, with a run of empty bars between them and the others.
    """
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

"""Make SVG from numbers: elements, places in percent, ticks; bars, stacks and intervals.

Drawings are as wide as their box and have a fixed height. Places along the width are percentages, so that text keeps
its size on a telephone. Paths cannot have percentages; :func:`plot` stretches them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ...analysis.numbers.intervals import Interval

#: Units along the width of a :func:`plot`.
WIDTH = 1000
#: Control characters but tab and newline, marks that change the direction of text, separators of lines, surrogates.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
#: Height of a bar in a row of a table, and of a stack, in pixels.
_BAR, _STACK = 14, 40
#: Minimum share of the width for a segment to carry its name.
_NAMED = 0.07


class Drawn(str):
    """Finished markup, which templates do not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def element(name: str, *inside: str, **attributes: str | float | None) -> Drawn:
    """Return an element; ``class_`` is the attribute ``class``, and ``text_anchor`` is ``text-anchor``.

    Text inside and attributes are escaped; attributes that are None are left out.
    """
    written = ""
    for key, value in attributes.items():
        if value is not None:
            name_ = key if key == "viewBox" else key.rstrip("_").replace("_", "-")
            written += f' {name_}="{escape(visible(value)) if isinstance(value, str) else coordinate(value)}"'
    content = "".join(one if isinstance(one, Drawn) else escape(visible(one)) for one in inside)
    return Drawn(f"<{name}{written}>{content}</{name}>")


def image(label: str, height: float, inside: Iterable[Drawn], class_: str = "") -> Drawn:
    """Return a drawing as wide as its box; ``label`` describes it to those who cannot see it."""
    return element(
        "svg", *inside, role="img", aria_label=label, class_=class_ or None, width="100%", height=coordinate(height)
    )


def plot(height: float, *inside: Drawn) -> Drawn:
    """Return a part that stretches along the width, from 0 to :data:`WIDTH`, for paths."""
    return element(
        "svg",
        *inside,
        class_="plot",
        width="100%",
        height=coordinate(height),
        viewBox=f"0 0 {WIDTH} {coordinate(height)}",
        preserveAspectRatio="none",
    )


def place(share: float) -> str:
    """Return a share of the width, kept within 0 and 1, as a percentage."""
    return f"{coordinate(100 * within(share))}%"


def within(share: float) -> float:
    """Return a share kept within 0 and 1; 0 if it is not a number."""
    return min(1.0, max(0.0, share)) if not math.isnan(share) else 0.0


def coordinate(value: float) -> str:
    """Return a number with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def anchor(share: float) -> str:
    """Return the anchor that keeps a text at this place inside the drawing."""
    return "start" if share < 0.1 else "end" if share > 0.9 else "middle"


def ticks(high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers from 0 to ``high``, which is positive."""
    rough = high / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    return [round(n * step, 12) for n in range(int(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two positive ones for a logarithmic scale: three a decade, fewer if it is wide."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors: Sequence[int] = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def visible(text: str) -> str:
    """Return text with escapes for what a browser would obey: a right-to-left mark becomes ``\\u200f``."""
    return _OBEYED.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", text
    )


@dataclass(frozen=True)
class Segment:
    """A part of a stack: its name, its share of the whole from 0 to 1, and its colour, a class of the stylesheet."""

    name: str
    share: float
    colour: str = "t1"  # empty for a gap
    note: str = ""


def bar(label: str, share: float, colour: str = "accent", begin: float = 0.0, height: float = _BAR) -> Drawn:
    """Return a bar over its track, from ``begin`` on; all but the height are shares of the width."""
    track = element("rect", class_="track", width="100%", height="100%", rx=2)
    return image(label, height, [track, _rect(begin, share, colour, 0.0, height)], "bar")


def bars(label: str, shares: Sequence[tuple[float, str]], limit: float | None = None) -> Drawn:
    """Return bars below each other, each as its share of the width and its colour; ``limit`` is drawn as a line."""
    height, each = (_BAR, _BAR) if len(shares) == 1 else (12 * len(shares) - 2, 10)
    drawn = [_rect(0.0, share, colour, 12 * n, each) for n, (share, colour) in enumerate(shares)]
    if limit is not None:
        drawn.append(element("line", class_="mark", x1=place(limit), x2=place(limit), y1=0, y2=height))
    return image(label, height, drawn, "bar")


def stack(label: str, segments: Sequence[Segment]) -> Drawn:
    """Return the segments side by side, each with a tooltip, and with its name if that fits.

    Each is a drawing of its own, which cuts off a name that is too long.
    """
    drawn, begin = [], 0.0
    for segment in segments:
        share = min(within(segment.share), 1.0 - begin)
        if share > 0 and segment.colour:
            inside = [
                element("title", f"{segment.name}: {segment.note}" if segment.note else segment.name),
                element("rect", class_=f"fill {segment.colour}", width="100%", height="100%"),
            ]
            if share >= _NAMED:
                inside.append(element("text", segment.name, x=8, y=_STACK / 2 + 4.5))
            drawn.append(element("svg", *inside, x=place(begin), width=place(share), height=_STACK))
        begin += share
    return image(label, _STACK, drawn, "stack")


def whisker(label: str, interval: Interval, high: float, colour: str) -> Drawn:
    """Return a dot with its interval on a scale from 0 to ``high``; an open end runs to the edge without a cap."""
    middle = _BAR / 2 + 2
    ends = [(interval.low, 0.0), (interval.high, high)]
    left, right = (edge if math.isinf(end) else end for end, edge in ends)
    drawn = [element("line", class_="rail", x1="0%", x2="100%", y1=middle, y2=middle)]
    drawn.append(
        element("line", class_=f"whisker {colour}", x1=place(left / high), x2=place(right / high), y1=middle, y2=middle)
    )
    for end, _ in ends:
        if math.isfinite(end) and 0 <= end <= high:
            at = place(end / high)
            drawn.append(element("line", class_=f"whisker {colour}", x1=at, x2=at, y1=middle - 4, y2=middle + 4))
    drawn.append(element("circle", class_=f"fill {colour}", cx=place(interval.value / high), cy=middle, r=4.5))
    return image(label, 2 * middle, drawn, "bar")


def _rect(begin: float, share: float, colour: str, y: float, height: float) -> Drawn:
    begin = within(begin)
    if share <= 0 or math.isnan(share):
        return Drawn("")
    width = place(min(share, 1.0 - begin))
    return element("rect", class_=f"fill {colour}", x=place(begin), y=y or None, width=width, height=height, rx=2)

"""Draw shares and costs as bars, stacks and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...analysis.numbers.intervals import Interval
from .svg import Drawn, element, image, place, within

#: Height of a bar in a row of a table, and of a stack, in pixels.
_BAR, _STACK = 14, 40
#: Minimum share of the width for a segment to carry its name.
_NAMED = 0.07


@dataclass(frozen=True)
class Segment:
    """A part of a stack: its name, its share of the whole from 0 to 1, and its colour, a class of the stylesheet.

    Without a colour it is a gap.
    """

    name: str
    share: float
    colour: str = "t1"
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


def stack(label: str, segments: Sequence[Segment], height: float = _STACK) -> Drawn:
    """Return the segments side by side, each with a tooltip, and with its name if that fits."""
    drawn, begin = [], 0.0
    for segment in segments:
        share = min(within(segment.share), 1.0 - begin)
        if share > 0 and segment.colour:
            drawn.append(_segment(segment, begin, share, height))
        begin += share
    return image(label, height, drawn, "stack")


def _segment(segment: Segment, begin: float, share: float, height: float) -> Drawn:
    """Return a segment: a drawing of its own, which cuts off a name that is too long."""
    told = f"{segment.name}: {segment.note}" if segment.note else segment.name
    inside = [
        element("title", told),
        element("rect", class_=f"fill {segment.colour}", width="100%", height="100%"),
    ]
    if share >= _NAMED:
        inside.append(element("text", segment.name, x=8, y=height / 2 + 4.5))
    return element("svg", *inside, x=place(begin), width=place(share), height=height)


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

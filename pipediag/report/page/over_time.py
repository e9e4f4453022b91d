"""Draw the run over time: steps per second, the rung, and the number of batches ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...analysis.words import counted, number
from ...session import CACHED, CONTROLS, REMEDIES, Session, Stretch, Window, ordered, settings_of
from .parts import Lanes, Part
from .svg import WIDTH, Drawn, anchor, coordinate, element, image, log_ticks, place, plot, ticks, visible

#: Maximum number of moments along the width; steps within one are drawn as one.
_MOMENTS = 250
#: The scale is logarithmic if the ratio of the fastest to the slowest rate is above this.
_WIDE, _LOGARITHMIC = 8.0, "The scale of steps/s is logarithmic."
_RATES, _LANE, _READY, _AXIS = 200.0, 16.0, 64.0, 20.0
_MARGIN = 8.0
#: Gaps that together are longer than the first share of the time in which steps ran are shortened, each to the second.
_GAPS, _GAP = 0.5, 0.01
#: What the colours stand for, in the order of the legend.
_LEGEND = {
    "accent": "the loop as it is",
    "neutral": "cached batches, or the loader alone",
    "soft": "part of the pipeline cached",
    "good": "under a remedy",
    "doubtful": "other loader settings",
}


@dataclass(frozen=True)
class Pace:
    """Consecutive steps: begin and end in seconds, their number, and how many batches were ready on average."""

    begin: float
    end: float
    steps: int
    ready: float | None = None

    @property
    def rate(self) -> float:
        return self.steps / (self.end - self.begin)


@dataclass(frozen=True)
class Span:
    """A span of time under one rung, in seconds; ``window`` is false for steps outside a window."""

    rung: str
    begin: float
    end: float
    window: bool = True
    paces: list[Pace] = field(default_factory=list)


def run_over_time(session: Session) -> Part | None:
    """Return the figure, from the single steps or, without these, from the windows; None without either."""
    windows = {(window.rung, window.round, window.attempt) for window in session.windows}
    spans = from_stretches(session.stretches, windows)
    if spans:
        notes = ["Pale: steps outside a window."] if not all(span.window for span in spans) else []
        if len({one.attempt for one in session.stretches}) > 1:
            notes.append("The script ran more than once.")
        closed = without_gaps(spans)
        if closed[-1].end < spans[-1].end:
            notes.append("Longer times without a step that was recorded are left out.")
        return draw(closed, "seconds of the steps", notes)
    spans = from_windows(session.windows)
    note = "Windows in the order in which they were measured; the time between them is left out."
    return draw(spans, "seconds of the windows", [note]) if spans else None


def from_stretches(stretches: Iterable[Stretch], windows: Collection[tuple[str, int, int]]) -> list[Span]:
    """Return a span for each stretch; if there are many steps, neighbours share one pace.

    ``windows`` are rung, round and pass of each window.
    """
    stretches = [one for one in stretches if one.asked]
    together = max(1, math.ceil(sum(len(one.asked) for one in stretches) / (2 * _MOMENTS)))
    found = []
    for one in stretches:
        asked, paces = one.asked, []
        ends = [*asked, max(one.ended, asked[-1])]
        for first in range(0, len(asked), together):
            last = min(first + together, len(asked))
            ready = one.ready[first:last]
            if ends[last] > ends[first]:
                mean = sum(ready) / len(ready) if ready else None
                paces.append(Pace(ends[first], ends[last], last - first, mean))
        if paces:
            found.append(
                Span(one.rung, paces[0].begin, paces[-1].end, (one.rung, one.round, one.attempt) in windows, paces)
            )
    return found


def without_gaps(spans: Sequence[Span]) -> list[Span]:
    """Return spans in time order, with short gaps if the axis would be mostly gaps."""
    spans = sorted(spans, key=lambda span: span.begin)
    busy, found, end, by = sum(span.end - span.begin for span in spans), list[Span](), spans[0].begin, 0.0
    longest = _GAP * busy if spans[-1].end - end > (1 + _GAPS) * busy else math.inf
    for span in spans:
        by += max(0.0, span.begin - end - longest)
        end = max(end, span.end)
        found.append(_earlier(span, by))
    return found


def _earlier(span: Span, by: float) -> Span:
    paces = [replace(pace, begin=pace.begin - by, end=pace.end - by) for pace in span.paces]
    return replace(span, begin=span.begin - by, end=span.end - by, paces=paces)


def from_windows(windows: Iterable[Window]) -> list[Span]:
    found, now = [], 0.0
    for window in windows:
        end = now + window.seconds
        found.append(Span(window.rung, now, end, paces=[Pace(now, end, window.steps)]))
        now = end
    return found


def both_over_time(before: Session, after: Session) -> Part | None:
    """Return the unmodified loop of two runs over each other, without what was measured in between; None if absent."""
    spans = []
    for name, session in (("before", before), ("after", after)):
        now, loop = 0.0, [one for one in session.stretches if one.rung == "baseline"]
        measured = from_stretches(loop, ()) or from_windows(w for w in session.windows if w.rung == "baseline")
        for span in measured:
            moved = _earlier(span, span.begin - now)
            paces = [replace(pace, ready=None) for pace in moved.paces]  # those of both would lie over each other
            spans.append(replace(moved, rung=name, window=True, paces=paces))
            now = moved.end
    if len({span.rung for span in spans}) < 2:
        return None
    figure, log = _figure(spans, "seconds of the unmodified loop", {"before": "neutral", "after": "accent"})
    lead = ["What was measured in between is left out.", *[_LOGARITHMIC] * log]
    legend = [("neutral", "before"), ("accent", "after")]
    return Part("run", "Both runs over time", [replace(figure, legend=legend)], " ".join(lead))


def draw(spans: Sequence[Span], axis: str, notes: list[str]) -> Part:
    """Return the figure: rates, a lane for each rung, batches ready if they are known, and the axis of time."""
    figure, log = _figure(spans, axis, {span.rung: colour(span.rung) for span in spans})
    lead = [_LOGARITHMIC] * log + notes
    return Part("run", "The run over time", [figure], " ".join(lead))


def _figure(spans: Sequence[Span], axis: str, colours: Mapping[str, str]) -> tuple[Lanes, bool]:
    """Return the figure, and whether its scale of rates is logarithmic; ``colours`` are those of the spans' rungs."""
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    scale = _Scale(begin, max(end - begin, 1e-9))
    own = {rung: [pace for span in spans if span.rung == rung for pace in span.paces] for rung in colours}
    paces = {rung: _thinned(own[rung], scale) for rung in (ordered(own) if "baseline" in own else own)}
    rates, log = _rates(paces, scale, colours)
    rows = [("steps/s", rates), *(_lane(rung, spans, scale, colours[rung]) for rung in paces)]
    if ready := [pace for found in paces.values() for pace in found if pace.ready is not None]:
        rows.append(("batches ready", _ready(sorted(ready, key=lambda pace: pace.begin), scale)))
    rows.append(("", _axis(scale, axis)))
    legend = [(of, meaning) for of, meaning in _LEGEND.items() if of in colours.values()]
    points = [
        (coordinate(pace.begin), coordinate(pace.end), _said(rung, pace))
        for rung, found in paces.items()
        for pace in found
    ]
    return Lanes(rows, begin, scale.seconds, legend, points), log


def _said(rung: str, pace: Pace) -> str:
    ready = f", {number(pace.ready)} batches ready" if pace.ready is not None else ""
    return visible(f"{coordinate(pace.begin)} s: {rung}, {number(pace.rate)} steps/s{ready}")


@dataclass(frozen=True)
class _Scale:
    """The axis of time."""

    begin: float
    seconds: float

    def share(self, time: float) -> float:
        return (time - self.begin) / self.seconds

    def x(self, time: float) -> str:
        return f"{WIDTH * self.share(time):.1f}".removesuffix(".0")

    def moment(self, time: float) -> int:
        return int(_MOMENTS * self.share(time))


def colour(rung: str) -> str:
    """Return the colour of a rung, a class of the stylesheet."""
    if rung in CACHED or rung in CONTROLS:
        return "neutral"
    if rung == "baseline":
        return "accent"
    return "good" if rung in REMEDIES else "doubtful" if settings_of(rung) is not None else "soft"


def _thinned(paces: list[Pace], scale: _Scale) -> list[Pace]:
    """Return the paces of one rung in time order; those of the same moment are merged."""
    found: list[Pace] = []
    for pace in sorted(paces, key=lambda pace: pace.begin):
        last = found[-1] if found else None
        if last is not None and scale.moment(last.begin) == scale.moment(pace.begin):
            steps = last.steps + pace.steps
            took = (last.end - last.begin) + (pace.end - pace.begin)
            known = [(p.ready, p.steps) for p in (last, pace) if p.ready is not None]
            ready = sum(r * n for r, n in known) / sum(n for _, n in known) if known else None
            # Not the last one's end: steps of other rungs may lie between.
            found[-1] = replace(last, end=last.begin + took, steps=steps, ready=ready)
        else:
            found.append(pace)
    return found


def _rates(paces: dict[str, list[Pace]], scale: _Scale, colours: Mapping[str, str]) -> tuple[Drawn, bool]:
    """Return the rates over time, and whether their scale is logarithmic."""
    values = [pace.rate for found in paces.values() for pace in found]
    low, high = min(values), max(values)
    log = high > _WIDE * low
    usable = _RATES - 2 * _MARGIN

    def y(rate: float) -> float:
        share = math.log(rate / low) / math.log(high / low) if log else rate / high
        return _RATES - _MARGIN - usable * share

    marks = log_ticks(low, high) if log else ticks(high)
    heights = [coordinate(y(tick)) for tick in marks]
    drawn = [element("line", class_="grid", x1="0%", x2="100%", y1=at, y2=at) for at in heights]
    lines = [element("path", class_=f"line {colours[rung]}", d=_line(found, scale, y)) for rung, found in paces.items()]
    drawn.append(plot(_RATES, *lines))
    for tick in marks:
        drawn.append(element("text", number(tick), class_="tick halo", x=0, y=coordinate(max(10.0, y(tick) - 3))))
    means = {
        rung: sum(pace.steps for pace in found) / sum(pace.end - pace.begin for pace in found)
        for rung, found in paces.items()
    }
    label = "Steps per second over time: " + "; ".join(f"{rung} {number(mean)}" for rung, mean in means.items())
    return image(label, _RATES, drawn), log


def _line(paces: Sequence[Pace], scale: _Scale, y: Callable[[float], float]) -> str:
    """Return a horizontal line for each pace, joined to the one before if they follow each other."""
    path, before = [], None
    for pace in paces:
        at = coordinate(y(pace.rate))
        joined = before is not None and abs(pace.begin - before) < scale.seconds / _MOMENTS
        path.append(f"V{at}H{scale.x(pace.end)}" if joined else f"M{scale.x(pace.begin)} {at}H{scale.x(pace.end)}")
        before = pace.end
    return "".join(path)


def _lane(rung: str, spans: Sequence[Span], scale: _Scale, colour: str) -> tuple[str, Drawn]:
    """Return a row with the spans of a rung, pale outside its windows."""
    own = [span for span in spans if span.rung == rung]
    shown = [
        element("path", class_=f"fill {colour}{'' if window else ' pale'}", d=_boxes(of_kind, scale))
        for window in (False, True)
        if (of_kind := [span for span in own if span.window == window])
    ]
    label = f"{rung}: {counted(sum(span.window for span in own), 'window')}"
    rail = element("line", class_="rail", x1="0%", x2="100%", y1=_LANE / 2, y2=_LANE / 2)
    return rung, image(label, _LANE, [rail, plot(_LANE, *shown)])


def _boxes(spans: Sequence[Span], scale: _Scale) -> str:
    """Return a box for each span; spans that almost touch share one."""
    boxes: list[list[float]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        if boxes and span.begin - boxes[-1][1] < scale.seconds / (2 * _MOMENTS):
            boxes[-1][1] = max(boxes[-1][1], span.end)
        else:
            boxes.append([span.begin, span.end])
    top, bottom = coordinate(3), coordinate(_LANE - 3)
    return "".join(f"M{scale.x(a)} {top}H{scale.x(b)}V{bottom}H{scale.x(a)}Z" for a, b in boxes)


def _ready(paces: Sequence[Pace], scale: _Scale) -> Drawn:
    """Return the number of batches ready as an area."""
    levels = [pace.ready or 0.0 for pace in paces]
    high, usable = max(1.0, *levels), _READY - _MARGIN
    base = coordinate(_READY - 1)
    tops = [coordinate(_READY - 1 - (usable - 1) * level / high) for level in levels]
    boxes = [
        f"M{scale.x(pace.begin)} {base}V{top}H{scale.x(pace.end)}V{base}Z"
        for pace, top in zip(paces, tops, strict=True)
    ]
    most = number(high)
    drawn = [
        element("line", class_="grid", x1="0%", x2="100%", y1=coordinate(_MARGIN), y2=coordinate(_MARGIN)),
        element("line", class_="rail", x1="0%", x2="100%", y1=base, y2=base),
        plot(_READY, element("path", class_="fill soft", d="".join(boxes))),
        element("text", most, class_="tick halo", x=0, y=coordinate(_MARGIN + 10)),
    ]
    return image(f"Batches that lay ready when the loop asked for one: at most {most}", _READY, drawn)


def _axis(scale: _Scale, name: str) -> Drawn:
    drawn = []
    for tick in ticks(scale.seconds, 4):
        share = tick / scale.seconds
        text = f"{coordinate(tick)} s"
        drawn.append(element("text", text, class_="tick", x=place(share), y=14, text_anchor=anchor(share)))
    return image(f"Time in {name}", _AXIS, drawn)

"""Draw a worker's time as a flame graph: a sample, its stages, the functions and lines below them, what a line calls.

The stages are as wide as they were timed. The lines are known from looks at the worker: their shares are scaled down
where together they exceed their stage, and what was not seen at any line is a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...analysis import Diagnosis
from ...analysis.numbers.hot_lines import mostly, short
from ...analysis.summary import short as short_place
from ...analysis.words import number, percent, shown
from ...session import HotLine, Session
from .. import evidence
from .parts import Flame
from .svg import Drawn, coordinate, element, place

#: Height of a row in pixels.
_ROW = 26
#: Minimum share of a frame, and of one that carries its name before the page's script fits names into frames.
_SEEN, _NAMED = 0.002, 0.06


@dataclass(frozen=True)
class Frame:
    """What takes a share of the whole, from 0 to 1; ``where`` is its place, ``inside`` what it runs, side by side."""

    name: str
    share: float
    where: str = ""
    inside: Sequence[Frame] = ()


def flames(diagnosis: Diagnosis) -> list[Flame]:
    """Return the flame graph of a sample, and that of collating if lines of it are known."""
    session, inside, parts = diagnosis.session, diagnosis.session.inside, evidence.worker_parts(diagnosis)
    if inside is None or not parts:
        return []
    places = [(name, where, cost.wall_ms / inside.whole.wall_ms) for name, where, cost in parts]
    stages = [
        Frame(name, share, where, below(lines, share))
        for (name, where, share), lines in zip(places, by_stage(places, inside.lines), strict=True)
    ]
    found = [_drawn(Frame(f"a sample: {number(inside.whole.wall_ms)} ms", 1.0, "", stages), "a sample", session)]
    if collating := [line for line in inside.lines if line.stage == "collate" and line.share > 0]:
        found.append(_drawn(Frame(shown("collate"), 1.0, "", below(collating, 1.0)), "collating", session))
    return found


def by_stage(parts: Sequence[tuple[str, str, float]], lines: Sequence[HotLine]) -> list[list[HotLine]]:
    """Return the lines of each part, given as name, place and share; the first part is loading.

    A line of a transform belongs to the one that ran it, by name; if that is not known, to the part that begins nearest
    above it in the same file. Lines that belong to none are left out.
    """
    names = [name.partition(" in ")[0] for name, *_ in parts]
    single = {name: names.index(name) for name, count in Counter(names).items() if count == 1}
    begins = [_split(where) for _, where, _ in parts]
    own: list[list[HotLine]] = [[] for _ in parts]
    for line in lines:
        if line.stage == "collate" or line.share <= 0:
            continue
        owners = {single[name]: share for name, share in line.transforms.items() if name in single}
        if line.stage == "load":
            owners = {0: line.share}
        elif not line.transforms:
            file, at = _split(line.where)
            above = [(begin, n) for n, (of, begin) in enumerate(begins) if file and of == file and 0 < begin <= at]
            owners = {max(above)[1]: line.share} if above else {}
        for n, share in owners.items():
            calls = {name: called * share / line.share for name, called in line.calls.items()}
            own[n].append(replace(line, share=share, calls=calls))
    return own


def below(lines: Sequence[HotLine], share: float) -> list[Frame]:
    """Return the frames below a part of this share: its functions, the lines of each, and what they call."""
    functions: dict[str, list[HotLine]] = {}
    for line in lines:
        functions.setdefault(line.function, []).append(line)
    fits = min(1.0, share / total) if (total := sum(line.share for line in lines)) else 1.0
    found = []
    for function, group in functions.items():
        frames = []
        for line in sorted(group, key=lambda line: -line.share):
            inner, limit = list[tuple[str, float]](), line.share
            for name in mostly(line):  # the functions that run for most of its time, each inside the one before
                limit = min(limit, line.calls[name])
                inner.append((short(name), limit))
            calls: tuple[Frame, ...] = ()
            for name, part in reversed(inner):
                calls = (Frame(name, fits * part, "", calls),)
            frames.append(Frame(line.text or line.name or "other lines", fits * line.share, line.where, calls))
        found += [Frame(function, sum(one.share for one in frames), "", frames)] if function else frames
    return sorted(found, key=lambda frame: -frame.share)


def _split(where: str) -> tuple[str, int]:
    """Return the file and the line of a place; "" and 0 if it has no line."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdecimal() else ("", 0)


def _drawn(root: Frame, whole: str, session: Session) -> Flame:
    rows: list[Drawn] = []

    def draw(frame: Frame, begin: float, level: int) -> int:
        said = (f"{frame.name}: {percent(frame.share)} of {whole}", short_place(session, frame.where))
        told = ", ".join(filter(None, said))
        rows.append(
            element(
                "svg",
                element("title", told),
                element(
                    "rect", class_=f"fill {heat(frame.share) if level > 1 else 'neutral'}", width="100%", height=_ROW
                ),
                element("text", frame.name, x=6, y=_ROW / 2 + 4.5),
                class_="slice" if frame.share >= _NAMED else "slice narrow",
                role="treeitem",
                aria_label=told,
                aria_level=str(level),
                x=place(begin),
                y=coordinate((level - 1) * (_ROW + 1)),
                width=place(frame.share),
                height=_ROW,
            )
        )
        deepest = level
        for inner in frame.inside:
            if inner.share >= _SEEN:
                deepest = max(deepest, draw(inner, begin, level + 1))
            begin += inner.share
        return deepest

    height = draw(root, 0.0, 1) * (_ROW + 1)
    label = f"Where the time of {whole} goes"
    return Flame(
        element("svg", *rows, role="tree", aria_label=label, class_="stack", width="100%", height=height), whole
    )


def heat(share: float) -> str:
    """Return the colour of a share in a stack: stronger for more."""
    return "t4" if share >= 0.4 else "t3" if share >= 0.2 else "t2" if share >= 0.08 else "t1"

"""Show what the training thread does with the time of a step."""

from __future__ import annotations

from ...analysis import Diagnosis
from ...analysis.words import number
from ..account import PARTS, TITLE, account_rows
from . import bars
from .parts import Chart, Drawing, Part

_COLOURS = ("neutral", "t3", "t4", "t2")


def part(diagnosis: Diagnosis) -> Part | None:
    rows = account_rows(diagnosis)
    if not rows:
        return None
    last = rows[-1]
    segments = [
        bars.Segment(name, ms / last.step, colour, f"{number(ms)} ms")
        for name, ms, colour in zip(PARTS, last.parts, _COLOURS, strict=True)
    ]
    label = f"A step of {number(last.step)} ms: " + "; ".join(f"{one.name} {one.note}" for one in segments)
    cells = [[row.rung, number(row.step), *map(number, row.parts)] for row in rows]
    chart = Chart("Milliseconds of a step by rung", ("rung", "step", *PARTS), "lrrrrr", cells)
    lead = (
        "As the kernel counts it. Waiting for a core means that others used all cores; other blocking is waiting "
        "for the device, for a lock that another thread holds, or for a file."
    )
    return Part("account", TITLE[:1].upper() + TITLE[1:], [Drawing(bars.stack(label, segments)), chart], lead)

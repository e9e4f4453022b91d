"""Show where the time of a step goes: as one bar, by stage, by rung, and by what the training thread does."""

from __future__ import annotations

from ...analysis import Diagnosis
from ...analysis.words import number, shown
from ...session import received
from ..diagnosis import StageRow, between, stage_rows, step_line, value
from ..evidence import PARTS, TITLE, account_rows
from . import svg
from .parts import Chart, Drawing, Part

#: The colours of a stack in the rows below it, where they stand alone.
_IN_ROWS = {"neutral": "neutral", "t4": "accent", "t2": "soft"}
_COLOURS = ("neutral", "t3", "t4", "t2")


def part(diagnosis: Diagnosis) -> Part | None:
    rows = stage_rows(diagnosis)
    if not rows:
        return None
    stacked = segments(diagnosis)
    step = number(diagnosis.ladder.ms("baseline").value)
    label = f"A step of {step} ms: " + "; ".join(f"{row.stage} {row.cost} ms" for row in rows)
    lead = step_line(diagnosis) or f"A step takes {step} ms."
    return Part("step", "Where a step goes", [Drawing(svg.stack(label, stacked)), _stages(diagnosis, rows)], lead)


def segments(diagnosis: Diagnosis, part: float = 1.0) -> list[svg.Segment]:
    """Return a step as the parts of a bar; the whole step is ``part`` of the bar's width."""
    rows = stage_rows(diagnosis)
    found = []
    for row in rows:  # by a transform's or line's own name, or a stage without the others that it covers
        stage, _, name = row.stage.partition(": ")
        short, told = name or stage.partition(" (with ")[0], f"{row.cost} ms, {row.share}"
        found.append(svg.Segment(short, part * row.bar, _colour(diagnosis, row), told))
    return found


def _stages(diagnosis: Diagnosis, rows: list[StageRow]) -> Chart:
    cells, begin = [], 0.0
    for row in rows:
        colour = _IN_ROWS[_colour(diagnosis, row)]
        drawn = svg.bar(f"{row.share} of the step", row.bar, colour, begin)
        cells.append([row.stage, drawn, row.cost, row.interval, row.share, row.without])
        begin += row.bar
    headers = ("stage", "share of the step", "ms", "95 % interval", "share", "steps/s without it")
    return Chart("The stages of a step, from the device outwards; ~ marks a prediction", headers, "lgrrrr", cells)


def _colour(diagnosis: Diagnosis, row: StageRow) -> str:
    """Return the colour of a row: grey for the model, strong for the bottleneck, lighter for other stages."""
    stage = row.stage.partition(":")[0].partition(" (")[0]
    verdict = diagnosis.verdict
    if stage == shown("compute"):
        return "neutral"
    return "t4" if stage in map(shown, (verdict.bottleneck, *verdict.co_bottlenecks)) else "t2"


def ladder(diagnosis: Diagnosis) -> Part | None:
    """Return the rungs as dots with their intervals."""
    view = diagnosis.ladder
    if len(view.rungs) < 2:
        return None
    times = {rung: view.ms(rung) for rung in view.rungs}
    finite = [end for ms in times.values() for end in (ms.value, ms.high) if end < float("inf")]
    high = 1.03 * max(finite)
    rows = []
    for rung, ms in times.items():
        label = f"{value(ms)} ms a step, {between(ms)}"
        colour = "accent" if rung == "baseline" else "ink"
        rate = ms.inverse(1000.0)
        rows.append([rung, svg.whisker(label, ms, high, colour), value(ms), between(ms), value(rate), received(rung)])
    headers = ("rung", f"0 to {number(high)} ms a step", "ms", "95 % interval", "steps/s", "what the loop received")
    lead = "The same loop, fed from one place of the pipeline after another. Each rung adds a stage to the one above."
    return Part("ladder", "The ladder", [Chart("Milliseconds a step by rung", headers, "lgrrrl", rows)], lead)


def account(diagnosis: Diagnosis) -> Part | None:
    rows = account_rows(diagnosis)
    if not rows:
        return None
    last = rows[-1]
    segments = [
        svg.Segment(name, ms / last.step, colour, f"{number(ms)} ms")
        for name, ms, colour in zip(PARTS, last.parts, _COLOURS, strict=True)
    ]
    label = f"A step of {number(last.step)} ms: " + "; ".join(f"{one.name} {one.note}" for one in segments)
    cells = [[row.rung, number(row.step), *map(number, row.parts)] for row in rows]
    chart = Chart("Milliseconds of a step by rung", ("rung", "step", *PARTS), "lrrrrr", cells)
    lead = (
        "As the kernel counts it. Waiting for a core means that others used all cores; other blocking is waiting "
        "for the device, for a lock that another thread holds, or for a file."
    )
    return Part("account", TITLE[:1].upper() + TITLE[1:], [Drawing(svg.stack(label, segments)), chart], lead)

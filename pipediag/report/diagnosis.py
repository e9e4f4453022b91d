"""Turn a diagnosis into blocks: the verdict first, then where a step goes, and what is known beside that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ..analysis import Diagnosis
from ..analysis.diagnosis import Stage
from ..analysis.intervals import Interval, total
from ..analysis.sentences import number, percent
from ..session import Warning_
from . import advice, evidence, knobs, model, remedy
from .document import Block, Location, Paragraph, Table, Title, Tone, listing, section
from .evidence import ms

_TONES: dict[str, Tone] = {"severe": "bad", "mild": "doubtful", "none": "good"}
_HEADERS = ("where a step goes", "ms", "95 % interval", "share", "steps/s without it")


def blocks(diagnosis: Diagnosis) -> list[Block]:
    verdict = diagnosis.verdict
    tone = _TONES.get(verdict.band, "")
    found: list[Block] = [
        Title((headline(diagnosis),), level(diagnosis), setting(diagnosis), tone),
        Paragraph(verdict.sentence),
    ]
    if verdict.culprit is not None:
        found.append(Location("culprit", verdict.culprit.name, verdict.culprit.where))
    if step := step_line(diagnosis):
        found.append(Paragraph(step, "line"))
    if rows := stage_rows(diagnosis):
        found.append(Table(_HEADERS, "lrlrr", [row[:-1] for row in rows], bars=[row.bar for row in rows]))
    if rungs := rung_line(diagnosis):
        found.append(Paragraph(rungs, "list"))
    return [
        *found,
        *evidence.blocks(diagnosis),
        *knobs.blocks(diagnosis),
        *advice.blocks(diagnosis),
        *model.blocks(diagnosis),
        *remedy.blocks(diagnosis),
        *warnings(diagnosis.warnings),
    ]


def warnings(found: Iterable[Warning_]) -> list[Block]:
    """Return each warning with its help."""
    return section("warnings", listing(w.message + (f" ({w.help})" if w.help else "") for w in found), page=4)


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict as a title."""
    bottleneck = diagnosis.verdict.bottleneck
    names = {"none": "NOT STARVED", "inconclusive": "INCONCLUSIVE"}
    return names.get(bottleneck, f"BOTTLENECK: {bottleneck.upper()}")


def level(diagnosis: Diagnosis) -> str:
    """Return the verdict's level of evidence, to follow the headline."""
    level = diagnosis.verdict.level
    return f"  ({level})" if level else ""


def setting(diagnosis: Diagnosis) -> str:
    """Return the subject of the analysis in one line."""
    session = diagnosis.session
    parts = [" ".join(session.script.argv) or "a loop in this process"]
    loader = session.loader
    if loader is not None:
        batch = f"batch {loader.batch_size}, " if loader.batch_size else ""
        workers = f"{loader.num_workers} worker{'' if loader.num_workers == 1 else 's'}"
        pinned = ", pinned" if loader.pin_memory else ""
        parts.append(f"{loader.dataset} ({batch}{workers}{pinned})")
    device = session.device
    parts.append(str(device.get("name") or device.get("type") or "unknown device"))
    return " | ".join(parts)


def step_line(diagnosis: Diagnosis) -> str:
    """Return the step as compute and input cost, with the rates; empty if the loop was not fed from a cache."""
    ladder = diagnosis.ladder
    if not ladder.intervened:
        return ""
    base, best = ladder.ms("baseline").value, ladder.ms(ladder.ceiling).value
    return (
        f"step {ms(base)} = compute {ms(best)} + input {ms(base - best)};  "
        f"{number(1000 / base)} steps/s now, {number(1000 / best)} with cached batches"
    )


def rung_line(diagnosis: Diagnosis) -> str:
    """Return the steps per second under every measured rung, fastest first."""
    ladder = diagnosis.ladder
    rates = [f"{rung} {number(ladder.ms(rung).inverse(1000.0).value)}" for rung in ladder.rungs]
    return f"steps/s by rung: {', '.join(rates)}" if len(rates) > 1 else ""


class StageRow(NamedTuple):
    """A piece of the baseline step; ``without`` is steps per second without it, with a ~ if predicted."""

    stage: str
    cost: str
    interval: str
    share: str
    without: str
    bar: float  # share of the baseline step, 0 to 1


def stage_rows(diagnosis: Diagnosis) -> list[StageRow]:
    """Return one row per piece of the step, from the device outwards; transforms of negligible cost share one."""
    rows, small = [], [p for p in diagnosis.waterfall if p.stage == "transform" and p.share < _SMALL]
    for piece in diagnosis.waterfall:
        if len(small) > 1 and piece in small:
            if piece is small[-1]:
                rows.append(_row(_merged(small)))
            continue
        rows.append(_row(piece))
    return rows


#: Share of a step below which transforms have no row of their own.
_SMALL = 0.01


def _merged(pieces: list[Stage]) -> Stage:
    links = [name for piece in reversed(pieces) for name in piece.links]
    share = sum(piece.share for piece in pieces)
    return Stage("transform", total([piece.ms for piece in pieces]), share, None, ["transform"], "", links)


def _row(piece: Stage) -> StageRow:
    covers = [c for c in piece.covers if c != piece.stage]
    stage = piece.stage + (f" (with {', '.join(covers)})" if covers else "")
    if piece.links:
        stage += f": {_links(piece.links)}"
    without = ""
    if piece.without is not None:
        without = ("" if piece.without.measured else "~") + number(piece.without.steps_per_s)
    return StageRow(
        stage,
        number(piece.ms.value),
        between(piece.ms),
        percent(piece.share),
        without,
        min(1.0, piece.share),
    )


#: Maximum width of the transforms' names in one cell.
_WIDTH = 30


def _links(names: list[str]) -> str:
    """Return the names of a row's transforms, shortened to the first and a number if they are too long."""
    text = ", ".join(names)
    if len(text) > _WIDTH and len(names) > 1:
        text = f"{names[0][: _WIDTH - 11]} and {len(names) - 1} more"
    return text[:_WIDTH]


def between(interval: Interval) -> str:
    """Return the ends of an interval, which is infinite if there was one window only."""
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window"
    return f"{number(interval.low)} .. {number(interval.high)}"

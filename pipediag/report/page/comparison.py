"""Compose the page of a comparison."""

from __future__ import annotations

from ...analysis.compare import Comparison, RungChange, StageChange
from .. import comparison
from ..diagnosis import value
from ..document import Listing, Section, Table, filled
from . import bars
from .diagnosis import of_section
from .parts import Page, PageBlock, Part, with_content, with_drawings
from .svg import Drawn


def page(subject: Comparison) -> Page:
    blocks = filled(comparison.blocks(subject))
    verdicts = [block for block in blocks if isinstance(block, Listing)]
    parts = [Part("verdicts", "The two verdicts", verdicts)]
    for block in blocks:
        if isinstance(block, Section):
            name = block.title.replace(" ", "-")
            changes: dict[str, tuple[str, list[RungChange] | list[StageChange]]] = {
                "steps a second": ("Steps per second by rung", subject.rungs),
                "ms of a step": ("Milliseconds a step by stage", subject.stages),
            }
            part = of_section(name, block)
            if block.title in changes:
                caption, found = changes[block.title]
                part = Part(name, caption, [_drawn(caption, table, found) for table in block.blocks])
            parts.append(part)
    return Page("before and after", with_content(parts))


def _drawn(caption: str, table: object, found: list[RungChange] | list[StageChange]) -> PageBlock:
    assert isinstance(table, Table), "the section holds its table"
    high = (
        max((side.value for one in found for side in (one.before, one.after) if side is not None), default=0.0) or 1.0
    )
    return with_drawings(table, caption, "before and after", [_bars(one, high) for one in found])


def _bars(one: RungChange | StageChange, high: float) -> Drawn:
    label = f"{value(one.before) or 'not measured'} before, {value(one.after) or 'not measured'} after"
    sides = ((one.before, "neutral"), (one.after, "accent"))
    return bars.bars(label, [(side.value / high if side else 0.0, colour) for side, colour in sides])

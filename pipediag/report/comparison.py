"""Turn a comparison of two runs into blocks: what changed, and whether it is more than chance."""

from __future__ import annotations

from ..analysis.compare import Comparison, RungChange, StageChange, waits
from ..analysis.numbers.intervals import Interval
from ..analysis.summary import summarise
from ..analysis.words import number, shown
from .diagnosis import between, title, value, warnings
from .document import Block, Listing, Paragraph, Section, Table

_HEADERS = ("", "before", "after", "change", "interval", "")


def blocks(comparison: Comparison) -> list[Block]:
    sides = {"before": comparison.before, "after": comparison.after}
    settings = [f"{name}: {_setting(was)} -> {_setting(now)}" for name, was, now in comparison.settings]
    return [
        title(summarise(comparison)),
        Paragraph(f"bottleneck: {' -> '.join(shown(side.verdict.bottleneck) for side in sides.values())}", "line"),
        Listing([f"{name}: {side.verdict.sentence}" for name, side in sides.items()], details=True),
        Section("steps a second", [Table(_HEADERS, "lrrrll", [*map(_rung, comparison.rungs)])]),
        Section("a worker's own ms for a sample", [_own(comparison.of_the_workers)]),
        Section(
            "the training process's own ms of a step", [_own(comparison.of_the_loop), Paragraph(_waiting(comparison))]
        ),
        Section("set otherwise", [Listing(settings)]),
        warnings(comparison.warnings, comparison.after.session),
    ]


def _rung(one: RungChange) -> list[str]:
    ratio = f"{number(one.speedup.value)}x" if one.speedup else ""
    verdict = _significant(one.speedup, one.significant)
    return [one.rung, value(one.before), value(one.after), ratio, between(one.speedup), verdict]


def _own(changes: list[StageChange]) -> Table:
    return Table(_HEADERS, "lrrrll", [*map(_stage, changes)])


def _stage(one: StageChange) -> list[str]:
    change = f"{'+' if one.change.value > 0 else ''}{number(one.change.value)}" if one.change else ""
    name = f"{one.name} ({one.where})" if one.name and one.where else one.name or shown(one.stage)
    verdict = _significant(one.change, one.significant)
    return [name, value(one.before), value(one.after), change, between(one.change), verdict]


def _waiting(comparison: Comparison) -> str:
    """Return how the loop's waiting for batches changed: what follows from the figures of both sides."""
    was, now = (waits(side.ladder) for side in (comparison.before, comparison.after))
    if was is None or now is None:
        return ""
    return f"The loop waits for batches for {number(was.value)} -> {number(now.value)} ms of a step."


def _setting(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _significant(interval: Interval | None, significant: bool) -> str:
    if interval is None:
        return "not measured on both sides"
    return "significant" if significant else "not significant"

"""Turn a comparison of two runs into blocks: what changed, and whether it is more than chance."""

from __future__ import annotations

from ..analysis.compare import Comparison
from ..analysis.intervals import Interval
from ..analysis.sentences import number
from .diagnosis import between, headline, warnings
from .document import Block, Listing, Paragraph, Table, Title, listing, section

_HEADERS = ("", "before", "after", "change", "95 % interval", "")


def blocks(comparison: Comparison) -> list[Block]:
    sides = {"before": comparison.before, "after": comparison.after}
    settings = [f"{name}: {_setting(was)} -> {_setting(now)}" for name, was, now in comparison.settings]
    return [
        Title(tuple(map(headline, sides.values()))),
        Paragraph(comparison.sentence),
        Listing([f"{name}: {side.verdict.sentence}" for name, side in sides.items()], details=True),
        *section("steps a second", _table(_rung_rows(comparison))),
        *section("ms of a step", _table(_stage_rows(comparison))),
        *section("set otherwise", listing(settings)),
        *warnings(comparison.warnings),
    ]


def _table(rows: list[list[str]]) -> list[Block]:
    return [Table(_HEADERS, "lrrrll", rows)] if rows else []


def _rung_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            one.rung,
            *(number(rate.value) if rate else "" for rate in (one.before, one.after)),
            f"{number(one.speedup.value)}x" if one.speedup else "",
            between(one.speedup) if one.speedup else "",
            _significant(one.speedup, one.significant),
        ]
        for one in comparison.rungs
    ]


def _stage_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            one.stage,
            *(number(cost.value) if cost else "" for cost in (one.before, one.after)),
            f"{'+' if one.change.value > 0 else ''}{number(one.change.value)}" if one.change else "",
            between(one.change) if one.change else "",
            _significant(one.change, one.significant) if one.alone else "with other stages on one side",
        ]
        for one in comparison.stages
    ]


def _setting(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _significant(interval: Interval | None, significant: bool) -> str:
    if interval is None:
        return "not measured on both sides"
    return "significant" if significant else "not significant"

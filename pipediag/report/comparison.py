"""Render a comparison of two runs as text, Markdown or JSON."""

from __future__ import annotations

import math
import textwrap

from tabulate import tabulate

from ..analysis.compare import Comparison
from ..analysis.intervals import Interval
from ..analysis.sentences import number
from . import rows
from .text import WIDTH, bullet, warning_texts

_HEADERS = ("", "before", "after", "change", "95 % interval", "")
_ALIGN = ("left", "right", "right", "right", "left", "left")


def render_text(comparison: Comparison) -> str:
    before, after = comparison.before, comparison.after
    lines = [f"{rows.headline(before)}  ->  {rows.headline(after)}", ""]
    lines += textwrap.wrap(comparison.sentence, WIDTH)
    for name, side in (("before", before), ("after", after)):
        lines += textwrap.wrap(f"{name}: {side.verdict.sentence}", WIDTH, subsequent_indent="  ")
    for title, table in (("steps a second", rung_rows(comparison)), ("ms of a step", stage_rows(comparison))):
        if table:
            lines += ["", f"{title}:"]
            lines.append(tabulate(table, headers=_HEADERS, tablefmt="simple", disable_numparse=True, colalign=_ALIGN))
    for title, entries in (
        ("set otherwise", setting_lines(comparison)),
        ("warnings", warning_texts(comparison.warnings)),
    ):
        if entries:
            lines += ["", f"{title}:"]
            lines += map(bullet, entries)
    return "\n".join(lines) + "\n"


def render_markdown(comparison: Comparison) -> str:
    before, after = comparison.before, comparison.after
    lines = [f"# {rows.headline(before)} -> {rows.headline(after)}", "", comparison.sentence]
    lines += ["", f"- before: {before.verdict.sentence}", f"- after: {after.verdict.sentence}"]
    for title, table in (("Steps a second", rung_rows(comparison)), ("ms of a step", stage_rows(comparison))):
        if table:
            lines += ["", f"## {title}", "", f"| {' | '.join(_HEADERS)} |", "|---|--:|--:|--:|---|---|"]
            lines += [f"| {' | '.join(cells)} |" for cells in table]
    for title, entries in (
        ("Set otherwise", setting_lines(comparison)),
        ("Warnings", warning_texts(comparison.warnings)),
    ):
        if entries:
            lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def rung_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            one.rung,
            *(number(rate.value) if rate else "" for rate in (one.before, one.after)),
            f"{number(one.speedup.value)}x" if one.speedup else "",
            _between(one.speedup),
            _significant(one.speedup, one.significant),
        ]
        for one in comparison.rungs
    ]


def stage_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            one.stage,
            *(number(cost.value) if cost else "" for cost in (one.before, one.after)),
            f"{'+' if one.change.value > 0 else ''}{number(one.change.value)}" if one.change else "",
            _between(one.change),
            _significant(one.change, one.significant) if one.alone else "with other stages on one side",
        ]
        for one in comparison.stages
    ]


def setting_lines(comparison: Comparison) -> list[str]:
    return [f"{name}: {_setting(was)} -> {_setting(now)}" for name, was, now in comparison.settings]


def _setting(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _between(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window"
    return f"{number(interval.low)} .. {number(interval.high)}"


def _significant(interval: Interval | None, significant: bool) -> str:
    if interval is None:
        return "not measured on both sides"
    return "significant" if significant else "not significant"

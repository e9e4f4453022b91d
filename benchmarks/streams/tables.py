"""Summarise the rates of a row: ratios within each round, and the rows of result files as Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

#: Steps per second of each form's windows, in order.
Rounds = Mapping[str, Sequence[float]]
Row = dict[str, Any]

#: Forms that only fetch: the fastest of them is the loader's supply.
SUPPLIES = ("raw_pinned", "raw_pageable", "source_alone")


def bound(rounds: Rounds) -> list[float]:
    """Return the upper bound of any loop for each round: the slower of device-cached batches and the loader alone.

    Empty without ``device_cached``; without a form that only fetches, the loader counts as no limit.
    """
    ceiling = rounds.get("device_cached", ())
    supplies = [rounds[name] for name in SUPPLIES if name in rounds]
    if not ceiling or not supplies:
        return list(ceiling)
    return [min(limit, max(supply)) for limit, *supply in zip(ceiling, *supplies, strict=True)]


def ratios(rounds: Rounds, of: str, over: Iterable[str]) -> dict[str, float]:
    """Return the median over the rounds of ``of``'s rate over that of each other form, and over their ``bound``.

    Forms without rates are left out.
    """
    if of not in rounds:
        return {}
    references: dict[str, Sequence[float]] = {name: rounds[name] for name in over if name in rounds}
    if limit := bound(rounds):
        references["bound"] = limit
    return {
        f"{of}/{name}": statistics.median(a / b for a, b in zip(rounds[of], values, strict=True))
        for name, values in references.items()
    }


def merged(rows: Iterable[Row], row: Row, key: Sequence[str]) -> list[Row]:
    """Return the rows with this one in place of the one with the same key, ordered by key."""

    def of(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in key)

    return sorted([*(other for other in rows if of(other) != of(row)), row], key=of)


def line(row: Row, key: Sequence[str]) -> str:
    """Return a row as a progress line."""
    parts = [f"{name} {row[name]}" for name in key]
    parts += [f"{name} {value:.1f}/s" for name, value in row.get("steps_per_s", {}).items()]
    parts += [f"{name} {value:.3f} ms" for name, value in row.get("next_ms", {}).items()]
    parts += [f"{name} {value:.2f}" for name, value in row.get("ratios", {}).items()]
    parts += [f"{name} FAILED: {why}" for name, why in row["failed"].items()]
    return " | ".join([*parts, f"{row['took_s']:.0f} s"])


def markdown(part: str, rows: Sequence[Row]) -> str:
    """Return a table for the documentation: one line for each row, in the order given."""
    table = _TABLES[part]
    lines = [[cell(row) for _, cell in table] for row in rows]
    return tabulate(lines, headers=[head for head, _ in table], tablefmt="pipe", disable_numparse=True)


def of_files(paths: Iterable[Path]) -> str:
    """Return the tables of result files, one after the other."""
    results = [json.loads(path.read_text()) for path in paths]
    return "\n\n".join(
        f"{result['part']}, {result['device']}, torch {result['torch']}\n\n{markdown(result['part'], result['rows'])}"
        for result in results
    )


_Cell = Callable[[Row], str]


def _plain(name: str) -> tuple[str, _Cell]:
    return name, lambda row: str(row[name])


def _rate(head: str, *names: str) -> tuple[str, _Cell]:
    """Return a column with the highest of some rates."""

    def cell(row: Row) -> str:
        found = [row["steps_per_s"][name] for name in names if name in row["steps_per_s"]]
        return f"{max(found):.1f}" if found else "-"

    return head, cell


def _ratio(head: str, name: str) -> tuple[str, _Cell]:
    return head, lambda row: f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "-"


def _milliseconds(head: str, name: str) -> tuple[str, _Cell]:
    return head, lambda row: f"{row['next_ms'][name]:.3f}" if name in row["next_ms"] else "-"


_TABLES: dict[str, list[tuple[str, _Cell]]] = {
    "augment": [
        _plain("batch"),
        _plain("workers"),
        _rate("plain", "plain"),
        _rate("article: offloaded", "article_offload"),
        _rate("article: two streams", "article_two_streams"),
        _rate("kornia, pinned, streams", "kornia_streams_pinned"),
        _rate("`offload`", "offload"),
        _rate("device-cached", "device_cached"),
        _rate("raw loader alone", *SUPPLIES),
        _ratio("`offload` over the slower of the two", "offload/bound"),
        _ratio("over plain", "offload/plain"),
        _ratio("over the article's two streams", "offload/article_two_streams"),
        _ratio("over kornia", "offload/kornia_streams_pinned"),
    ],
    "frozen": [
        _plain("batch"),
        _plain("feed"),
        _rate("serial", "serial"),
        _rate("serial, pinned", "serial_pinned"),
        _rate("article: two streams", "article_streams"),
        _rate("`StagePipeline`, no graphs", "stage_pipeline_no_graphs"),
        _rate("`StagePipeline`", "stage_pipeline"),
        _ratio("over serial", "stage_pipeline/serial"),
        _ratio("over serial, pinned", "stage_pipeline/serial_pinned"),
        _ratio("over the article's", "stage_pipeline/article_streams"),
    ],
    "peers": [
        _plain("batch"),
        _plain("dtype"),
        _plain("feed"),
        _rate("plain", "plain"),
        _rate("torchtnt", "torchtnt", "torchtnt_pattern"),
        _rate("timm", "timm", "timm_pattern"),
        _rate("`StagePipeline`", "stage_pipeline"),
        _rate("device-cached", "device_cached"),
        _rate("source alone", "source_alone"),
        _ratio("`StagePipeline` over the slower of the two", "stage_pipeline/bound"),
        _ratio("over plain", "stage_pipeline/plain"),
    ],
    "next": [
        _plain("batch"),
        _milliseconds("plain", "plain"),
        _milliseconds("torchtnt", "torchtnt"),
        _milliseconds("torchtnt's pattern", "torchtnt_pattern"),
        _milliseconds("timm", "timm"),
        _milliseconds("timm's pattern", "timm_pattern"),
        _milliseconds("`StagePipeline`", "stage_pipeline"),
        _milliseconds("`offload`", "offload"),
    ],
}

"""What the streams benchmark says of its rates, on made ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.streams.tables import bound, line, markdown, merged, of_files, ratios

Json = dict[str, Any]


def augment(batch: int, workers: int = 8, **rates: float) -> Json:
    """A row of one round."""
    rounds = {name: [rate] for name, rate in rates.items()}
    key = {"batch": batch, "workers": workers}
    return {**key, "steps_per_s": rates, "ratios": ratios(rounds, "offload", ["plain"]), "rounds": rounds, "failed": {}}


def test_the_bound_is_the_slower_of_device_and_better_supply_in_each_round() -> None:
    rounds = {"device_cached": [100.0, 100.0], "raw_pinned": [80.0, 150.0], "raw_pageable": [90.0, 60.0]}
    assert bound(rounds) == [90.0, 100.0]


def test_without_a_measured_supply_the_device_bounds_alone() -> None:
    assert bound({"device_cached": [100.0, 90.0], "plain": [1.0, 1.0]}) == [100.0, 90.0]


def test_without_a_ceiling_there_is_no_bound() -> None:
    assert bound({"raw_pinned": [80.0]}) == []


def test_ratios_are_taken_within_rounds_and_then_their_median() -> None:
    rounds = {"offload": [10.0, 20.0, 90.0], "plain": [2.0, 20.0, 30.0]}  # the medians alone would say 20 / 20
    assert ratios(rounds, "offload", ["plain"]) == {"offload/plain": 3.0}


def test_what_was_not_measured_has_no_ratio() -> None:
    rounds = {"offload": [10.0], "device_cached": [20.0]}
    assert ratios(rounds, "offload", ["plain", "device_cached"]) == {"offload/device_cached": 0.5, "offload/bound": 0.5}
    assert ratios({"plain": [10.0], "device_cached": [20.0]}, "offload", ["plain"]) == {}


def test_rounds_of_different_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratios({"offload": [10.0, 10.0], "plain": [5.0]}, "offload", ["plain"])


def test_a_row_takes_the_place_of_the_one_of_its_setting() -> None:
    rows = [augment(32, 8, plain=1.0), augment(32, 15, plain=2.0)]
    rows = merged(rows, augment(32, 8, plain=3.0), ("batch", "workers"))
    rows = merged(rows, augment(2, 8, plain=4.0), ("batch", "workers"))
    assert [(row["batch"], row["workers"], row["steps_per_s"]["plain"]) for row in rows] == [
        (2, 8, 4.0),
        (32, 8, 3.0),
        (32, 15, 2.0),
    ]


def test_a_table_has_a_line_for_each_row_and_a_dash_for_what_is_missing() -> None:
    text = markdown("augment", [augment(32, plain=20.04, offload=100.2, raw_pinned=150.0), augment(128, 15)])
    head, _, first, second = ([cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines())
    shown = dict(zip(head, first, strict=True))
    assert shown["batch"] == "32" and shown["workers"] == "8"
    assert shown["plain"] == "20.0" and shown["`offload`"] == "100.2" and shown["raw loader alone"] == "150.0"
    assert shown["over plain"] == "5.00" and shown["over kornia"] == "-"
    assert dict(zip(head, second, strict=True))["batch"] == "128"
    assert set(second[2:]) == {"-"}


def test_the_tables_of_files_name_part_and_device(tmp_path: Path) -> None:
    times = {"batch": 32, "next_ms": {"plain": 0.1234, "timm": 0.5}, "failed": {}}
    for part, row in (("augment", augment(2, plain=1.5)), ("next", times)):
        result = {"part": part, "device": "NVIDIA H200", "torch": "2.11.0", "rows": [row]}
        (tmp_path / f"{part}.json").write_text(json.dumps(result))
    text = of_files([tmp_path / "augment.json", tmp_path / "next.json"])
    assert "augment, NVIDIA H200, torch 2.11.0\n\n" in text and "next, NVIDIA H200, torch 2.11.0\n\n" in text
    assert "1.5" in text and "0.123" in text and "0.500" in text


def test_a_line_says_what_failed() -> None:
    row = {**augment(2, 8, plain=1.26, offload=2.52), "took_s": 3.4, "failed": {"kornia": "ValueError: no"}}
    assert line(row, ("batch", "workers")) == (
        "batch 2 | workers 8 | plain 1.3/s | offload 2.5/s | offload/plain 2.00 | kornia FAILED: ValueError: no | 3 s"
    )

"""What the cache benchmark says of its epochs, on made ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cache.table import markdown, summary

#: Two repetitions of three epochs; in the second one the machine took twice as long.
SECONDS = {
    "plain": [[4.0, 4.0, 5.0], [8.0, 8.0, 10.0]],
    "cached": [[5.0, 1.0, 1.0], [10.0, 2.0, 2.0]],
    "ceiling": [[0.8, 0.8, 0.8], [1.8, 1.8, 1.8]],
}


def row(**changes: Any) -> dict[str, Any]:
    made = {"kind": "png", "samples": 100, "cache_call_s": [1.0, 2.0], "losses_equal": True}
    sizes = {"predicted_bytes": [10_000_000, 12_000_000], "kept_bytes": [11_040_000, 11_040_000]}
    return {**made, **sizes, "medians": summary(SECONDS), **changes}


def cells(row: dict[str, Any]) -> dict[str, str]:
    head, _, line = ([cell.strip() for cell in text.split("|")[1:-1]] for text in markdown([row]).splitlines())
    return dict(zip(head, line, strict=True))


def test_ratios_are_taken_within_a_repetition() -> None:
    found = summary(SECONDS)
    assert found["first_epoch"] == 1.25 and found["gain"] == 4.0
    assert found["share_of_ceiling"] == pytest.approx((0.8 + 0.9) / 2)


def test_a_missing_repetition_is_an_error() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        summary({**SECONDS, "cached": SECONDS["cached"][:1]})


def test_seconds_are_medians_of_each_epoch() -> None:
    assert summary(SECONDS)["seconds"]["plain"] == [6.0, 6.0, 7.5]


def test_the_first_epoch_is_the_dearer_one_and_the_second_the_gain() -> None:
    shown = cells(row())
    assert (shown["plain epochs (s)"], shown["cached epochs (s)"]) == ("6.00 6.00 7.50", "7.50 1.50 1.50")
    assert (shown["epoch 1: cached / plain"], shown["epoch 2: plain / cached"]) == ("1.25", "4.00")
    assert (shown["`cache()` (s)"], shown["predicted MB"], shown["kept MB"]) == ("1.50", "11.0", "11.0")
    assert shown["losses"] == "equal"


def test_nothing_kept_has_no_size_and_other_losses_are_shown() -> None:
    shown = cells(row(predicted_bytes=[], kept_bytes=[], losses_equal=False))
    assert (shown["predicted MB"], shown["kept MB"], shown["losses"]) == ("-", "-", "DIFFER")

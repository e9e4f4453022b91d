"""What the cache benchmark says of its epochs, on made ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cache.table import markdown, summary


def repetition(scale: float, ceiling: float, **changes: Any) -> dict[str, Any]:
    """The machine takes ``scale`` times as long as in the first one."""
    epochs = {"plain": [4.0, 4.0, 5.0], "cached": [5.0, 1.0, 1.0], "ceiling": [ceiling] * 3}
    made = {"epochs_s": {form: [scale * value for value in values] for form, values in epochs.items()}}
    made["cpu_s"] = {**epochs, "cached": [4.2, 2.0, 2.0]}
    return {**made, "kept_bytes": 11_040_000, "cache_call_s": scale, "losses_equal": True, **changes}


def cells(*repetitions: dict[str, Any]) -> dict[str, str]:
    rows = [{"kind": "png", "samples": 100, "medians": summary(repetitions)}]
    head, _, line = ([cell.strip() for cell in text.split("|")[1:-1]] for text in markdown(rows).splitlines())
    return dict(zip(head, line, strict=True))


def test_ratios_are_taken_within_a_repetition() -> None:
    found = summary([repetition(1, 0.8), repetition(2, 0.9)])
    assert (found["first_epoch"], found["gain"]) == (1.25, 4.0)
    assert found["share_of_ceiling"] == pytest.approx(0.85)  # of the medians it would be 1.3 / 1.5


def test_seconds_are_medians_of_each_epoch() -> None:
    assert summary([repetition(1, 1), repetition(2, 1)])["epochs_s"]["plain"] == [6.0, 6.0, 7.5]


def test_the_table_shows_epochs_ratios_and_sizes() -> None:
    shown = cells(repetition(1, 0.8), repetition(2, 0.8))
    assert (shown["plain epochs (s)"], shown["cached epochs (s)"]) == ("6.00 6.00 7.50", "7.50 1.50 1.50")
    assert (shown["epoch 1: cached / plain"], shown["epoch 2: plain / cached"]) == ("1.25 (1.05)", "4.00 (2.00)")
    assert shown["epoch 2: in memory / cached"] == "0.80 (0.40)"
    assert (shown["`cache()` (s)"], shown["kept MB"]) == ("1.50", "11.0")
    assert shown["losses"] == "equal"


def test_losses_that_differ_once_are_shown() -> None:
    assert cells(repetition(1, 1), repetition(1, 1, losses_equal=False))["losses"] == "DIFFER"

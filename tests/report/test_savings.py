"""What a change brings, in one line."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.intervals import Interval
from pipediag.analysis.savings import Savings
from pipediag.report.savings import sentence

from ..made import FLAT, make

EPOCH = Savings(5004, 3480.0, Interval(2520.0, 2340.0, 2700.0))
HOUR = Savings(None, 3600.0, Interval(2520.0, 2340.0, math.inf))


def told(saved: Savings | None, price: float | None = None) -> str:
    return sentence(diagnose_session(make(FLAT, workers=15), price), saved)


@pytest.mark.parametrize(
    "saved, expected",
    [
        (EPOCH, "epoch of 5004 batches: 42 min (39 to 45) instead of 58 min"),
        (HOUR, "hour of today's training: 42 min (39 to more)"),
        (
            replace(EPOCH, with_start=True),
            "epoch of 5004 batches with its start: 42 min (39 to 45) instead of 58 min",
        ),
        (
            replace(EPOCH, workers=4),
            "epoch of 5004 batches: 42 min (39 to 45) instead of 58 min; 4 of 15 workers keep up",
        ),
        (None, ""),
    ],
)
def test_without_a_price(saved: Savings | None, expected: str) -> None:
    assert told(saved) == expected


@pytest.mark.parametrize(
    "saved, price, expected",
    [
        (EPOCH, 3.0, "instead of 58 min; costs 2.1 instead of 2.9"),
        (HOUR, 3.1, "42 min (39 to more); costs 2.17 instead of 3.1"),
        (EPOCH, 0.003, "; costs 0.0021 instead of 0.0029"),
        (replace(EPOCH, workers=4), 3.0, "; costs 2.1 instead of 2.9; 4 of 15 workers keep up"),
        (replace(EPOCH, same_machine=False), 3.0, "(39 to 45) instead of 58 min"),
    ],
)
def test_with_a_price(saved: Savings, price: float, expected: str) -> None:
    assert told(saved, price).endswith(expected)


@pytest.mark.parametrize(
    "now, expected",
    [
        (119.0, "59.5 s (59.5 to 59.5) instead of 119 s"),
        (120.0, "1 min (1 to 1) instead of 2 min"),
        (5400.0, "45 min (45 to 45) instead of 90 min"),
        (7200.0, "1 h (1 to 1) instead of 2 h"),
        (259200.0, "1.5 days (1.5 to 1.5) instead of 3 days"),
    ],
)
def test_units(now: float, expected: str) -> None:
    assert told(Savings(10, now, Interval(now / 2, now / 2, now / 2))).endswith(expected)

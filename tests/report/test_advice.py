"""Recommendations as they are told: the speedup, its interval, what it brings, and measurements before predictions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.whatif import Savings, savings
from pipediag.report import markdown, remedy, text
from pipediag.report.document import filled
from pipediag.session import Session

from ..made import FLAT, make

PREDICTED = Interval(2.0, 1.25, 2.5)
EPOCH = Savings(5004, 3480.0, Interval(2520.0, 2340.0, 2700.0))
HOUR = Savings(None, 3600.0, Interval(2520.0, 2340.0, math.inf))


def one(predicted: Interval | None = PREDICTED, measured: Interval | None = None) -> Recommendation:
    return Recommendation(
        "id", "Do this", "load", predicted, measured, ["because of 5 ms", "and 6"], "so", "it may not"
    )


def with_code() -> Recommendation:
    how = "in place of this:\ndef ahead(batch):\n    return batch\n\nfor batch in ahead(loader):\n    ..."
    return Recommendation("id", "Do this", "load", PREDICTED, None, ["because"], how, "it may not")


def told(*recommendations: Recommendation, nothing: str = "") -> Diagnosis:
    diagnosis = diagnose_session(make(FLAT))
    diagnosis.recommendations, diagnosis.nothing_to_gain = list(recommendations), nothing
    return diagnosis


def terminal(diagnosis: Diagnosis) -> list[str]:
    return text.write(filled([remedy.advice_section(diagnosis)])).splitlines()


def as_markdown(diagnosis: Diagnosis) -> list[str]:
    return markdown.write(filled([remedy.advice_section(diagnosis)])).splitlines()


class TestGain:
    @pytest.mark.parametrize(
        "predicted, measured, expected",
        [
            (Interval(2.0, 1.25, 2.5), None, "2x (1.25 to 2.5)"),
            (Interval(2.0, 1.25, math.inf), None, "2x (1.25 to more)"),
            (None, None, "not predicted"),
            (Interval(2.0, 1.25, 2.5), Interval(1.8, 1.75, 1.85), "1.8x (1.75 to 1.85) measured, 2x predicted"),
            (None, Interval(1.8, 1.75, 1.85), "1.8x (1.75 to 1.85) measured"),
        ],
    )
    def test_text(self, predicted: Interval | None, measured: Interval | None, expected: str) -> None:
        assert remedy.gain(one(predicted, measured)) == expected


class TestTerminal:
    def test_in_full(self) -> None:
        assert terminal(told(one())) == [
            "what would help:",
            "  1. 2x (1.25 to 2.5)  Do this",
            "     why: because of 5 ms",
            "     how: so",
            "     risk: it may not",
        ]

    def test_what_it_brings(self) -> None:
        saving = one()
        saving.savings = savings(PREDICTED, 60.0, 1000)
        assert terminal(told(saving))[1:3] == [
            "  1. 2x (1.25 to 2.5)  Do this",
            "     epoch of 1000 batches: 30 s (24 to 48) instead of 60 s",
        ]

    def test_from_the_fourth_on_by_a_line(self) -> None:
        assert terminal(told(*[one()] * 5))[-2:] == [
            "  4. 2x (1.25 to 2.5)  Do this",
            "  5. 2x (1.25 to 2.5)  Do this",
        ]

    def test_long_texts_are_wrapped(self) -> None:
        long = one()
        long.how = "word " * 60
        assert max(map(len, terminal(told(long)))) <= 100

    def test_nothing_to_gain_comes_first(self) -> None:
        assert terminal(told(one(None), nothing="Nothing."))[:3] == [
            "what would help:",
            "  - Nothing.",
            "  1. not predicted  Do this",
        ]

    def test_nothing_at_all(self) -> None:
        assert filled([remedy.advice_section(told())]) == []


class TestMarkdown:
    def test_all_that_is_known(self) -> None:
        assert as_markdown(told(one())) == [
            "## What would help",
            "",
            "1. **Do this** (loading): 2x (1.25 to 2.5)",
            "   - because of 5 ms",
            "   - and 6",
            "   - how: so",
            "   - risk: it may not",
        ]

    def test_what_it_brings(self) -> None:
        saving = one()
        saving.savings = savings(PREDICTED, 60.0, 1000)
        assert as_markdown(told(saving))[2:5] == [
            "1. **Do this** (loading): 2x (1.25 to 2.5)",
            "   - epoch of 1000 batches: 30 s (24 to 48) instead of 60 s",
            "   - because of 5 ms",
        ]

    def test_an_empty_session(self) -> None:
        assert as_markdown(diagnose_session(Session()))[2].startswith("Nothing can be recommended yet.")


class TestCode:
    """Lines of code are shown unchanged."""

    def test_in_the_terminal(self) -> None:
        lines = terminal(told(with_code()))
        assert lines[lines.index("     how: in place of this:") + 1 :] == [
            "       def ahead(batch):",
            "           return batch",
            "",
            "       for batch in ahead(loader):",
            "           ...",
            "     risk: it may not",
        ]

    def test_in_markdown(self) -> None:
        lines = as_markdown(told(with_code()))
        assert lines[lines.index("   - how: in place of this:") + 1 :] == [
            "     ```python",
            "     def ahead(batch):",
            "         return batch",
            "",
            "     for batch in ahead(loader):",
            "         ...",
            "     ```",
            "   - risk: it may not",
        ]


def brings(saved: Savings | None, price: float | None = None) -> str:
    return remedy.savings(diagnose_session(make(FLAT, workers=15), price), saved)


class TestSavings:
    """What a change brings, in one line."""

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
    def test_without_a_price(self, saved: Savings | None, expected: str) -> None:
        assert brings(saved) == expected

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
    def test_with_a_price(self, saved: Savings, price: float, expected: str) -> None:
        assert brings(saved, price).endswith(expected)

    @pytest.mark.parametrize(
        "now, expected",
        [
            (119.0, "59.5 s instead of 119 s"),
            (120.0, "1 min instead of 2 min"),
            (5400.0, "45 min instead of 90 min"),
            (7200.0, "1 h instead of 2 h"),
            (259200.0, "1.5 days instead of 3 days"),
        ],
    )
    def test_units(self, now: float, expected: str) -> None:
        assert brings(Savings(10, now, Interval(now / 2, now / 2, now / 2))).endswith(expected)

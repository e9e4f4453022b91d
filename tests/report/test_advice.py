"""Recommendations as they are told: the speedup, its interval, and what is measured before what is predicted."""

from __future__ import annotations

import math

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.intervals import Interval
from pipediag.analysis.savings import savings
from pipediag.report import advice, markdown, text
from pipediag.report.document import filled
from pipediag.session import Session

from ..made import FLAT, make

PREDICTED = Interval(2.0, 1.25, 2.5)


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
    return text.write(filled([advice.section(diagnosis)])).splitlines()


def as_markdown(diagnosis: Diagnosis) -> list[str]:
    return markdown.write(filled([advice.section(diagnosis)])).splitlines()


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
        assert advice.gain(one(predicted, measured)) == expected


class TestTerminal:
    def test_in_full(self) -> None:
        assert terminal(told(one())) == [
            "what would help:",
            "  1. 2x (1.25 to 2.5)  Do this",
            "     why: because of 5 ms",
            "     how: so",
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
        assert filled([advice.section(told())]) == []


class TestMarkdown:
    def test_all_that_is_known(self) -> None:
        assert as_markdown(told(one())) == [
            "## What would help",
            "",
            "1. **Do this** (load): 2x (1.25 to 2.5)",
            "   - because of 5 ms",
            "   - and 6",
            "   - how: so",
            "   - risk: it may not",
        ]

    def test_what_it_brings(self) -> None:
        saving = one()
        saving.savings = savings(PREDICTED, 60.0, 1000)
        assert as_markdown(told(saving))[2:5] == [
            "1. **Do this** (load): 2x (1.25 to 2.5)",
            "   - epoch of 1000 batches: 30 s (24 to 48) instead of 60 s",
            "   - because of 5 ms",
        ]

    def test_an_empty_session(self) -> None:
        assert as_markdown(diagnose_session(Session()))[2].startswith("Nothing can be recommended yet.")


class TestCode:
    """Lines to be pasted are told as they are."""

    def test_in_the_terminal(self) -> None:
        lines = terminal(told(with_code()))
        assert lines[lines.index("     how: in place of this:") + 1 :] == [
            "       def ahead(batch):",
            "           return batch",
            "",
            "       for batch in ahead(loader):",
            "           ...",
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

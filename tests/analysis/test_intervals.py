"""Interval arithmetic: exact small cases."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis.numbers.intervals import Interval, apart, largest, least, total

ENDS = st.lists(st.floats(0.1, 1000), min_size=3, max_size=3).map(sorted)


def interval(ends: list[float]) -> Interval:
    low, value, high = ends
    return Interval(value, low, high)


def test_another_zero_and_another_unit() -> None:
    assert Interval(2.0, 1.0, 4.0).shifted(-1.0) == Interval(1.0, 0.0, 3.0)
    assert Interval(2.0, 1.0, 4.0).times(3.0) == Interval(6.0, 3.0, 12.0)
    assert Interval(2.0, -math.inf, math.inf).times(3.0) == Interval(6.0, -math.inf, math.inf)


def test_a_cost_is_not_negative() -> None:
    assert Interval(-1.0, -3.0, 2.0).not_negative() == Interval(0.0, 0.0, 2.0)
    assert Interval(1.0, 0.5, 2.0).not_negative() == Interval(1.0, 0.5, 2.0)


def test_a_sum_is_more_certain_than_its_parts_together() -> None:
    found = total([Interval(10.0, 7.0, 13.0), Interval(20.0, 16.0, 24.0)])
    assert found == Interval(30.0, 25.0, 35.0)


def test_a_sum_of_nothing() -> None:
    assert total([]) == Interval(0.0, 0.0, 0.0)


def test_inverse_exchanges_the_ends() -> None:
    assert Interval(10.0, 8.0, 20.0).inverse(1000.0) == Interval(100.0, 50.0, 125.0)


@pytest.mark.parametrize("low", [-math.inf, -1.0, 0.0])
def test_inverse_of_an_interval_down_to_nothing(low: float) -> None:
    assert Interval(10.0, low, math.inf).inverse(1000.0) == Interval(100.0, 0.0, math.inf)


def test_json_form_has_no_infinity() -> None:
    assert Interval(1.23456789, -math.inf, math.inf).to_dict() == {"value": 1.234568, "low": None, "high": None}
    assert Interval(2.0, 1.0, 3.0).to_dict() == {"value": 2.0, "low": 1.0, "high": 3.0}


class TestArithmetic:
    A, B = Interval(4.0, 3.0, 6.0), Interval(2.0, 1.0, 5.0)

    def test_ends(self) -> None:
        assert largest(self.A, Interval(3.5, 3.25, 9.0)) == Interval(4.0, 3.25, 9.0)
        assert least(self.A, self.B) == Interval(2.0, 1.0, 5.0)
        assert self.A.scaled(self.B) == Interval(8.0, 3.0, 30.0)
        assert self.A.scaled(Interval(0.0, -1.0, 1.0)) == Interval(0.0, -6.0, 6.0)

    def test_differences_of_what_is_independent(self) -> None:
        assert self.A.minus(self.B) == Interval(2.0, 2 - math.hypot(1, 3), 2 + math.hypot(2, 1))


def test_blurred_by_what_is_independent() -> None:
    assert Interval(10.0, 7.0, 15.0).blurred(4.0) == Interval(10.0, 5.0, 10.0 + math.hypot(5.0, 4.0))
    assert Interval(10.0, 7.0, 15.0).blurred(0.0) == Interval(10.0, 7.0, 15.0)


class TestApart:
    """Two runs, measured apart."""

    def test_exact(self) -> None:
        assert apart(Interval(10.0, 10.0, 10.0), Interval(5.0, 5.0, 5.0)) == Interval(0.5, 0.5, 0.5)

    def test_either_sides_uncertainty(self) -> None:
        sure, unsure = Interval(10.0, 10.0, 10.0), Interval(20.0, 16.0, 25.0)
        there, back = apart(sure, unsure), apart(unsure, sure)
        assert (there.value, there.low, there.high) == (2.0, pytest.approx(1.6), pytest.approx(2.5))
        assert (back.value, back.low, back.high) == (0.5, pytest.approx(0.4), pytest.approx(0.625))

    def test_both_add_up_in_quadrature_on_the_logarithm(self) -> None:
        one, other = Interval(1.0, math.exp(-0.3), math.exp(0.3)), Interval(1.0, math.exp(-0.4), math.exp(0.4))
        found = apart(one, other)
        assert (found.low, found.high) == (pytest.approx(math.exp(-0.5)), pytest.approx(math.exp(0.5)))

    @pytest.mark.parametrize("open_", [Interval(5.0, 0.0, math.inf), Interval(5.0, -math.inf, math.inf)])
    def test_an_open_end_stays_open(self, open_: Interval) -> None:
        assert apart(Interval(10.0, 9.0, 11.0), open_) == Interval(0.5, 0.0, math.inf)
        assert apart(open_, Interval(10.0, 9.0, 11.0)) == Interval(2.0, 0.0, math.inf)

    @given(ENDS, ENDS)
    def test_the_other_way_round_it_is_the_inverse(self, one: list[float], other: list[float]) -> None:
        there, back = apart(interval(one), interval(other)), apart(interval(other), interval(one))
        assert there.value == pytest.approx(1 / back.value)
        assert there.low == pytest.approx(1 / back.high)
        assert there.low <= there.value <= there.high

    def test_covers_the_truth(self) -> None:
        """Of 400 pairs of equal runs, about a twentieth seem to differ."""
        draw = random.Random(5)

        def run() -> Interval:
            level = math.exp(draw.gauss(0.0, 0.05))
            return Interval(level, level * math.exp(-1.96 * 0.05), level * math.exp(1.96 * 0.05))

        found = [apart(run(), run()) for _ in range(400)]
        assert 370 <= sum(one.low <= 1.0 <= one.high for one in found) <= 392

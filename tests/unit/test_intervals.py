"""Interval arithmetic: exact small cases, and the statistics against scipy's."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import intervals
from pipediag.analysis.intervals import Interval, difference, median_interval, ratio, student_t, unpaired_ratio

VALUES = st.lists(st.floats(0.1, 1000), min_size=1, max_size=12)


def test_one_value_says_nothing_about_the_spread() -> None:
    assert median_interval([7.0]) == Interval(7.0, -math.inf, math.inf)


def test_equal_values_have_no_spread() -> None:
    assert median_interval([7.0] * 4) == Interval(7.0, 7.0, 7.0)


def test_no_values() -> None:
    with pytest.raises(statistics.StatisticsError):
        median_interval([])


def test_three_values_exactly() -> None:
    """Of three values, the resampled medians reach both ends; both arms are the longer one, stretched."""
    arm = 1.5 * student_t(2) / statistics.NormalDist().inv_cdf(0.975) * math.sqrt(3 / 2)
    found = median_interval([3.0, 1.0, 2.5])
    assert [found.value, found.low, found.high] == pytest.approx([2.5, 2.5 - arm, 2.5 + arm])


def test_arms_differ_where_there_are_values_enough() -> None:
    found = median_interval([1.0, 1.1, 1.2, 4.0, 9.0])
    assert found.high - found.value > 3 * (found.value - found.low)


def test_the_same_values_give_the_same_interval() -> None:
    values = [1.0, 5.0, 2.0, 8.0, 3.0]
    assert median_interval(values) == median_interval(list(values))


def test_random_state_of_the_program_is_left_alone() -> None:
    random.seed(3)
    before = random.getstate()
    median_interval([1.0, 2.0, 4.0])
    assert random.getstate() == before


@given(VALUES)
def test_value_is_inside(values: list[float]) -> None:
    found = median_interval(values)
    assert found.low <= found.value <= found.high
    assert found.value == statistics.median(values)


@given(VALUES, st.sampled_from([0.5, 2.0, 1024.0]))
def test_unit_does_not_matter(values: list[float], factor: float) -> None:
    here, there = median_interval(values), median_interval([v * factor for v in values])
    assert (there.value, there.low, there.high) == (here.value * factor, here.low * factor, here.high * factor)


def test_student_t_is_within_three_per_mille() -> None:
    from scipy.stats import t

    wrong = {
        degrees: (student_t(degrees), exact)
        for degrees in [*range(1, 101), 150, 200, 500, 1000, 10_000]
        if abs(student_t(degrees) - (exact := float(t.ppf(0.975, degrees)))) > 0.003 * exact
    }
    assert wrong == {}


@pytest.mark.parametrize("count", [5, 8, 15, 16, 30])
def test_median_interval_is_the_stretched_percentile_bootstrap(count: int) -> None:
    """The median of few values takes few values itself, so its quantiles jump: with 1000 resamples the ends are those
    of a 95 % interval within three percent of confidence.
    """
    import numpy as np
    from scipy.stats import bootstrap

    draw = random.Random(count)
    values = [draw.lognormvariate(3, 0.2) for _ in range(count)]
    centre = statistics.median(values)
    stretch = student_t(count - 1) / statistics.NormalDist().inv_cdf(0.975) * math.sqrt(count / (count - 1))

    def theirs(confidence: float) -> tuple[float, float]:
        found = bootstrap(
            (values,),
            np.median,
            method="percentile",
            confidence_level=confidence,
            n_resamples=10_000,
            rng=np.random.default_rng(1),
        ).confidence_interval
        return centre - stretch * (centre - found.low), centre + stretch * (found.high - centre)

    ours, wide, narrow = median_interval(values), theirs(0.98), theirs(0.92)
    slack = 1e-9 * centre
    assert wide[0] - slack <= ours.low <= narrow[0] + slack
    assert narrow[1] - slack <= ours.high <= wide[1] + slack


@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_coverage(count: int) -> None:
    """What is called a 95 % interval holds the truth in at least 93 % of cases."""
    draw = random.Random(count)
    trials, held = 1000, 0
    for _ in range(trials):
        found = median_interval([draw.gauss(100, 5) for _ in range(count)])
        held += found.low <= 100 <= found.high
    assert held >= 0.93 * trials


def test_resamples_suffice_for_the_tails() -> None:
    assert intervals.RESAMPLES * (1 - intervals.CONFIDENCE) / 2 >= 20


def test_difference_is_paired() -> None:
    """A drift that falls on both alike cancels out."""
    fast = [10.0, 20.0, 35.0, 11.0]
    assert difference([f + 3 for f in fast], fast) == Interval(3.0, 3.0, 3.0)


def test_ratio_is_paired() -> None:
    fast = [10.0, 20.0, 35.0, 11.0]
    found = ratio([2 * f for f in fast], fast)
    assert [found.value, found.low, found.high] == pytest.approx([2.0, 2.0, 2.0])


def test_ratio_is_symmetric_on_the_logarithm() -> None:
    slow, fast = [10.0, 22.0, 36.0], [5.0, 10.0, 20.0]
    there, back = ratio(slow, fast), ratio(fast, slow)
    assert back.value == pytest.approx(1 / there.value)
    assert [back.low, back.high] == pytest.approx([1 / there.high, 1 / there.low])


def test_ratio_of_one_pair_is_open() -> None:
    assert ratio([6.0], [3.0]) == Interval(pytest.approx(2.0), 0.0, math.inf)


@pytest.mark.parametrize("pair", [difference, ratio])
def test_pairs_must_match(pair: Callable[..., Interval]) -> None:
    with pytest.raises(ValueError):
        pair([1.0, 2.0], [1.0])


def test_inverse_exchanges_the_ends() -> None:
    assert Interval(10.0, 8.0, 20.0).inverse(1000.0) == Interval(100.0, 50.0, 125.0)


@pytest.mark.parametrize("low", [-math.inf, -1.0, 0.0])
def test_inverse_of_an_interval_down_to_nothing(low: float) -> None:
    assert Interval(10.0, low, math.inf).inverse(1000.0) == Interval(100.0, 0.0, math.inf)


def test_json_form_has_no_infinity() -> None:
    assert Interval(1.23456789, -math.inf, math.inf).to_dict() == {"value": 1.234568, "low": None, "high": None}
    assert Interval(2.0, 1.0, 3.0).to_dict() == {"value": 2.0, "low": 1.0, "high": 3.0}


class TestUnpaired:
    """Two runs, measured apart."""

    def test_medians(self) -> None:
        found = unpaired_ratio([10.0, 10.0, 10.0], [5.0, 5.0, 5.0, 5.0])
        assert [found.value, found.low, found.high] == pytest.approx([0.5, 0.5, 0.5])

    def test_one_value_says_nothing_about_the_spread(self) -> None:
        assert unpaired_ratio([10.0], [5.0, 6.0, 7.0]) == Interval(pytest.approx(0.6), 0.0, math.inf)

    def test_no_values(self) -> None:
        with pytest.raises(statistics.StatisticsError):
            unpaired_ratio([], [1.0])

    def test_the_other_way_round_it_is_the_inverse(self) -> None:
        one, other = [1.0, 1.1, 1.3, 0.9, 1.05], [2.0, 2.2, 1.9, 2.6, 2.1]
        there, back = unpaired_ratio(one, other), unpaired_ratio(other, one)
        assert there.value == pytest.approx(1 / back.value)
        assert there.low == pytest.approx(1 / back.high, rel=0.05)

    @given(VALUES, VALUES)
    def test_value_is_inside(self, one: list[float], other: list[float]) -> None:
        found = unpaired_ratio(one, other)
        assert found.low <= found.value <= found.high

    def test_covers_the_truth(self) -> None:
        """Of 200 pairs of runs whose truth is 1, at most a tenth may seem to differ."""
        draw = random.Random(5)

        def run() -> list[float]:
            return [math.exp(draw.gauss(0.0, 0.05)) for _ in range(5)]

        found = [unpaired_ratio(run(), run()) for _ in range(200)]
        assert sum(one.low <= 1.0 <= one.high for one in found) >= 180

"""Intervals, and estimates from pairs of windows: exact small cases, properties, quantiles compared with scipy's."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis.numbers.intervals import Interval, apart, largest, least, total
from pipediag.analysis.numbers.paired_windows import (
    PACE,
    UNKNOWN,
    Noise,
    looks,
    mean_rate,
    paired_ratio,
    share,
    student_t,
    sure_gain,
)

TIMES = st.floats(0.01, 1000)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 15, 40])
@pytest.mark.parametrize("error", [0.1, 0.05, 0.0112, 0.001])
def test_quantiles_are_those_of_scipy(degrees: int, error: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert student_t(degrees, error) == pytest.approx(stats.t.ppf(1 - error / 2, degrees), rel=1e-6)


def test_one_pair_says_nothing() -> None:
    assert paired_ratio([6.0], [2.0]) == Interval(pytest.approx(3.0), 0.0, math.inf)
    assert mean_rate([7.0]) == Interval(7.0, -math.inf, math.inf)


def test_nothing_measured() -> None:
    for ask in (lambda: paired_ratio([], []), lambda: mean_rate([])):
        with pytest.raises(ValueError):
            ask()
    with pytest.raises(ValueError):
        paired_ratio([1.0, 2.0], [1.0])


def test_plain_t_by_hand() -> None:
    """The logarithms are 0, log 2 and log 4: mean log 2, standard deviation log 2."""
    found = paired_ratio([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], UNKNOWN)
    arm = student_t(2) * math.log(2) / math.sqrt(3)
    assert [found.value, found.low, found.high] == pytest.approx([2, 2 * math.exp(-arm), 2 * math.exp(arm)], rel=1e-3)


def test_moderated_t_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipediag.analysis.numbers.paired_windows.SPLIT", 1e-12)
    found = paired_ratio([math.e, math.e**3], [1.0, 1.0], Noise(0.5, 4))
    arm = student_t(5) * math.sqrt((4 * 0.25 + 2.0) / 5 / 2)
    assert [math.log(x) for x in (found.value, found.low, found.high)] == pytest.approx([2, 2 - arm, 2 + arm], rel=1e-3)


@given(st.lists(TIMES, min_size=2, max_size=12))
def test_equal_sides_have_the_ratio_one(values: list[float]) -> None:
    found = paired_ratio(values, values)
    assert found.low <= found.value == 1.0 <= found.high


@given(PAIRS)
def test_exchanging_the_sides_inverts(pairs: list[tuple[float, float]]) -> None:
    slow, fast = zip(*pairs, strict=True)
    there, back = paired_ratio(slow, fast), paired_ratio(fast, slow).inverse()
    assert [math.log(there.value), math.log(max(there.low, 1e-300))] == pytest.approx(
        [math.log(back.value), math.log(max(back.low, 1e-300))], abs=1e-6
    )


@given(PAIRS, st.floats(0.1, 10), st.floats(0.1, 10))
def test_scaling_and_drift_common_to_a_pair(pairs: list[tuple[float, float]], scale: float, drift: float) -> None:
    slow, fast = zip(*pairs, strict=True)
    once = paired_ratio(slow, fast)
    scaled = paired_ratio(
        [scale * drift**i * s for i, s in enumerate(slow)], [drift**i * f for i, f in enumerate(fast)]
    )
    assert scaled.value == pytest.approx(scale * once.value, rel=1e-6)
    assert math.log(scaled.value / scaled.low) == pytest.approx(math.log(once.value / once.low), rel=1e-5, abs=1e-6)


@given(PAIRS, st.sampled_from([PACE, UNKNOWN]))
def test_more_pairs_of_the_same_kind_narrow(pairs: list[tuple[float, float]], noise: Noise) -> None:
    slow, fast = zip(*pairs, strict=True)
    once, twice = paired_ratio(slow, fast, noise), paired_ratio(slow * 2, fast * 2, noise)
    assert twice.value / twice.low <= once.value / once.low * (1 + 1e-6)


@given(PAIRS)
def test_levels_have_the_ratio_of_the_pairs(pairs: list[tuple[float, float]]) -> None:
    slow, fast = zip(*pairs, strict=True)
    assert mean_rate(slow).value / mean_rate(fast).value == pytest.approx(paired_ratio(slow, fast, UNKNOWN).value)
    inverse = mean_rate([1 / s for s in slow])
    assert inverse.value * mean_rate(slow).value == pytest.approx(1.0)


def test_one_hiccup_does_not_open_the_interval() -> None:
    slow = [1.15, 1.2, 1.1, 1.15, 1.18, 1.12, 1.15, 20.0]
    found = paired_ratio(slow, [1.0] * 8)
    assert found.low > 1.0 and found.high < 1.4
    assert paired_ratio(slow, [1.0] * 8, UNKNOWN).low < 1.0


def test_wide_noise_is_no_hiccup() -> None:
    """If all pairs differ more than recorded runs do, none is an outlier."""
    slow = [1.0, 4.0, 0.25, 2.0, 0.5]
    assert paired_ratio(slow, [1.0] * 5).high > 2


def test_a_quiet_host_needs_no_knowledge() -> None:
    """Eight pairs within 0.1 % outweigh the prior noise."""
    fast = [1.0, 1.001, 0.999, 1.0, 1.001, 1.0, 0.999, 1.0]
    found = paired_ratio([1.05] * 8, fast)
    assert 1.047 < found.low < 1.05 < found.high < 1.053


def test_share_by_hand() -> None:
    """Residuals of 0.3: 1 - 0.3 * 4 = -0.2 and 1.4 - 0.3 * 4 = 0.2."""
    found = share([1.0, 1.4], [4.0, 4.0])
    arm = student_t(1) * math.sqrt(2 * 0.08) / 8
    assert [found.value, found.low, found.high] == pytest.approx([0.3, max(0.0, 0.3 - arm), 0.3 + arm])


def test_share_of_one_block_is_open() -> None:
    assert share([1.0], [4.0]) == Interval(0.25, 0.0, 1.0)


def test_share_of_one_block_with_noise_known() -> None:
    """One block does not show how blocks differ: the prior noise alone counts."""
    found = share([1.0], [4.0], noise=Noise(0.02, 4))
    arm = student_t(4) * 0.02
    assert [found.value, found.low, found.high] == pytest.approx([0.25, 0.25 - arm, 0.25 + arm])


def test_share_of_two_blocks_with_noise_known() -> None:
    """Blocks of 0.25 and 0.35: residuals of 0.2 / 4 = 0.05 to either side, plus four degrees of prior noise."""
    found = share([1.0, 1.4], [4.0, 4.0], noise=Noise(0.02, 4))
    arm = student_t(5) * math.sqrt((4 * 0.02**2 + 2 * 0.05**2) / 5 / 2)
    assert [found.value, found.low, found.high] == pytest.approx([0.3, 0.3 - arm, 0.3 + arm])
    plain = share([1.0, 1.4], [4.0, 4.0])
    assert plain.high - plain.low > 2 * (found.high - found.low), "two blocks alone say little"


def test_share_of_many_blocks_with_noise_known() -> None:
    """A group of five blocks has less prior noise than a block; the observed spread soon outweighs it."""
    quiet = share([1.0] * 20, [4.0] * 20, noise=Noise(0.02, 4))
    arm = student_t(7) * math.sqrt(4 * 0.02**2 / 5 / 7 / 4)
    assert [quiet.value, quiet.low, quiet.high] == pytest.approx([0.25, 0.25 - arm, 0.25 + arm])
    loud = [1.0 + (-1) ** (n // 5) * 0.4 for n in range(20)]
    found, plain = share(loud, [4.0] * 20, noise=Noise(0.02, 4)), share(loud, [4.0] * 20)
    assert quiet.high - quiet.low < found.high - found.low < plain.high - plain.low
    assert found.low < 0.2 and found.high > 0.3


@pytest.mark.parametrize("blocks", [1, 2, 5, 40])
def test_noise_known_of_shares_covers(blocks: int) -> None:
    """With blocks as noisy as the prior, 95 % of the intervals hold the truth."""
    draw, held, tries = random.Random(5), 0, 400
    for _ in range(tries):
        found = share([4 * (0.3 + draw.gauss(0, 0.05)) for _ in range(blocks)], [4.0] * blocks, noise=Noise(0.05, 4))
        held += found.low <= 0.3 <= found.high
    assert held >= 0.92 * tries


def test_a_share_with_noise_known_is_a_share() -> None:
    for part in (0.0, 0.02, 4.0):
        found = share([part], [4.0], noise=Noise(0.3, 4))
        assert 0 <= found.low <= found.value <= found.high <= 1


def test_neighbours_are_merged() -> None:
    parts, wholes = [1.0, 3.0, 2.0, 2.0, 3.0, 1.0, 0.0, 4.0], [10.0] * 8
    assert share(parts, wholes).low == share(parts, wholes).high == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_a_share_is_a_share(blocks: list[tuple[float, float]]) -> None:
    found = share([part * whole for part, whole in blocks], [whole for _, whole in blocks])
    assert 0 <= found.low <= found.value + 1e-12 and found.value <= found.high + 1e-12 <= 1 + 2e-12


def test_looks() -> None:
    assert [*looks(30)] == [2, 3, 4, 6, 8, 12, 16, 24]
    assert [*looks(1)] == []


def test_a_gain_in_every_pair_is_a_gain() -> None:
    assert sure_gain([1.35, 1.38, 1.71], [1.0] * 3) is True
    assert sure_gain([1.0] * 3, [1.35, 1.38, 1.71]) is False


def test_noise_is_no_gain() -> None:
    assert sure_gain([1.0, 1.02, 0.99], [1.0] * 3) is None
    assert sure_gain([1.0, 1.3], [1.0] * 2) is None


def test_a_decision_stands() -> None:
    """The first decision stands, or the errors of all looks would add up."""
    slow = [1.35, 1.38, 1.71, 0.5, 0.5, 0.5]
    assert sure_gain(slow, [1.0] * 6) is True


def test_the_last_look_takes_all_pairs() -> None:
    slow, fast = [1.16] * 2 + [1.13] * 3, [1.0] * 5
    noise = Noise(0.06, 4)
    assert sure_gain([2.5], [1.0], noise) is None
    assert sure_gain([1.5, 1.5], [1.0] * 2, noise) is True
    assert sure_gain(slow, fast, noise, last=True) is True


def test_many_looks_at_nothing_are_rarely_fooled() -> None:
    draw = random.Random(4)
    fooled = 0
    for _ in range(400):
        slow = [math.exp(draw.gauss(0, 0.1)) for _ in range(24)]
        fooled += sure_gain(slow, [1.0] * 24) is True
    assert fooled <= 16


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

"""Steps that take far longer than those around them."""

from __future__ import annotations

import pytest

from pipediag.measure.rare_steps import rare_steps

USUAL = (0.010, 0.002)


def test_usual_steps_are_not_rare() -> None:
    assert rare_steps([USUAL, (0.019, 0.011)] * 20, [0.0] * 40) == {}


def test_two_steps_tell_nothing() -> None:
    assert rare_steps([USUAL, (1.0, 0.9)], [0.0, 0.0]) == {}


def test_what_a_long_wait_adds() -> None:
    """10 of 110 ms are usual; 90 of the other 100 are spent waiting."""
    spans = [USUAL] * 9 + [(0.110, 0.092)]
    assert rare_steps(spans, [0.0] * 10) == {
        "rare": 1.0,
        "rare_wait_ms": pytest.approx(9.0),
        "rare_train_ms": pytest.approx(1.0),
        "rare_wait_root": pytest.approx(90.0),
        "rare_train_root": pytest.approx(10.0),
    }


def test_several_add_up() -> None:
    found = rare_steps([*[USUAL] * 6, (0.040, 0.032), *[USUAL] * 6, (0.050, 0.042)], [0.0] * 14)
    assert found["rare"] == 2 and found["rare_wait_ms"] == pytest.approx(70 / 14, abs=1e-4)
    assert found["rare_wait_root"] == pytest.approx(50.0) and found["rare_train_ms"] == 0.0


def test_what_is_not_the_steps_own_is_left_out() -> None:
    """It waited for a core."""
    assert rare_steps([USUAL] * 9 + [(0.110, 0.002)], [0.0] * 9 + [0.095]) == {}


def test_a_slower_machine_is_not_rare() -> None:
    """A step is compared with those around it."""
    assert rare_steps([USUAL] * 100 + [(0.030, 0.006)] * 100, [0.0] * 200) == {}


def test_bursts_of_the_workers_are_one() -> None:
    """The first of each round waits; one round waits for long."""
    burst = [(0.040, 0.035), (0.005, 0.0), (0.005, 0.0), (0.005, 0.0)]
    spans = burst * 5 + [(0.240, 0.235), *burst[1:]]
    assert rare_steps(spans, [0.0] * len(spans))["rare"] == 6
    found = rare_steps(spans, [0.0] * len(spans), 4)
    assert found["rare"] == 1 and found["rare_wait_ms"] == pytest.approx(200 / 24, abs=1e-4)


def test_very_many_steps_are_looked_at_together() -> None:
    spans = [(0.0001, 0.0)] * 100_000
    spans[50_000] = (0.5, 0.4)
    found = rare_steps(spans, [0.0] * len(spans))
    assert found["rare"] == 1 and found["rare_wait_ms"] == pytest.approx(400 / 100_000, rel=0.05)


def test_batches_that_other_workers_made_meanwhile_count_against_it() -> None:
    """Two workers; while the loop waits for a second, the other one fills its queue, and four batches come at once."""
    waiting, ready = (0.050, 0.040), (0.010, 0.0)
    spans = [waiting] * 10 + [(1.050, 1.040), waiting] + [ready] * 4 + [waiting] * 10
    found = rare_steps(spans, [0.0] * len(spans), 2, 4)
    assert found["rare"] == 1 and found["rare_wait_ms"] * len(spans) == pytest.approx(1000 - 4 * 40, abs=0.1)


@pytest.mark.parametrize("waited", [0.0, 0.010, 0.500])
def test_what_feeds_the_loop_does_not_change_which_steps_train_longer(waited: float) -> None:
    """Else a window that is fed from a cache would lose more of its long steps than one that waits."""
    own = [0.020] * 5 + [0.050, 0.020, 0.030, 0.020, 0.090] + [0.020] * 5
    found = rare_steps([(waited + one, waited) for one in own], [0.0] * len(own))
    assert (found["rare"], found["rare_wait_ms"]) == (2, 0.0)
    assert found["rare_train_ms"] == pytest.approx((30 + 70) / len(own), abs=1e-4)

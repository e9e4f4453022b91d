"""What steers a measured loop, on a clock that the test moves: without workers, loops or torch."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipediag.ladder.steering import Epochs, OutOfTime, Steering
from pipediag.session import LONGER, Window

from ..clock import Clock
from . import simulated


def test_it_imports_neither_torch_nor_anything_that_does() -> None:
    code = "import sys, pipediag.ladder.steering; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def queues(ready: int = 0, workers: int = 2, backlog: int = 8) -> SimpleNamespace:
    return SimpleNamespace(workers=workers, backlog=backlog, ready=ready)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def steering(clock: Clock) -> Steering:
    return simulated.steering(clock, 1000)


def settled_after(steering: Steering, clock: Clock, step: float, rung: str = "baseline", made: float = 0.0) -> int:
    """Return the number of steps of settling under a rung."""
    steering.switch(rung)
    steering.begin_settling(rung, clock.now(), made, workers=2)
    steps = 1
    clock.seconds += step
    while steering.settles(steps, queues()):
        steps += 1
        clock.seconds += step
    steering.end_settling(rung, steps, workers=2)
    return steps


def test_a_rung_is_settled_only_until_the_loop_is_fed_in_another_way(steering: Steering, clock: Clock) -> None:
    assert not steering.has_settled("baseline")
    assert settled_after(steering, clock, 0.25) == 4, "a second before its first window"
    assert steering.has_settled("baseline") and steering.pace["baseline"] == 0.25
    steering.disturb()
    assert not steering.has_settled("baseline")
    assert settled_after(steering, clock, 0.25) == 2, "a round of its workers from then on"


def test_no_more_than_twelve_first_steps(steering: Steering, clock: Clock) -> None:
    assert settled_after(steering, clock, 1 / 64) == 12


def test_the_first_batch_counts_towards_the_pace(steering: Steering, clock: Clock) -> None:
    """Two workers took 8 s each for the first two batches, which then came at once."""
    settled_after(steering, clock, 1 / 64, made=8.0)
    assert steering.pace["baseline"] == 4.0


@pytest.mark.parametrize(("ready", "keeps_up"), [(0, False), (6, False), (7, True), (8, True)])
def test_workers_that_fill_their_queues_keep_up(steering: Steering, ready: int, keeps_up: bool) -> None:
    steering.learn(Window("device", 0, 8, 1.0, 8))
    steering.switch("sample")
    assert steering.fills("sample", 1 / 16, queues()) and not steering.fills("sample", 1.0, queues())
    steering.fill(queues(ready))
    assert steering.keeps_up is keeps_up


def test_workers_whose_stock_was_used_up_are_slower_from_then_on(steering: Steering) -> None:
    steering.learn(Window("device", 0, 8, 1.0, 8))
    steering.used_up_stock("sample")
    assert not steering.fills("sample", 1 / 16, queues())


@pytest.mark.parametrize("rung", ["supply", "remedied"])
def test_queues_that_would_hide_a_pace_are_not_filled(steering: Steering, rung: str) -> None:
    steering.learn(Window("device", 0, 8, 1.0, 8))
    assert not steering.fills(rung, 1 / 1024, queues())


def test_a_window_holds_whole_rounds_of_workers_that_the_loop_waits_for(steering: Steering) -> None:
    steering.target = 1.0
    steering.pace.update(baseline=0.25, device=0.25)
    assert steering.window("baseline", workers=3) == (9, 3.0)
    assert steering.window("device", workers=3) == (4, 3.0)


@pytest.mark.parametrize("longer", [1.0, 0.25])
def test_the_long_window_lasts_a_twelfth_of_the_budget(steering: Steering, longer: float) -> None:
    """A rare long step may lie among those that showed its pace. A short budget has less for it."""
    budget = 120.0 * longer
    steering._budget = budget
    steering.pace.update({"baseline": 0.01, LONGER: 0.5})
    assert steering.window(LONGER, 0) == (round(100 * budget / 12 * longer), budget / 12 * longer)


def test_the_time_limit(steering: Steering, clock: Clock) -> None:
    steering.check_time()
    steering.limit(5.0)
    clock.seconds += 5.0
    steering.check_time()
    clock.seconds += 1.0
    with pytest.raises(OutOfTime):
        steering.check_time()


def test_an_error_is_due_to_the_rung_under_way(steering: Steering) -> None:
    with steering.under("raw"):
        assert steering.rung == "raw"
    assert steering.rung == "baseline"
    with pytest.raises(OutOfTime), steering.under("raw"):
        raise OutOfTime
    assert steering.rung == "baseline", "pipediag ends this rung, not the script"
    with pytest.raises(GeneratorExit), steering.under("raw"):
        raise GeneratorExit
    assert steering.rung == "raw", "the script has ended under it"


@pytest.mark.parametrize(
    ("length", "left_after", "handed", "horizon", "complete", "last_chance"),
    [
        # Whole epochs.
        (3, [], 0, None, False, False),
        (3, [], 3, None, True, True),
        (3, [3], 3, None, True, True),
        # Epochs left early: the end of the last step before a ``break`` is not seen, so the last chance is one earlier.
        (100, [10], 8, 10, False, False),
        (100, [10], 9, 10, False, True),
        (100, [1], 0, 1, False, False),
        (100, [1], 1, 1, False, True),
        # The farthest break counts, an epoch without batches does not.
        (100, [10, 30, 20], 0, 30, False, False),
        (100, [0], 0, None, False, False),
        # An unknown length.
        (None, [], 5, None, False, False),
        (None, [5], 0, 5, False, False),
    ],
)
def test_epochs(
    length: int | None, left_after: list[int], handed: int, horizon: int | None, complete: bool, last_chance: bool
) -> None:
    epochs = Epochs(length)
    for left in left_after:
        epochs.handed = left
        epochs.begin(length)
    assert epochs.serial == len(left_after)
    epochs.handed = handed
    assert (epochs.horizon, epochs.complete, epochs.last_chance) == (horizon, complete, last_chance)
    epochs.begin(5)
    epochs.handed = 3
    assert not epochs.complete, "the length may change between epochs"


def test_a_new_iterator_for_every_batch() -> None:
    for joined, serial in ((True, 0), (False, 3)):
        epochs = Epochs(length=100, joined=joined)
        for _ in range(3):
            epochs.hand()
            epochs.begin(100)
            assert epochs.horizon == 1 and not epochs.last_chance
        assert epochs.serial == serial
    epochs = Epochs(length=1, joined=True)
    epochs.hand()
    epochs.begin(1)
    assert epochs.serial == 1, "its only batch is the whole epoch"

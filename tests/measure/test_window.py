"""Exact timing with a fake clock, and the length of a window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.measure.clock import SystemClock
from pipediag.measure.window import FEW_STEPS, MAX_STEPS, MIN_STEPS, SLOW, Stopwatch, window_steps


class FakeDevice:
    """A clock that the test moves, and a device that is ``behind`` by some seconds when synchronized."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.behind = 0.0
        self.synchronized = 0

    def now(self) -> float:
        return self.time

    def synchronize(self) -> None:
        self.synchronized += 1
        self.time += self.behind
        self.behind = 0.0

    def steps(self, watch: Stopwatch, count: int, seconds: float, queued: float = 0.0) -> None:
        for _ in range(count):
            self.time += seconds
            self.behind += queued
            watch.count()


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def watch(device: FakeDevice) -> Stopwatch:
    return Stopwatch(device, device.synchronize)


def test_one_stretch(device: FakeDevice, watch: Stopwatch) -> None:
    watch.start()
    device.steps(watch, 4, 0.25)
    watch.stop()
    assert (watch.seconds, watch.steps) == (1.0, 4)


def test_synchronized_only_at_the_ends(device: FakeDevice, watch: Stopwatch) -> None:
    watch.start()
    assert device.synchronized == 1
    device.steps(watch, 100, 0.25)
    assert device.synchronized == 1
    watch.stop()
    assert device.synchronized == 2


def test_only_work_queued_within_counts(device: FakeDevice, watch: Stopwatch) -> None:
    device.behind = 64.0
    watch.start()
    device.steps(watch, 4, 0.25, queued=0.5)
    watch.stop()
    assert watch.seconds == 3.0


def test_several_stretches(device: FakeDevice, watch: Stopwatch) -> None:
    for count in (2, 3):
        watch.start()
        device.steps(watch, count, 0.5)
        assert watch.total_steps == watch.steps + count
        watch.stop()
        device.time += 77.0  # the loop validates meanwhile
    assert (watch.seconds, watch.steps, watch.total_steps) == (2.5, 5, 5)
    assert device.synchronized == 4


def test_dropped_stretch(device: FakeDevice, watch: Stopwatch) -> None:
    watch.start()
    device.steps(watch, 2, 0.5)
    watch.stop()
    watch.start()
    device.steps(watch, 5, 3.0)
    watch.drop()
    assert (watch.seconds, watch.steps, watch.total_steps) == (1.0, 2, 2)


def test_stretch_without_steps(device: FakeDevice, watch: Stopwatch) -> None:
    watch.start()
    device.time += 9.0
    watch.stop()
    assert (watch.seconds, watch.steps) == (0.0, 0)


def test_stop_without_start(watch: Stopwatch) -> None:
    with pytest.raises(AssertionError, match="without start"):
        watch.stop()


def test_stop_after_drop(watch: Stopwatch) -> None:
    watch.start()
    watch.drop()
    with pytest.raises(AssertionError, match="without start"):
        watch.stop()


def test_system_clock_does_not_go_back() -> None:
    clock = SystemClock()
    times = [clock.now() for _ in range(5)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    "pace, target, workers, steps",
    [
        (0.1, 1.0, 0, 10),
        (0.1, 1.0, 4, 12),
        (0.1, 1.0, 5, 10),
        (0.1, 1.0, 16, 16),
        (0.9, 1.0, 0, 4),
        (5.0, 1.0, 0, 2),
        (5.0, 1.0, 4, 4),
        (5.0, 60.0, 0, 12),
        (0.0, 1.0, 0, 1000),
    ],
)
def test_window_steps(pace: float, target: float, workers: int, steps: int) -> None:
    assert window_steps(pace, target, workers) == steps


@given(st.floats(0, 100), st.floats(0.01, 10), st.integers(0, 128))
def test_window_is_whole_rounds_of_the_workers_within_bounds(pace: float, target: float, workers: int) -> None:
    steps = window_steps(pace, target, workers)
    assert steps % max(1, workers) == 0
    least = FEW_STEPS if pace > SLOW else MIN_STEPS
    assert least <= steps < MAX_STEPS + max(1, workers)

"""Exact timing with a fake clock, and the length of a window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.measure.window import FEW_STEPS, MAX_STEPS, MIN_STEPS, SLOW, StepClock, Stopwatch, window_steps

from ..clock import Clock


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
    watch.start()
    watch.drop()
    with pytest.raises(AssertionError, match="without start"):
        watch.stop()


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


class Event:
    """Passes when the device reaches it; ``at`` is the device's time then, in seconds."""

    def __init__(self, device: EventDevice) -> None:
        self._device = device
        self.at = max(device.clock.now(), device.busy_until)

    def query(self) -> bool:
        return self._device.clock.now() >= self.at

    def elapsed_time(self, other: Event) -> float:
        return 1000.0 * (other.at - self.at)


class EventDevice:
    """Runs queued work, one piece after another."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.busy_until = 0.0

    def queue(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.clock.now()) + seconds

    def event(self) -> Any:
        return Event(self)


def steps(watch: StepClock, clock: Clock, count: int, wait: float, work: float) -> None:
    """Run steps of the loop, up to the request that follows the last one."""
    watch.asks()
    for _ in range(count):
        clock.seconds += wait
        watch.gets()
        clock.seconds += work
        watch.asks()


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


class TestHost:
    def test_steps_and_waits(self, clock: Clock) -> None:
        watch = StepClock(clock)
        steps(watch, clock, 3, wait=0.25, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 3
        assert watch.take() == [], "each is returned once"

    def test_no_step_without_a_batch(self, clock: Clock) -> None:
        watch = StepClock(clock)
        watch.asks()
        clock.seconds += 5.0
        watch.asks()
        assert watch.take() == []
        clock.seconds += 0.25
        watch.gets()
        watch.asks()
        assert watch.take() == [(0.25, 0.25)], "the wait counts from the second request"

    def test_no_step_without_a_request(self, clock: Clock) -> None:
        watch = StepClock(clock)
        watch.gets()
        clock.seconds += 1.0
        watch.asks()
        assert watch.take() == []

    def test_breaks(self, clock: Clock) -> None:
        """Neither the current step nor the time until the next request counts."""
        watch = StepClock(clock)
        steps(watch, clock, 2, wait=0.25, work=0.5)
        watch.gets()
        watch.breaks()
        clock.seconds += 60.0
        steps(watch, clock, 1, wait=0.5, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 2 + [(1.0, 0.5)]


class TestDevice:
    """Times come from the device, which is never synchronized."""

    def issued(self, clock: Clock, waits: float, issuing: float, computing: float) -> StepClock:
        """Return a clock after three steps that the loop issues one after the other."""
        device = EventDevice(clock)
        watch = StepClock(clock, device)
        watch.asks()
        for _ in range(3):
            clock.seconds += waits
            watch.gets()
            clock.seconds += issuing
            device.queue(computing)
            watch.asks()
        return watch

    @pytest.mark.parametrize(
        ("waits", "issuing", "computing", "expected"),
        [
            # at first the device was idle; waiting while it computes does not count
            (0.5, 0.0, 1.0, [(1.5, 0.5), (1.0, 0.0), (1.0, 0.0)]),
            # the device gets its work 0.25 s after the batch, finishes 0.5 s later, and then idles, which counts
            (2.0, 0.25, 0.5, [(2.75, 2.0), (2.25, 1.5), (2.25, 1.5)]),
        ],
    )
    def test_waiting_counts_while_the_device_idles(
        self, clock: Clock, waits: float, issuing: float, computing: float, expected: list[tuple[float, float]]
    ) -> None:
        watch = self.issued(clock, waits, issuing, computing)
        clock.seconds += 60.0
        assert watch.take() == expected

    @pytest.mark.parametrize("breaks", [False, True])
    def test_steps_that_the_device_has_not_finished_are_held_back(self, clock: Clock, breaks: bool) -> None:
        """They outlast a break."""
        watch = self.issued(clock, 0.0, 0.0, 1.0)
        assert watch.take() == []
        if breaks:
            watch.breaks()
        clock.seconds += 1.0
        assert watch.take() == [(1.0, 0.0)]
        clock.seconds += 0.5
        assert watch.take() == []
        clock.seconds += 0.5
        assert watch.take() == [(1.0, 0.0)]
        clock.seconds += 9.0
        assert watch.take() == [(1.0, 0.0)]

    def test_a_device_without_events(self, clock: Clock) -> None:
        class Plain:
            def event(self) -> Any:
                return None

        watch = StepClock(clock, Plain())
        steps(watch, clock, 2, wait=0.25, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 2

    def test_event_times_that_go_back_count_as_zero(self, clock: Clock) -> None:
        class Backwards(EventDevice):
            def event(self) -> Any:
                event = Event(self)
                event.at = -clock.now()
                return event

        watch = StepClock(clock, Backwards(clock))
        steps(watch, clock, 1, wait=0.25, work=0.5)
        assert watch.take() == [(0.0, 0.0)]

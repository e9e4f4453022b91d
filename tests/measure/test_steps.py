"""Single steps and their waits are exact: by the host's clock, and by events of a device that lags behind it."""

from __future__ import annotations

from typing import Any

from pipediag.measure.window import StepClock


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds


class Event:
    """Passes when the device reaches it; ``at`` is the device's time then, in seconds."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at = max(device.clock.now(), device.busy_until)

    def query(self) -> bool:
        return self._device.clock.now() >= self.at

    def elapsed_time(self, other: Event) -> float:
        return 1000.0 * (other.at - self.at)


class FakeDevice:
    """Runs queued work, one piece after another."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.busy_until = 0.0

    def queue(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.clock.now()) + seconds

    def event(self) -> Any:
        return Event(self)


def steps(watch: StepClock, clock: FakeClock, count: int, wait: float, work: float) -> None:
    """Run steps of the loop, up to the request that follows the last one."""
    watch.asks()
    for _ in range(count):
        clock.seconds += wait
        watch.gets()
        clock.seconds += work
        watch.asks()


class TestHost:
    def test_steps_and_waits(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        steps(watch, clock, 3, wait=0.25, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 3
        assert watch.take() == [], "each is returned once"

    def test_a_step_ends_when_the_next_batch_is_requested(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.asks()
        clock.seconds += 0.25
        watch.gets()
        clock.seconds += 0.5
        assert watch.take() == []
        watch.asks()
        assert watch.take() == [(0.75, 0.25)]

    def test_no_step_without_a_batch(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.asks()
        clock.seconds += 5.0
        watch.asks()
        assert watch.take() == []
        clock.seconds += 0.25
        watch.gets()
        watch.asks()
        assert watch.take() == [(0.25, 0.25)], "the wait counts from the second request"

    def test_no_step_without_a_request(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.gets()
        clock.seconds += 1.0
        watch.asks()
        assert watch.take() == []

    def test_breaks(self) -> None:
        """Neither the current step nor the time until the next request counts."""
        clock = FakeClock()
        watch = StepClock(clock)
        steps(watch, clock, 2, wait=0.25, work=0.5)
        watch.gets()
        watch.breaks()
        clock.seconds += 60.0
        steps(watch, clock, 1, wait=0.5, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 2 + [(1.0, 0.5)]


class TestDevice:
    """Times come from the device, which is never synchronized."""

    def test_waiting_while_the_device_computes_does_not_count(self) -> None:
        """The loop issues steps of 1 s in no time, then waits 0.5 s for its batch."""
        clock = FakeClock()
        device = FakeDevice(clock)
        watch = StepClock(clock, device)
        watch.asks()
        for _ in range(3):
            clock.seconds += 0.5
            watch.gets()
            device.queue(1.0)
            watch.asks()
        clock.seconds += 60.0
        assert watch.take() == [(1.5, 0.5), (1.0, 0.0), (1.0, 0.0)], "at first the device was idle"

    def test_waiting_while_the_device_idles_counts(self) -> None:
        """Batches arrive every 2 s; the loop takes 0.25 s to issue a step, and the device 0.5 s to run it."""
        clock = FakeClock()
        device = FakeDevice(clock)
        watch = StepClock(clock, device)
        watch.asks()
        for _ in range(3):
            clock.seconds += 2.0
            watch.gets()
            clock.seconds += 0.25
            device.queue(0.5)
            watch.asks()
        clock.seconds += 60.0
        # The device gets its work 0.25 s after the batch, finishes 0.5 s later, and then idles.
        assert watch.take() == [(2.75, 2.0), (2.25, 1.5), (2.25, 1.5)]

    def test_steps_that_the_device_has_not_finished_are_held_back(self) -> None:
        clock = FakeClock()
        device = FakeDevice(clock)
        watch = StepClock(clock, device)
        watch.asks()
        for _ in range(3):
            watch.gets()
            device.queue(1.0)
            watch.asks()
        assert watch.take() == []
        clock.seconds += 1.0
        assert watch.take() == [(1.0, 0.0)]
        clock.seconds += 0.5
        assert watch.take() == []
        clock.seconds += 0.5
        assert watch.take() == [(1.0, 0.0)]
        clock.seconds += 9.0
        assert watch.take() == [(1.0, 0.0)]

    def test_steps_outlast_a_break(self) -> None:
        clock = FakeClock()
        device = FakeDevice(clock)
        watch = StepClock(clock, device)
        watch.asks()
        watch.gets()
        device.queue(1.0)
        watch.asks()
        watch.breaks()
        clock.seconds += 1.0
        assert watch.take() == [(1.0, 0.0)]

    def test_a_device_without_events(self) -> None:
        clock = FakeClock()

        class Plain:
            def event(self) -> Any:
                return None

        watch = StepClock(clock, Plain())
        steps(watch, clock, 2, wait=0.25, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 2

    def test_event_times_that_go_back_count_as_zero(self) -> None:
        clock = FakeClock()

        class Backwards(FakeDevice):
            def event(self) -> Any:
                event = Event(self)
                event.at = -clock.now()
                return event

        watch = StepClock(clock, Backwards(clock))
        steps(watch, clock, 1, wait=0.25, work=0.5)
        assert watch.take() == [(0.0, 0.0)]

"""Single steps and their waits, exactly: by the host's clock, and by events of a device that is behind the host."""

from __future__ import annotations

from typing import Any

from pipediag.measure.steps import StepClock


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds


class Event:
    """Passes when the device gets there; ``at`` is the device's own time of that, in seconds."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at = max(device.clock.now(), device.busy_until)

    def query(self) -> bool:
        return self._device.clock.now() >= self.at

    def elapsed_time(self, other: Event) -> float:
        return 1000.0 * (other.at - self.at)


class FakeDevice:
    """Does what is queued on it, one piece after another."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.busy_until = 0.0

    def queue(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.clock.now()) + seconds

    def event(self) -> Any:
        return Event(self)


def steps(watch: StepClock, clock: FakeClock, count: int, wait: float, work: float) -> None:
    """So many steps of the loop, up to the question that follows the last of them."""
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
        assert watch.take() == [], "each is given once"

    def test_a_step_is_over_when_the_next_batch_is_asked_for(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.asks()
        clock.seconds += 0.25
        watch.gets()
        clock.seconds += 0.5
        assert watch.take() == []
        watch.asks()
        assert watch.take() == [(0.75, 0.25)]

    def test_a_batch_that_did_not_come_makes_no_step(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.asks()
        clock.seconds += 5.0
        watch.asks()
        assert watch.take() == []
        clock.seconds += 0.25
        watch.gets()
        watch.asks()
        assert watch.take() == [(0.25, 0.25)], "the wait is counted from the second question"

    def test_a_batch_that_nobody_asked_for_makes_no_step(self) -> None:
        clock = FakeClock()
        watch = StepClock(clock)
        watch.gets()
        clock.seconds += 1.0
        watch.asks()
        assert watch.take() == []

    def test_breaks(self) -> None:
        """Neither the step under way nor what comes before the next question is one of the loop's."""
        clock = FakeClock()
        watch = StepClock(clock)
        steps(watch, clock, 2, wait=0.25, work=0.5)
        watch.gets()
        watch.breaks()
        clock.seconds += 60.0
        steps(watch, clock, 1, wait=0.5, work=0.5)
        assert watch.take() == [(0.75, 0.25)] * 2 + [(1.0, 0.5)]


class TestDevice:
    """The device is asked for its own times, and never waited for."""

    def test_what_the_loop_waits_while_the_device_computes_is_no_wait(self) -> None:
        """The loop issues steps of a second in no time, then waits 0.5 s for its batch."""
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
        assert watch.take() == [(1.5, 0.5), (1.0, 0.0), (1.0, 0.0)], "at first the device had nothing to do"

    def test_what_the_device_has_nothing_to_do_for_is(self) -> None:
        """Batches come after 2 s, a step takes the device 0.5 s of them, and the loop 0.25 s to issue."""
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
        # The device has its work 0.25 s after the batch, and is done with it 0.5 s later: then it waits.
        assert watch.take() == [(2.75, 2.0), (2.25, 1.5), (2.25, 1.5)]

    def test_steps_that_the_device_has_not_done_yet_are_kept(self) -> None:
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

    def test_clocks_of_events_that_go_back_are_no_gain(self) -> None:
        clock = FakeClock()

        class Backwards(FakeDevice):
            def event(self) -> Any:
                event = Event(self)
                event.at = -clock.now()
                return event

        watch = StepClock(clock, Backwards(clock))
        steps(watch, clock, 1, wait=0.25, work=0.5)
        assert watch.take() == [(0.0, 0.0)]

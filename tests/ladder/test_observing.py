"""Observed steps of the loop before anything is cached, and their blocks, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipediag.ladder import single_steps
from pipediag.ladder.single_steps import Observer, StepRecorder
from pipediag.ladder.workers.delivery import Delivery
from pipediag.measure.evidence import BatchCost
from pipediag.session import UNTOUCHED, Observed, Session, Stretch

CPU = torch.device("cpu")
#: When the session began, and when the clock starts.
BEGAN, START = 40.0, 100.0


class FakeClock:
    def __init__(self) -> None:
        self.seconds = START

    def now(self) -> float:
        return self.seconds


class Loop:
    """A training loop: each batch is waited for, then worked on."""

    def __init__(self, workers: int = 2, attempt: int = 1) -> None:
        self.clock = FakeClock()
        recorder = StepRecorder.within(Session(began=BEGAN), "baseline", attempt)
        self.observer = Observer(self.clock, workers, attempt, recorder)
        self.ready = 0

    def epoch(self, batches: int, wait: float = 0.25, work: float = 0.5, made: float = 0.75, own: float = 0.0) -> None:
        """Run an epoch as the loader's iterator reports it: the first batch is startup, and the end is no batch."""
        for number in range(batches):
            self.observer.asks(CPU, self)
            self.clock.seconds += 7.0 if number == 0 else wait
            if number == 0:
                self.observer.breaks()
            else:
                cost, now = BatchCost(wall=made, collate=made / 4, own=own), self.clock.now()
                self.observer.gets(Delivery(None, "baseline", True, cost, number % 2, made=now))
            self.clock.seconds += work
        self.observer.asks(CPU, self)
        self.observer.breaks()


def block(steps: int, wait: float = 0.25, work: float = 0.5, made: float = 0.75, attempt: int = 1) -> Observed:
    return Observed(steps, steps * (wait + work), steps * wait, 1000 * made, attempt)


def test_blocks_of_one_round_without_the_first_batch() -> None:
    loop = Loop(workers=3, attempt=2)
    loop.epoch(8)
    assert loop.observer.take() == [block(3, attempt=2), block(3, attempt=2)]
    assert loop.observer.take() == [], "each block is returned once"
    assert loop.observer.seen == 7
    assert loop.observer.take(last=True) == [block(1, attempt=2)]


@pytest.mark.parametrize("workers, wait, left", [(2, 0.25, 0.125), (2, 0.0625, 0.0), (0, 0.25, 0.0)])
def test_what_pipediag_took_in_the_workers_is_not_the_trainings(workers: int, wait: float, left: float) -> None:
    """A quarter of a second a batch: of that, the loop waits for one of the workers' shares."""
    loop = Loop(workers=workers)
    loop.epoch(5, wait=wait, own=0.25)
    block = loop.observer.take(last=True)[0]
    assert (block.waited / block.steps, block.worker_ms) == (left, 750.0)
    assert block.seconds == block.steps * 0.5 + block.waited


def test_blocks_without_workers() -> None:
    loop = Loop(workers=0)
    loop.epoch(10)
    assert loop.observer.take() == [block(4), block(4)]


def test_from_the_second_step_on() -> None:
    loop = Loop(workers=8)
    loop.epoch(2)
    assert loop.observer.take() == []
    assert loop.observer.take(last=True) == [block(1)]


@pytest.mark.parametrize("batches", [0, 1])
def test_too_few_batches_for_a_step(batches: int) -> None:
    loop = Loop()
    loop.epoch(batches)
    assert loop.observer.take(last=True) == []


def test_blocks_continue_over_epochs() -> None:
    """They include neither validation nor anything else between epochs."""
    loop = Loop(workers=2)
    for wait in (0.25, 0.75):
        loop.epoch(4, wait)
        loop.clock.seconds += 60.0
    assert loop.observer.take(last=True) == [
        block(2),
        Observed(2, 0.75 + 1.25, 0.25 + 0.75, 750.0),
        block(2, wait=0.75),
    ]


def test_a_loop_that_is_left() -> None:
    """It asks for its next batch only in a new epoch: the end of the step before was not seen."""
    loop = Loop(workers=2)
    for _ in range(3):
        for number in range(4):
            loop.observer.asks(CPU, loop)
            loop.clock.seconds += 0.25
            if number == 0:
                loop.observer.breaks()
            else:
                loop.observer.gets(Delivery(None, "baseline", True, BatchCost(wall=0.75), 0))
            loop.clock.seconds += 0.5
        loop.observer.breaks()  # reported when the next epoch begins
        loop.clock.seconds += 60.0
    assert loop.observer.take(last=True) == [block(2)] * 3


def test_steps_on_other_batches_are_left_out() -> None:
    """While a rung is measured, the loop is fed from elsewhere."""
    loop = Loop(workers=2)
    loop.epoch(3)
    for _ in range(10):
        loop.observer.asks(CPU, loop)
        loop.clock.seconds += 9.0
        loop.observer.breaks()
    loop.epoch(3)
    assert loop.observer.take(last=True) == [block(2)] * 2


def test_the_number_of_steps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_steps, "_MOST_OBSERVED", 5)
    loop = Loop(workers=2)
    loop.epoch(20)
    assert loop.observer.take(last=True) == [block(2), block(2), block(1)]
    assert loop.observer.seen == 5


def test_batches_without_reported_cost() -> None:
    loop = Loop(workers=2)
    loop.epoch(3, made=0.0)
    assert loop.observer.take() == [block(2, made=0.0)]


def test_the_device_is_synchronized_only_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events take 1 s to complete; at the end the device is synchronized."""
    loop = Loop(workers=2)
    synchronized: list[float] = []

    class Event:
        def __init__(self) -> None:
            self.at = loop.clock.now()

        def query(self) -> bool:
            return bool(synchronized) or loop.clock.now() >= self.at + 1.0

        def elapsed_time(self, other: Event) -> float:
            return 1000.0 * (other.at - self.at)

    class Device:
        def __init__(self, device: torch.device) -> None:
            pass

        def event(self) -> Any:
            return Event()

        def synchronize(self) -> None:
            synchronized.append(loop.clock.now())

    monkeypatch.setattr(single_steps, "Device", Device)
    loop.epoch(4)
    assert loop.observer.take() == []
    loop.observer.asks(CPU, loop)
    assert loop.observer.take() == [] and not synchronized
    assert loop.observer.take(last=True) == [block(2), block(1)]
    assert len(synchronized) == 1


def test_the_device_may_become_known_later() -> None:
    """The first steps are timed by the host's clock; a step is never timed half by events."""
    loop = Loop(workers=2)
    loop.observer.asks(None, loop)
    loop.clock.seconds += 7.0
    loop.observer.breaks()
    loop.epoch(5)
    assert sum(one.steps for one in loop.observer.take(last=True)) == 4


class TestStretches:
    """Single steps, recorded until the first window, on the workers' clock."""

    def test_steps_batches_and_queue(self) -> None:
        loop = Loop(attempt=2)
        loop.ready = 3
        loop.epoch(4)
        second = START - BEGAN + 7.5
        assert loop.observer.take_stretches() == [
            Stretch(
                "baseline",
                UNTOUCHED,
                2,
                asked=[second, second + 0.75, second + 1.5],
                got=[second + 0.25, second + 1.0, second + 1.75],
                ready=[3, 3, 3],
                ended=second + 2.25,
                worker=[1, 0, 1],
                made_from=[second - 0.5, second + 0.25, second + 1.0],
                made_until=[second + 0.25, second + 1.0, second + 1.75],
                collate_ms=[187.5] * 3,
            )
        ]

    def test_each_epoch_is_a_stretch(self) -> None:
        loop = Loop()
        for _ in range(3):
            loop.epoch(4)
            loop.clock.seconds += 60.0
        assert [len(stretch.asked) for stretch in loop.observer.take_stretches()] == [3, 3, 3]

    def test_nothing_is_recorded_after_they_were_taken(self) -> None:
        loop = Loop()
        loop.epoch(4)
        assert len(loop.observer.take_stretches()) == 1
        loop.epoch(4)
        assert loop.observer.take_stretches() == []
        assert loop.observer.seen == 6

    @pytest.mark.parametrize("batches", [0, 1])
    def test_too_few_batches_for_a_stretch(self, batches: int) -> None:
        loop = Loop()
        loop.epoch(batches)
        assert loop.observer.take_stretches() == []

    def test_a_batch_that_did_not_arrive(self) -> None:
        """The loader raises an error, and the loop continues."""
        loop = Loop()
        loop.epoch(3)
        loop.observer.asks(CPU, loop)
        loop.clock.seconds += 1.0
        loop.epoch(3)
        assert [len(stretch.asked) for stretch in loop.observer.take_stretches()] == [2, 2]

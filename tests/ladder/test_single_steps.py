"""Observed steps of the loop before anything is cached, and their blocks, on a clock that the test moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from pipediag.ladder import single_steps
from pipediag.ladder.single_steps import Observer, StepRecorder
from pipediag.ladder.workers.delivery import NO_COST, Delivery
from pipediag.measure.evidence import BatchCost
from pipediag.session import UNTOUCHED, Observed, Session, Stretch

from ..clock import Clock

CPU = torch.device("cpu")
#: When the session began, and when the clock starts.
BEGAN, START = 40.0, 100.0


class Loop:
    """A training loop: each batch is waited for, then worked on."""

    def __init__(self, workers: int = 2, attempt: int = 1) -> None:
        self.clock = Clock(START)
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


@pytest.mark.parametrize(
    ("workers", "batches", "made", "blocks", "last"),
    [
        (3, 8, 0.75, [3, 3], [1]),
        (0, 10, 0.75, [4, 4], [1]),  # without workers
        (8, 2, 0.75, [], [1]),  # from the second step on
        (2, 3, 0.0, [2], []),  # batches without reported cost
        (2, 1, 0.75, [], []),  # too few batches for a step, or for a stretch
        (2, 0, 0.75, [], []),
    ],
)
def test_blocks_of_one_round_without_the_first_batch(
    workers: int, batches: int, made: float, blocks: list[int], last: list[int]
) -> None:
    loop = Loop(workers=workers, attempt=2)
    loop.epoch(batches, made=made)
    assert loop.observer.take() == [block(steps, made=made, attempt=2) for steps in blocks]
    assert loop.observer.take() == [], "each block is returned once"
    assert loop.observer.seen == max(0, batches - 1)
    assert loop.observer.take(last=True) == [block(steps, attempt=2) for steps in last]
    assert bool(loop.observer.take_stretches()) == (batches > 1)


@pytest.mark.parametrize("workers, wait, left", [(2, 0.25, 0.125), (2, 0.0625, 0.0), (0, 0.25, 0.0)])
def test_what_pipediag_took_in_the_workers_is_not_the_trainings(workers: int, wait: float, left: float) -> None:
    """A quarter of a second a batch: of that, the loop waits for one of the workers' shares."""
    loop = Loop(workers=workers)
    loop.epoch(5, wait=wait, own=0.25)
    block = loop.observer.take(last=True)[0]
    assert (block.waited / block.steps, block.worker_ms) == (left, 750.0)
    assert block.seconds == block.steps * 0.5 + block.waited


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

    def test_a_batch_that_did_not_arrive(self) -> None:
        """The loader raises an error, and the loop continues."""
        loop = Loop()
        loop.epoch(3)
        loop.observer.asks(CPU, loop)
        loop.clock.seconds += 1.0
        loop.epoch(3)
        assert [len(stretch.asked) for stretch in loop.observer.take_stretches()] == [2, 2]


def record(recorder: StepRecorder, steps: int, since: float = 100.0, cost: float = 0.25) -> None:
    """Record steps of 1 s each, half of it waiting, up to a synchronized end."""
    recorder.asks(since)
    for number in range(steps):
        now = since + number
        recorder.took(Delivery(None, "raw", True, BatchCost(wall=cost), 0, made=now + 0.5))
        recorder.gets(now + 0.5)
        recorder.asks(now + 1.0)
    recorder.ends(since + steps + 0.125)


def steps_of(stretches: list[Stretch]) -> list[int]:
    return [len(stretch.asked) for stretch in stretches]


class TestRecording:
    def test_several_stretches(self) -> None:
        recorder = StepRecorder("raw", 1, 90.0, 10)
        record(recorder, 2)
        record(recorder, 3, since=200.0)
        first, second = recorder.take(round_=4)
        assert (first.asked, first.got, first.ended) == ([10.0, 11.0], [10.5, 11.5], 12.125)
        assert (first.made_from, first.made_until) == ([10.25, 11.25], [10.5, 11.5])
        assert (second.asked, second.ended) == ([110.0, 111.0, 112.0], 113.125)
        assert (first.round, second.round) == (4, 4)

    def test_a_batch_takes_as_long_as_its_worker_was_busy(self) -> None:
        recorder = StepRecorder("baseline", 1, 90.0, 10)
        recorder.asks(100.0)
        recorder.took(Delivery(None, "baseline", True, BatchCost(wall=0.25, own=0.125), 0, made=100.5))
        recorder.asks(101.0)
        recorder.ends()
        (stretch,) = recorder.take()
        assert (stretch.made_from, stretch.made_until) == ([10.125], [10.5])

    def test_no_more_steps_than_fit(self) -> None:
        """A shortened stretch ends with its last recorded step."""
        recorder = StepRecorder("raw", 1, 0.0, 5)
        record(recorder, 3)
        record(recorder, 9, since=200.0)
        record(recorder, 1, since=300.0)
        stretches = recorder.take()
        assert steps_of(stretches) == [3, 2]
        assert (stretches[1].ended, len(stretches[1].worker)) == (202.0, 2)

    def test_a_dropped_stretch_takes_no_room(self) -> None:
        recorder = StepRecorder("raw", 1, 0.0, 4)
        recorder.asks(1.0)
        recorder.gets(1.5)
        recorder.asks(2.0)
        recorder.drop()
        record(recorder, 4)
        assert steps_of(recorder.take()) == [4]

    def test_no_stretch_without_a_step(self) -> None:
        recorder = StepRecorder("raw", 1, 0.0, 4)
        recorder.asks(1.0)
        recorder.ends(2.0)
        assert recorder.take() == []

    def test_batches_of_unknown_workers(self) -> None:
        recorder = StepRecorder("remedied", 1, 0.0, 4)
        recorder.asks(1.0)
        recorder.took(Delivery(None, "remedied", True, NO_COST, 0, made=float("-inf")))
        recorder.asks(2.0)
        recorder.ends()
        (stretch,) = recorder.take()
        assert stretch.worker == []
        json.dumps(vars(stretch), allow_nan=False)

    def test_times_are_rounded(self) -> None:
        recorder = StepRecorder("raw", 1, 1 / 3, 4)
        record(recorder, 2, since=100 / 7, cost=1 / 7)
        (stretch,) = recorder.take()
        times = [*stretch.asked, *stretch.got, *stretch.made_from, *stretch.made_until, stretch.ended]
        assert times == [round(time, 5) for time in times]
        assert max(map(len, map(str, times))) <= len("13.95238")


class TestLimits:
    def test_each_rung_of_a_long_session_has_steps(self) -> None:
        """Twenty rungs in three passes with ten windows each: later rungs have fewer steps."""
        session = Session()
        for attempt in range(1, 4):
            for _ in range(10):
                for rung in map(str, range(20)):
                    recorder = StepRecorder.within(session, rung, attempt)
                    record(recorder, 1000)
                    session.stretches += recorder.take()
        steps = {(one.attempt, one.rung): 0 for one in session.stretches}
        for one in session.stretches:
            steps[one.attempt, one.rung] += len(one.asked)
        assert 3500 < sum(steps.values()) <= 4000
        assert sum(len(one.worker) for one in session.stretches) <= 4000
        assert {rung for attempt, rung in steps if attempt == 1} == {*map(str, range(20))}
        assert max(steps.values()) <= 300
        assert len(json.dumps(session.to_dict()["stretches"])) < 400_000

    def test_a_rung_has_steps_of_several_windows(self) -> None:
        session = Session()
        for _ in range(5):
            recorder = StepRecorder.within(session, "raw", 1)
            record(recorder, 1000)
            session.stretches += recorder.take()
        assert steps_of(session.stretches) == [100, 100, 100]

    def test_another_pass_has_its_own(self) -> None:
        session = Session(stretches=[Stretch("raw", attempt=1, asked=[0.0] * 300)])
        for attempt, found in ((1, []), (2, [100])):
            recorder = StepRecorder.within(session, "raw", attempt)
            record(recorder, 1000)
            assert steps_of(recorder.take()) == found

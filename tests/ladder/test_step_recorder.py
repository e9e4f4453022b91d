"""Which steps are recorded, and how many: a session must stay small however long the measurement is."""

from __future__ import annotations

import json

from pipediag.ladder.single_steps import StepRecorder
from pipediag.ladder.workers.delivery import NO_COST, Delivery
from pipediag.measure.evidence import BatchCost
from pipediag.session import Session, Stretch


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

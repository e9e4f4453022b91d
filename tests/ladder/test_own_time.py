"""pipediag's own time in a worker: what counts for a batch, and when inspection has to wait."""

from __future__ import annotations

import pytest

from pipediag.ladder.workers import worker_state as module
from pipediag.ladder.workers.worker_state import ALLOWANCE, SHARE, OwnTime


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def batch(own: OwnTime, seconds: float, busy: float) -> float:
    own.seconds += seconds
    return own.end(busy)


class TestOfABatch:
    def test_is_the_sum_of_what_was_measured(self, clock: Clock) -> None:
        own = OwnTime()
        for seconds in (0.25, 0.5):
            with own.measured():
                clock.seconds += seconds
            clock.seconds += 1.0
        assert own.seconds == 0.75
        assert own.end(10.0) == 0.75
        assert own.seconds == 0.0

    def test_counts_if_it_fails(self, clock: Clock) -> None:
        own = OwnTime()
        with pytest.raises(OSError), own.measured():
            clock.seconds += 0.25
            raise OSError
        assert own.seconds == 0.25

    def test_is_no_more_than_the_batch(self) -> None:
        assert batch(OwnTime(), 2.0, busy=0.5) == 0.5


class TestBound:
    def test_a_first_allowance(self) -> None:
        own = OwnTime()
        batch(own, 0.75 * ALLOWANCE, busy=0.5)
        assert own.affordable
        own.seconds = 0.5 * ALLOWANCE
        assert not own.affordable, "within a batch as well"

    def test_then_a_share_of_the_workers_time(self) -> None:
        own = OwnTime()
        batch(own, 2 * ALLOWANCE, busy=1.0)
        waited = 1.0
        while not own.affordable:
            batch(own, 0.0, busy=1.0)
            waited += 1.0
        assert waited == pytest.approx(2 * ALLOWANCE / SHARE, abs=1.0)

    def test_stays_within_it_over_a_long_run(self) -> None:
        own, spent, busy = OwnTime(), 0.0, 0.0
        for _ in range(10_000):
            inspects = own.affordable
            spent += batch(own, 0.01 if inspects else 0.0, busy=0.1)
            busy += 0.1
        assert 0.009 * busy < spent <= SHARE * busy + 0.01

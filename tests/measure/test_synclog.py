"""Which synchronizing calls a log reports, how often they happen, and in which order."""

from __future__ import annotations

import pytest

from pipediag.errors import UsageError
from pipediag.measure.syncs import SyncLog
from pipediag.session import SyncCall

READ = ("item()", "train.py:10", "total += loss.item()", "Keep it there.")
COPY = ("to()", "train.py:5", "x = x.to(device)", "Pin it.")


def log_of(*steps: list[tuple[tuple[str, str, str, str], float | None]]) -> SyncLog:
    """A log of steps, each a list of calls and the seconds they took."""
    log = SyncLog()
    for calls in steps:
        for call, seconds in calls:
            log.note(*call, seconds)
        log.step()
    return log


def test_one_call_in_every_step() -> None:
    log = log_of([(READ, 0.25)], [(READ, 0.5)])
    assert log.steps == 2
    assert log.report() == [SyncCall("item()", "train.py:10", "total += loss.item()", 1.0, 375.0, "Keep it there.")]


def test_several_times_a_step() -> None:
    (sync,) = log_of([(READ, 0.25), (READ, 0.25)], [(READ, 0.5)]).report()
    assert (sync.per_step, sync.ms_per_step) == (1.5, 500.0)


def test_no_calls() -> None:
    assert log_of([], []).report() == []


def test_costliest_first_and_unknown_cost_last() -> None:
    cheap = ("cpu()", "train.py:7", "", "")
    unknown = ("a call into torch", "train.py:1", "", "")
    often = ("a call into torch", "train.py:9", "", "")
    step = [(cheap, 0.0), (unknown, None), (READ, 0.25), (often, None), (often, None), (COPY, 0.5)]
    found = log_of(step).report()
    assert [sync.where for sync in found] == [
        "train.py:5",
        "train.py:10",
        "train.py:7",
        "train.py:9",  # unknown as well, but twice a step
        "train.py:1",
    ]
    assert [sync.ms_per_step for sync in found] == [500.0, 250.0, 0.0, None, None]


def test_equal_cost_in_the_order_of_places() -> None:
    other = ("item()", "train.py:02", "", "")
    assert [s.where for s in log_of([(READ, 0.25), (other, 0.25)]).report()] == ["train.py:02", "train.py:10"]


def test_one_unknown_duration_makes_the_sum_unknown() -> None:
    (sync,) = log_of([(READ, 0.25)], [(READ, None)]).report()
    assert (sync.per_step, sync.ms_per_step) == (1.0, None)


def test_the_same_call_at_two_lines_and_two_calls_at_one_line() -> None:
    elsewhere = ("item()", "train.py:11", "print(loss.item())", "")
    beside = ("cpu()", "train.py:10", "", "")
    found = log_of([(READ, 0.25), (elsewhere, 0.5), (beside, 0.125)]).report()
    assert [(s.call, s.where) for s in found] == [
        ("item()", "train.py:11"),
        ("item()", "train.py:10"),
        ("cpu()", "train.py:10"),
    ]


class TestLeast:
    """Occasional calls are left out, however costly or frequent they are in their step."""

    STEPS = ([(READ, 1.0), (READ, 1.0), (READ, 1.0), (READ, 1.0)], [(COPY, 0.125)], [(COPY, 0.125)], [(COPY, 0.125)])

    def test_half_of_the_steps_by_default(self) -> None:
        assert [s.call for s in log_of(*self.STEPS).report()] == ["to()"]

    def test_a_share_that_is_reached_exactly_counts(self) -> None:
        assert [s.call for s in log_of(*self.STEPS).report(least=0.75)] == ["to()"]
        assert log_of(*self.STEPS).report(least=0.76) == []

    def test_a_share_of_zero_reports_everything(self) -> None:
        found = log_of(*self.STEPS).report(least=0)
        assert [(s.call, s.per_step, s.ms_per_step) for s in found] == [("item()", 1.0, 1000.0), ("to()", 0.75, 93.75)]


def test_calls_after_the_last_step_do_not_count() -> None:
    log = log_of([(READ, 0.25)])
    log.note(*READ, 0.25)
    log.note(*COPY, 0.25)
    (sync,) = log.report(least=0)
    assert (sync.call, sync.per_step, sync.ms_per_step) == ("item()", 1.0, 250.0)
    log.step()
    assert [(s.call, s.per_step) for s in log.report()] == [("item()", 1.0), ("to()", 0.5)]


def test_no_report_without_a_step() -> None:
    log = SyncLog()
    log.note(*READ, 0.25)
    with pytest.raises(UsageError, match=r"call step\(\)"):
        log.report()

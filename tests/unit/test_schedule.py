"""The interleaved schedule: rounds, order, resuming, giving up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.measure.schedule import MAX_FAILURES, MIN_ROUNDS, Schedule
from pipediag.session import CONTROLS, RUNGS, Session, Window

ALL = [*RUNGS, *CONTROLS]


def never(session: Session) -> bool:
    return False


def always(session: Session) -> bool:
    return True


def step(schedule: Schedule) -> str | None:
    """One window of the rung that is next."""
    rung = schedule.next_rung()
    if rung is not None:
        schedule.session.windows.append(Window(rung, schedule.round_of(rung), 4, 1.0))
    return rung


def walk(schedule: Schedule, count: int) -> list[str]:
    taken = [step(schedule) for _ in range(count)]
    assert None not in taken
    return [rung for rung in taken if rung is not None]


def rounds_of(taken: list[str], size: int) -> list[list[str]]:
    return [taken[i : i + size] for i in range(0, len(taken), size)]


def test_every_round_is_a_permutation() -> None:
    rounds = rounds_of(walk(Schedule(ALL, Session(), never), 8 * len(ALL)), len(ALL))
    assert all(sorted(one) == sorted(ALL) for one in rounds)


def test_order_varies() -> None:
    rounds = rounds_of(walk(Schedule(ALL, Session(), never), 8 * len(ALL)), len(ALL))
    assert len({tuple(one) for one in rounds}) == len(rounds)
    assert len({one[0] for one in rounds}) > 2


def test_the_first_round_begins_with_the_baseline() -> None:
    """An early end then leaves the most useful windows: slowest first."""
    assert walk(Schedule(ALL, Session(), never), 3) == ["baseline", "supply", "device+load"]
    assert walk(Schedule(RUNGS, Session(), never), 7) == list(reversed(RUNGS))


def test_order_is_the_same_in_every_process() -> None:
    first, second = Schedule(ALL, Session(), never), Schedule(ALL, Session(), never)
    assert [first.order(i) for i in range(6)] == [second.order(i) for i in range(6)]


def test_windows_carry_their_round() -> None:
    schedule = Schedule(RUNGS, Session(), never)
    walk(schedule, 21)
    for rung in RUNGS:
        assert [w.round for w in schedule.session.windows_of(rung)] == [0, 1, 2]


@pytest.mark.parametrize("min_rounds", [1, MIN_ROUNDS, 5])
def test_stops_when_settled_but_not_before_the_least_rounds(min_rounds: int) -> None:
    schedule = Schedule(RUNGS, Session(), always, min_rounds)
    walk(schedule, min_rounds * len(RUNGS))
    assert schedule.next_rung() is None


def test_goes_on_while_unsettled_and_asks_between_rounds_only() -> None:
    asked: list[int] = []

    def after_five(session: Session) -> bool:
        asked.append(len(session.windows))
        return len(session.windows) >= 5 * len(RUNGS)

    schedule = Schedule(RUNGS, Session(), after_five)
    walk(schedule, 5 * len(RUNGS))
    assert schedule.next_rung() is None
    assert asked == [3 * len(RUNGS), 4 * len(RUNGS), 5 * len(RUNGS)]


def test_asking_changes_nothing() -> None:
    schedule = Schedule(ALL, Session(), never)
    walk(schedule, 12)
    assert schedule.next_rung() == schedule.next_rung()


@given(st.integers(0, 40))
def test_resumes_where_an_earlier_pass_ended(ended_after: int) -> None:
    whole = Schedule(ALL, Session(), never)
    expected = walk(whole, 45)
    session = Session()
    walk(Schedule(ALL, session, never), ended_after)
    copy = Session.from_dict(session.to_dict())
    assert walk(Schedule(ALL, copy, never), 45 - ended_after) == expected[ended_after:]


def test_rungs_that_lag_catch_up() -> None:
    session = Session(windows=[Window(rung, r, 4, 1.0) for r in range(2) for rung in RUNGS if rung != "raw"])
    schedule = Schedule(RUNGS, session, always)
    assert walk(schedule, 2) == ["raw", "raw"]


def test_withdraw() -> None:
    schedule = Schedule(ALL, Session(), never)
    schedule.withdraw("raw")
    schedule.withdraw("raw")
    assert "raw" not in schedule.rungs
    assert "raw" not in walk(schedule, 30)


def test_withdrawing_every_rung_ends_it() -> None:
    schedule = Schedule(["raw"], Session(), never)
    schedule.withdraw("raw")
    assert schedule.next_rung() is None


def test_the_rungs_property_is_a_copy() -> None:
    schedule = Schedule(RUNGS, Session(), never)
    schedule.rungs.clear()
    assert schedule.rungs == list(RUNGS)


def test_failing_often_withdraws() -> None:
    schedule = Schedule(RUNGS, Session(), never)
    assert [schedule.failed("raw") for _ in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [True]
    assert "raw" not in schedule.rungs
    assert not schedule.failed("warm")


def test_a_rung_that_fails_is_tried_again_at_once() -> None:
    schedule = Schedule(RUNGS, Session(), never)
    rung = schedule.next_rung()
    assert rung is not None
    schedule.failed(rung)
    assert schedule.next_rung() == rung


@pytest.mark.parametrize("rungs", [["device", "host"], ["supply"]])
def test_without_a_baseline(rungs: list[str]) -> None:
    assert walk(Schedule(rungs, Session(), never), len(rungs)) == list(reversed(rungs))

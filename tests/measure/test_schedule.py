"""The interleaved schedule: rounds, order, resuming, giving up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.measure.schedule import MAX_FAILURES, Schedule
from pipediag.session import CONTROLS, RUNGS, Session, Window

ALL = [*RUNGS, *CONTROLS]

Choose = Callable[[Session], list[str]]


def everything(session: Session) -> list[str]:
    return ALL


def nothing(session: Session) -> list[str]:
    """Choose every rung once, and no further round."""
    return [] if session.windows else ALL


def in_turn(*rounds: list[str]) -> Choose:
    """Return a function that chooses every rung, then the rungs of each further round, then none."""

    def choose(session: Session) -> list[str]:
        if not session.windows:
            return ALL
        done = max(w.round for w in session.windows)
        return rounds[done] if done < len(rounds) else []

    return choose


def step(schedule: Schedule) -> str | None:
    """Record a window of the next rung."""
    rung = schedule.next_rung()
    if rung is not None:
        schedule.session.windows.append(Window(rung, schedule.round, 4, 1.0))
    return rung


def walk(schedule: Schedule, count: int) -> list[str]:
    taken = [step(schedule) for _ in range(count)]
    assert None not in taken
    return [rung for rung in taken if rung is not None]


def to_the_end(schedule: Schedule, most: int = 100) -> list[list[str]]:
    """Return all rounds until the schedule ends, each in alphabetical order."""
    for _ in range(most):
        if step(schedule) is None:
            break
    windows = schedule.session.windows
    return [sorted(w.rung for w in windows if w.round == i) for i in range(max(w.round for w in windows) + 1)]


def rounds_of(taken: list[str], size: int) -> list[list[str]]:
    return [taken[i : i + size] for i in range(0, len(taken), size)]


def test_every_round_is_a_permutation() -> None:
    rounds = rounds_of(walk(Schedule(ALL, Session(), everything), 8 * len(ALL)), len(ALL))
    assert all(sorted(one) == sorted(ALL) for one in rounds)


def test_every_second_round_is_reversed() -> None:
    """Drift then affects neighbours equally."""
    first, _, third, fourth = rounds_of(walk(Schedule(ALL, Session(), everything), 4 * len(ALL)), len(ALL))
    assert (third, fourth) == (first, first[::-1])


def test_the_second_round_measures_the_loop_and_its_ceiling_early() -> None:
    """Neither follows its first window back to back: a budget that ends soon leaves both from two separate times."""
    first, second, *_ = rounds_of(walk(Schedule(ALL, Session(), everything), 4 * len(ALL)), len(ALL))
    assert second[1:3] == ["baseline", "device"]
    assert second[:1] + second[3:] == [rung for rung in first[::-1] if rung not in ("baseline", "device")]


def test_the_most_informative_rungs_come_first() -> None:
    """An early end then leaves the windows that tell whether the loop starves, on which side, and where."""
    assert walk(Schedule(ALL, Session(), everything), 3) == ["device", "worker", "baseline"]
    assert walk(Schedule(RUNGS, Session(), everything), 7)[3:] == ["host", "sample", "raw", "warm"]


def test_order_is_the_same_in_every_process() -> None:
    assert walk(Schedule(ALL, Session(), everything), 54) == walk(Schedule(ALL, Session(), everything), 54)


def test_windows_carry_their_round() -> None:
    schedule = Schedule(RUNGS, Session(), lambda session: list(RUNGS))
    walk(schedule, 21)
    for rung in RUNGS:
        assert [w.round for w in schedule.session.windows_of(rung)] == [0, 1, 2]


class TestChoosing:
    """The rungs of each round."""

    def test_the_first_round_is_chosen_too(self) -> None:
        schedule = Schedule(RUNGS, Session(), lambda session: [] if session.windows else ["device", "baseline"])
        assert to_the_end(schedule) == [["baseline", "device"]]

    def test_every_rung_has_one_window_before_it_ends(self) -> None:
        assert to_the_end(Schedule(RUNGS, Session(), nothing)) == [sorted(RUNGS)]

    def test_later_rounds_have_only_the_chosen_rungs(self) -> None:
        chosen = [["raw", "sample"], ["baseline"], ["device", "raw", "supply"]]
        assert to_the_end(Schedule(ALL, Session(), in_turn(*chosen))) == [sorted(ALL), *map(sorted, chosen)]

    def test_it_ends_at_the_first_empty_round(self) -> None:
        rounds = to_the_end(Schedule(ALL, Session(), in_turn(["raw"], [], ["raw"])))
        assert rounds == [sorted(ALL), ["raw"]]

    def test_it_stays_ended(self) -> None:
        schedule = Schedule(RUNGS, Session(), nothing)
        to_the_end(schedule)
        assert [schedule.next_rung() for _ in range(3)] == [None] * 3

    def test_cuts_may_be_added_later(self) -> None:
        chosen = [["raw", "transform:2"], ["transform:1", "transform:2"]]
        assert to_the_end(Schedule(RUNGS, Session(), in_turn(*chosen)))[1:] == chosen

    def test_other_rungs_may_not_be_added(self) -> None:
        """Rungs that were not requested are not measured, even if the analysis chooses them."""
        schedule = Schedule(["device", "baseline"], Session(), in_turn(["raw", "device", "supply"]))
        assert to_the_end(schedule) == [["baseline", "device"], ["device"]]
        assert [schedule.allows(name) for name in ("device", "raw", "supply", "transform:3")] == [
            True,
            False,
            False,
            True,
        ]

    def test_each_round_is_chosen_once(self) -> None:
        asked: list[int] = []

        def five(session: Session) -> list[str]:
            asked.append(len(session.windows))
            return list(RUNGS) if len(session.windows) < 5 * len(RUNGS) else []

        assert len(to_the_end(Schedule(RUNGS, Session(), five))) == 5
        assert asked == [i * len(RUNGS) for i in range(6)]

    def test_only_earlier_rounds_are_considered(self) -> None:
        """Otherwise the round's rungs would change while it is measured."""
        seen: list[set[int]] = []

        def choose(session: Session) -> list[str]:
            seen.append({w.round for w in session.windows})
            assert session.tool_version == "1.2.3"
            return ["raw", "device"] if session.windows else ALL

        session = Session(tool_version="1.2.3")
        walk(Schedule(RUNGS, session, choose), 12)
        walk(Schedule(RUNGS, Session.from_dict(session.to_dict()), choose), 2)
        assert seen == [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}]

    def test_the_session_keeps_its_windows(self) -> None:
        def spoils(session: Session) -> list[str]:
            found = [] if session.windows else ALL
            session.windows.clear()
            return found

        schedule = Schedule(RUNGS, Session(), spoils)
        to_the_end(schedule)
        assert len(schedule.session.windows) == len(RUNGS)


def test_next_rung_changes_nothing() -> None:
    schedule = Schedule(ALL, Session(), everything)
    walk(schedule, 12)
    assert schedule.next_rung() == schedule.next_rung()


@given(st.integers(0, 40))
def test_resumes_where_an_earlier_pass_ended(ended_after: int) -> None:
    expected = walk(Schedule(ALL, Session(), everything), 45)
    session = Session()
    walk(Schedule(ALL, session, everything), ended_after)
    copy = Session.from_dict(session.to_dict())
    assert walk(Schedule(ALL, copy, everything), 45 - ended_after) == expected[ended_after:]


@given(st.integers(0, 14))
def test_resumes_within_a_round_of_few_rungs(ended_after: int) -> None:
    choose = in_turn(["raw", "transform:1", "sample"], ["transform:1", "transform:2"], ["baseline"])
    expected = walk(Schedule(RUNGS, Session(), choose), 13)
    session = Session()
    walk(Schedule(RUNGS, session, choose), min(ended_after, 13))
    resumed = Schedule(RUNGS, Session.from_dict(session.to_dict()), choose)
    assert walk(resumed, 13 - min(ended_after, 13)) == expected[ended_after:]
    assert resumed.next_rung() is None


def test_a_rung_that_lags_catches_up() -> None:
    session = Session(windows=[Window(rung, 0, 4, 1.0) for rung in RUNGS if rung != "raw"])
    assert to_the_end(Schedule(RUNGS, session, nothing)) == [sorted(RUNGS)]


def test_withdraw() -> None:
    schedule = Schedule(ALL, Session(), everything)
    schedule.withdraw("raw")
    schedule.withdraw("raw")
    assert "raw" not in schedule.rungs
    assert not schedule.allows("raw")
    assert "raw" not in walk(schedule, 30)


def test_withdraw_within_a_round() -> None:
    schedule = Schedule(ALL, Session(), in_turn(["raw", "transform:1", "sample"], ["raw", "transform:1"]))
    walk(schedule, len(ALL))
    for name in ("transform:1", "raw"):
        schedule.withdraw(name)
    assert to_the_end(schedule) == [sorted(ALL), ["sample"]]


def test_withdrawing_every_rung_ends_the_schedule() -> None:
    schedule = Schedule(["raw"], Session(), everything)
    schedule.withdraw("raw")
    assert schedule.next_rung() is None


def test_the_rungs_property_is_a_copy() -> None:
    schedule = Schedule(RUNGS, Session(), everything)
    schedule.rungs.clear()
    assert schedule.rungs == list(RUNGS)


@pytest.mark.parametrize("rung", ["raw", "transform:2"])
def test_failing_often_withdraws(rung: str) -> None:
    schedule = Schedule(RUNGS, Session(), everything)
    assert [schedule.failed(rung) for _ in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [True]
    assert not schedule.allows(rung)
    assert not schedule.failed("warm")
    assert schedule.allows("warm")


def test_a_rung_that_fails_is_tried_again_at_once() -> None:
    schedule = Schedule(RUNGS, Session(), everything)
    rung = schedule.next_rung()
    assert rung is not None
    schedule.failed(rung)
    assert schedule.next_rung() == rung


@pytest.mark.parametrize("rungs", [["device", "host"], ["supply"]])
def test_without_a_baseline(rungs: list[str]) -> None:
    assert walk(Schedule(rungs, Session(), everything), len(rungs)) == rungs

"""The interleaved schedule: rounds, order, resuming, giving up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def test_rounds() -> None:
    """Each has every rung. Every second one is reversed: drift then affects neighbours equally.

    The second one measures the loop and its ceiling early. Neither follows its first window back to back: a budget that
    ends soon leaves both from two separate times.
    """
    first, second, third, fourth = rounds_of(walk(Schedule(ALL, Session(), everything), 4 * len(ALL)), len(ALL))
    assert sorted(first) == sorted(ALL)
    assert (third, fourth) == (first, first[::-1])
    assert second[1:3] == ["baseline", "device"]
    assert second[:1] + second[3:] == [rung for rung in first[::-1] if rung not in ("baseline", "device")]


def test_the_most_informative_rungs_come_first() -> None:
    """An early end then leaves the windows that tell whether the loop starves, on which side, and where."""
    assert walk(Schedule(ALL, Session(), everything), 3) == ["device", "worker", "baseline"]
    assert walk(Schedule(RUNGS, Session(), everything), 7)[3:] == ["host", "sample", "raw", "warm"]


class TestChoosing:
    """The rungs of each round."""

    @pytest.mark.parametrize(
        ("rungs", "choose", "rounds"),
        [
            (RUNGS, lambda session: [] if session.windows else ["device", "baseline"], [["baseline", "device"]]),
            (RUNGS, nothing, [RUNGS]),
            (
                ALL,
                in_turn(["raw", "sample"], ["baseline"], ["device"]),
                [ALL, ["raw", "sample"], ["baseline"], ["device"]],
            ),
            # It ends at the first empty round.
            (ALL, in_turn(["raw"], [], ["raw"]), [ALL, ["raw"]]),
            # Cuts may be added later, but no other rungs that were not requested, even if the analysis chooses them.
            (RUNGS, in_turn(["raw", "transform:2"], ["transform:1"]), [RUNGS, ["raw", "transform:2"], ["transform:1"]]),
            (["device", "baseline"], in_turn(["raw", "device", "supply"]), [["device", "baseline"], ["device"]]),
        ],
    )
    def test_rungs_of_each_round(self, rungs: Sequence[str], choose: Choose, rounds: list[Sequence[str]]) -> None:
        schedule = Schedule(rungs, Session(), choose)
        assert to_the_end(schedule) == [sorted(one) for one in rounds]
        assert [schedule.next_rung() for _ in range(3)] == [None] * 3, "it stays ended"

    def test_what_is_allowed(self) -> None:
        schedule = Schedule(["device", "baseline"], Session(), everything)
        assert schedule.allows("device") and schedule.allows("transform:3")
        assert not schedule.allows("raw") and not schedule.allows("supply")

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
    schedule = Schedule(["raw"], Session(), everything)
    schedule.withdraw("raw")
    assert schedule.next_rung() is None


def test_withdraw_within_a_round() -> None:
    schedule = Schedule(ALL, Session(), in_turn(["raw", "transform:1", "sample"], ["raw", "transform:1"]))
    walk(schedule, len(ALL))
    for name in ("transform:1", "raw"):
        schedule.withdraw(name)
    assert to_the_end(schedule) == [sorted(ALL), ["sample"]]


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

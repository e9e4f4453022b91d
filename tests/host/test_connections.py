"""The connections of one pass: whose session is whose, who leads, and which failure came first."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipediag.host.channel import Listener, Receiver, Sender, connected
from pipediag.host.connections import Job, Lines
from pipediag.measure.schedule import Plan
from pipediag.session import Session, Window
from pipediag.session.events import Finished, FirstBatch, Story

WINDOW = asdict(Window("baseline", 0, 10, 1.0))


class Pass:
    """A pass whose processes are played by the test."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        self.path = str(folder / "members")
        self.job = Job(Session())
        self.shown: list[tuple[object, Session]] = []
        self.child = Sender(writing)
        progress = lambda event, session: self.shown.append((event, session))  # noqa: E731
        self.lines = Lines(Receiver(reading), Listener(self.path), Plan(budget=30.0), self.job, progress, 300.0)
        self._senders = [self.child]

    def member(self, rank: int | None = None) -> Sender:
        sender = connected(self.path)
        sender.send("member", {"pid": os.getpid(), "rank": rank})
        self._senders.append(sender)
        return sender

    def take(self) -> None:
        self.lines.take(0.0)

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self.lines.end()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Pass]:
    played = Pass(tmp_path)
    yield played
    played.close()


def trains(sender: Sender, rank: int | None, local_rank: int | None = None) -> None:
    """Send what a process sends once its training loader is known."""
    sender.send("first-batch", {})
    sender.send("environment", {"from": rank})
    if rank is not None:
        sender.send("rank", {"rank": rank, "world_size": 4, "local_rank": local_rank})
    sender.send("loader", {"where": f"train.py:{rank}"})
    sender.send("window", WINDOW)


def test_every_rank_has_a_session_and_the_first_one_leads(played: Pass) -> None:
    members = {rank: played.member(rank) for rank in (1, 0)}
    for rank, member in members.items():
        trains(member, rank)
    played.child.send("ended", asdict(Story()))
    played.take()
    sessions = played.job.sessions
    assert set(sessions) == {0, 1} and sessions[0] is played.job.session
    for rank, session in sessions.items():
        assert session.loader is not None and session.loader.where == f"train.py:{rank}"
        assert session.environment == {"from": rank} and len(session.windows) == 1
        assert [one.rank for one in session.ranks] == [rank]
    assert played.lines.leader.session is played.job.session and played.lines.close().batches


def test_only_the_leaders_progress_is_shown(played: Pass) -> None:
    leading, other = played.member(0), played.member(1)
    trains(leading, 0)
    played.take()
    trains(other, 1)
    other.send("progress", {"rung": "device", "round": 1})
    played.take()
    assert {id(session) for _, session in played.shown} == {id(played.job.session)}
    assert sum(isinstance(event, FirstBatch) for event, _ in played.shown) >= 1


def test_the_first_rank_of_this_machine_leads(played: Pass) -> None:
    """Rank 0 runs on another machine."""
    for rank, local in ((3, 1), (2, 0)):
        trains(played.member(rank), rank, local)
    played.take()
    assert played.job.sessions[2] is played.job.session and played.lines.leader.rank == 2


def test_ranks_of_another_host_have_the_sessions_that_rank_0_has_received(played: Pass) -> None:
    for rank in (0, 1):
        trains(played.member(rank), rank)
    leading = played.member(0)
    for size in (1, 2):  # a later pass has seen more
        for rank in (1, 2):
            session = Session(windows=[Window(**WINDOW)] * size).to_dict()
            leading.send("elsewhere", {"rank": rank, "session": session})
        played.take()
        assert [len(played.job.sessions[rank].windows) for rank in range(3)] == [1, 1, size]


def test_a_host_that_does_not_answer_is_not_waited_for(played: Pass) -> None:
    trains(member := played.member(2), 2)
    played.take()
    assert played.lines.without_a_rank() == 0.0
    member.send("cut", {})
    played.take()
    assert played.lines.without_a_rank() == math.inf
    member.close()  # it is ended
    played.take()
    assert played.lines.cause(Story()).error == "rank 2: another host of the job does not answer"


def test_the_child_itself_is_a_rank(played: Pass) -> None:
    """A framework may relaunch the script for the other ranks."""
    trains(played.child, 0, 0)
    trains(played.member(1), 1, 1)
    played.take()
    assert played.lines.leader.is_child and played.job.sessions[0] is played.job.session


def test_a_process_that_trains_by_itself(played: Pass) -> None:
    """It is measured instead of the child, which only tests; a second one is left out."""
    played.child.send("first-batch", {})
    for _ in range(2):
        trains(played.member(), None)
    played.take()
    session = played.job.session
    assert len(session.windows) == 1 and not played.job.sessions and not played.lines.leader.is_child


def test_a_script_without_members_is_its_own_leader(played: Pass) -> None:
    played.child.send("environment", {"cores": 2})
    played.child.send("ended", asdict(Story(optimizer_steps=3)))
    played.take()
    assert played.lines.close().story.optimizer_steps == 3
    assert played.job.session.environment == {"cores": 2}


def test_a_later_pass_goes_on_with_the_session_of_each_rank(played: Pass) -> None:
    for rank in (0, 1):
        trains(played.member(rank), rank)
    played.take()
    order = json.loads(json.dumps(played.job.to_dict()))
    assert {rank: len(session["windows"]) for rank, session in order["sessions"].items()} == {"0": 1, "1": 1}
    assert order["session"]["ranks"][0]["rank"] == 0 and order["fresh"]["windows"] == []


def test_files_of_all_are_gathered(played: Pass) -> None:
    for number in range(2):
        member = played.member(number)
        trains(member, number)
        member.send("wrote", {"path": f"{number}.pt", "overwrote": False})
    played.member().send("wrote", {"path": "log", "overwrote": False})
    played.take()
    assert played.job.whole().script.wrote == ["0.pt", "1.pt", "log"]


class TestFailures:
    LAUNCHER = asdict(Story(error="ChildFailedError: train.py FAILED"))

    def ends(self, sender: Sender, error: str = "") -> None:
        sender.send("ended", asdict(Story(error=error, rung="device" if error else None)))
        sender.close()

    def test_the_first_rank_that_failed_is_named(self, played: Pass, clock: list[float]) -> None:
        members = {rank: played.member(rank) for rank in (0, 1, 2)}
        for rank, error in ((2, "ValueError: no"), (0, "RuntimeError: Connection closed by peer")):
            self.ends(members[rank], error)
            clock[0] += 1.0
            played.take()
        played.child.send("ended", self.LAUNCHER)
        played.take()
        story = played.lines.cause(played.lines.close().story)
        assert (story.error, story.rung) == ("rank 2: ValueError: no", "device")

    def test_one_that_is_killed_goes_before_those_that_lose_it(self, played: Pass) -> None:
        """This holds even if both ends are seen at once; no rung is blamed."""
        killed, other = played.member(1), played.member(0)
        self.ends(other, "RuntimeError: Connection closed by peer")
        killed.close()
        played.take()
        story = played.lines.cause(Story(rung="device"))
        assert story.error.startswith("rank 1: it ended without a word") and story.rung is None

    @pytest.mark.parametrize(("said", "words"), [("", "it ended with exit code 3"), ("no data", "no data")])
    def test_a_rank_that_leaves_goes_before_those_that_lose_it(
        self, played: Pass, clock: list[float], said: str, words: str
    ) -> None:
        leaves, other = played.member(1), played.member(0)
        leaves.send("ended", asdict(Story(said=said, exit_code=3)))
        played.take()
        clock[0] = 1.0
        self.ends(other, "RuntimeError: Connection closed by peer")
        played.take()
        assert played.lines.without_a_rank() == 1.0
        story = played.lines.cause(Story(rung="device"))
        assert (story.error, story.rung) == (f"rank 1: {words}", None)

    def test_a_helper_that_leaves_has_not_failed(self, played: Pass) -> None:
        played.member().send("ended", asdict(Story(exit_code=1)))
        played.take()
        assert played.lines.cause(Story(error="ValueError: no")).error == "ValueError: no"

    def test_without_a_member_that_failed_the_launchers_words_stand(self, played: Pass) -> None:
        self.ends(played.member(0))
        played.child.send("ended", self.LAUNCHER)
        played.take()
        assert played.lines.cause(Story()).error == "ChildFailedError: train.py FAILED"

    @pytest.mark.parametrize(
        ("events", "seconds"),
        [
            # A rank fails, or ends well; or a process fails that is none.
            ([(0.0, "fails", 1)], 20.0),
            ([(0.0, "ends", 1)], 0.0),
            ([(0.0, "fails", None)], 0.0),
            # A rank that was started anew, and one that fails again after its restart.
            ([(0.0, "fails", 1), (1.0, "joins", 1)], 0.0),
            ([(0.0, "fails", 1), (1.0, "joins", 1), (2.0, "fails", 1)], 18.0),
            # A late rank is no restart: rank 0 dies before rank 7 has joined, which then waits for it for ever, nor is
            # it one when those that waited have lost it.
            ([(0.0, "joins", 1), (0.0, "joins", 2), (0.0, "fails", 0), (1.0, "joins", 7)], 20.0),
            ([(0.0, "joins", 1), (0.0, "fails", 0), (1.0, "joins", 7), (2.0, "is lost", 1)], 20.0),
            # A job that is started again with fewer ranks.
            (
                [
                    *((0.0, "joins", rank) for rank in range(3)),
                    (1.0, "fails", 2),
                    *((1.0, "ends", rank) for rank in range(2)),
                    *((3.0, "joins", rank) for rank in range(2)),
                ],
                0.0,
            ),
        ],
    )
    def test_how_long_a_job_goes_on_without_a_rank(
        self, played: Pass, clock: list[float], events: list[tuple[float, str, int | None]], seconds: float
    ) -> None:
        members: dict[int | None, Sender] = {}
        for at, what, rank in events:
            clock[0] = at
            if what == "joins" or rank not in members:
                members[rank] = played.member(rank)
            if what == "is lost":
                members[rank].close()
            elif what != "joins":
                self.ends(members[rank], "E" * (what == "fails"))
            played.take()
        clock[0] = 20.0
        assert played.lines.without_a_rank() == seconds


def test_a_launcher_that_goes_on_after_the_analysis_is_ended(played: Pass, clock: list[float]) -> None:
    member = played.member(0)
    trains(member, 0)
    finished: dict[str, Any] = asdict(Finished(reason="settled"))
    member.send("finished", finished)
    member.send("ended", asdict(Story()))
    member.close()
    played.take()
    assert not played.lines.overdue()
    clock[0] = 2.5
    assert played.lines.overdue() and not played.lines.overdue()
    outcome = played.lines.close()
    assert outcome.reason == "settled" and not outcome.hung

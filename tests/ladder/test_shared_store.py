"""What rank 0 sets reaches every rank, what they set reaches rank 0, and strangers reach nobody."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pipediag.clock import SystemClock
from pipediag.ladder.ranks import shared_store as module
from pipediag.ladder.ranks.lockstep import Follower, Leader, Stopped, Superseded
from pipediag.ladder.ranks.shared_store import FollowersStore, LeadersStore

SECRET = b"s" * 32


class Job:
    """Rank 0's store and those of others, in this process."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.leaders = LeadersStore(listener, SECRET)
        stack.callback(self.leaders.close)

    def joined(self, rank: int, secret: bytes = SECRET) -> FollowersStore:
        store = FollowersStore(socket.create_connection(self.address), secret)
        self._stack.callback(store.close)
        store.set(f"joined/{rank}", "")
        return store

    def until(self, condition: Callable[[], bool]) -> bool:
        """Let rank 0 use its store until a condition holds."""
        until = time.monotonic() + 5.0
        while not condition() and time.monotonic() < until:
            self.leaders.has("")
            time.sleep(0.001)
        return condition()

    def stranger(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.address))


@pytest.fixture
def job() -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(stack)


def test_each_rank_learns_what_rank_0_sets(job: Job) -> None:
    job.leaders.set("epoch", "0")
    job.leaders.set("epoch", "1")
    first = job.joined(1)
    assert job.until(lambda: first.has("epoch")) and first.get("epoch") == "1"
    late = job.joined(2)
    job.leaders.set("grant", "text \udcff\n of two lines")
    assert job.until(lambda: first.has("grant") and late.has("grant"))
    assert late.get("epoch") == "1" and late.get("grant") == first.get("grant") == "text \udcff\n of two lines"
    first.set("note/1", "a note" * 100_000)
    assert job.until(lambda: job.leaders.has("note/1"))
    assert len(job.leaders.get("note/1")) == 600_000
    assert not late.has("note/1"), "it is for rank 0"


def test_rank_0_is_gone(job: Job) -> None:
    store = job.joined(1)
    job.leaders.set("epoch", "0")
    assert job.until(lambda: store.has("epoch"))
    job.leaders.set("last", "word")
    job.leaders.close()
    assert store.has("last"), "what has arrived counts"
    with pytest.raises(ConnectionError):
        store.has("next")
    with pytest.raises(ConnectionError):
        store.set("note/1", "")


def test_another_rank_is_gone(job: Job) -> None:
    first, second = job.joined(1), job.joined(2)
    job.leaders.set("epoch", "0")
    assert job.until(lambda: first.has("epoch") and second.has("epoch"))
    first.close()
    job.leaders.set("grant", "1")
    assert job.until(lambda: len(job.leaders.connections) == 1)
    assert job.until(lambda: second.has("grant"))


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(32) + b"\0\0\0\1" + bytes(33), b"x" * 100_000])
def test_a_stranger_hears_and_moves_nothing(job: Job, says: bytes) -> None:
    job.leaders.set("epoch", "0")
    stranger, other = job.stranger(), job.joined(1, secret=b"x" * 32)
    stranger.sendall(says)
    rank = job.joined(2)
    assert job.until(lambda: rank.has("epoch")), "the job goes on"
    assert not job.leaders.has("joined/1")
    with pytest.raises(ConnectionError):
        job.until(lambda: other.has("epoch"))
    heard = stranger.recv(1000)
    assert len(heard) == 32, "a random number"
    assert len(job.leaders.connections) == (2 if len(says) < 32 else 1)


def test_silent_strangers_do_not_pile_up(job: Job) -> None:
    many = [job.stranger() for _ in range(module._MOST_UNPROVEN + 20)]
    rank = job.joined(1)
    job.leaders.set("epoch", "0")
    assert job.until(lambda: rank.has("epoch"))
    assert len(many) > len(job.leaders.connections) <= module._MOST_UNPROVEN + 1


def test_a_connection_that_is_cut_is_said(job: Job) -> None:
    """The kernel gives it up, and the rank is in the midst of a step or not."""
    cut = OSError(errno.EHOSTUNREACH, "no route")
    told: list[str] = []
    store = FollowersStore(socket.create_connection(job.address), SECRET, lambda: told.append("1"))
    store._lose(cut)
    store._lose(ConnectionResetError("it has ended"))
    assert told == ["1"] and store.closed


def test_ranks_agree_over_it(job: Job) -> None:
    clock = SystemClock()
    leader = Leader(job.leaders, 2, clock)
    leader.comes_to(0, 0)
    store = FollowersStore(socket.create_connection(job.address), SECRET)
    assert job.until(lambda: store.has("epoch"))
    follower = Follower(store, 1, 2, clock)
    assert leader.all_joined()
    leader.do("device")
    leader.reserve(3, 3)
    leader.comes_to(0, 1)
    follower.comes_to(0, 0)
    with pytest.raises(Superseded):
        follower.comes_to(0, 1)
    assert follower.activity.rung == "device"
    job.leaders.set("stop", "1")
    with pytest.raises(Stopped):
        follower.comes_to(0, 4)
    follower.leave("a report")
    assert leader.stop() == {1: "a report"}
    store.close()

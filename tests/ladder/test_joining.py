"""Joining the lockstep: which process is alone, which leads, which waits and how long."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest
import torch.distributed as dist

from pipediag.ladder import joining as module
from pipediag.ladder.joining import Joining, place_in_job, rank_facts
from pipediag.ladder.lockstep import Follower, Leader, Superseded

from ..clock import Clock


class Place:
    """This process's place in a simulated job with its own store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.ranks = 0, 2
        self.store = dist.HashStore()
        monkeypatch.setattr(module, "place_in_job", lambda: (self.rank, self.ranks))
        monkeypatch.setattr(module, "_jobs_store", lambda: self.store)
        self._patch = monkeypatch
        self.number(0)

    def number(self, joined: int) -> None:
        """Set how many jobs this process has joined."""
        self._patch.setattr(module, "_joined", joined)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_a_process_without_others() -> None:
    assert place_in_job() == (0, 1)
    clock = Clock()
    found = Joining(clock).lockstep()
    assert found is not None
    assert not found.in_job
    assert clock.seconds == 0.0


def test_rank_0_and_its_follower(place: Place) -> None:
    clock = Clock()
    leading = Joining(clock)
    leader = leading.lockstep()
    assert isinstance(leader, Leader)
    assert leading.lockstep() is leader, "it joins once"
    leader.do("device")
    leader.comes_to(0, 0)
    place.rank = 1
    place.number(0)
    follower = Joining(clock).lockstep()
    assert isinstance(follower, Follower)
    with pytest.raises(Superseded):
        follower.comes_to(0, 0)
    assert follower.activity.rung == "device"
    assert leader.all_joined()


def test_rank_0_is_missing(place: Place) -> None:
    """The first attempt waits some seconds, later ones do not."""
    place.rank = 1
    clock = Clock()
    joining = Joining(clock)
    assert joining.lockstep() is None
    assert module._PATIENCE <= clock.seconds <= module._PATIENCE + module._POLL
    waited = clock.seconds
    assert joining.lockstep() is None
    assert clock.seconds == waited
    place.rank = 0
    leader = Joining(clock).lockstep()
    assert isinstance(leader, Leader)
    leader.comes_to(0, 0)
    place.rank = 1
    place.number(0)
    assert isinstance(joining.lockstep(), Follower)


def test_rank_0_has_not_taken_a_step_yet(place: Place) -> None:
    """Before that, the number of its epoch is unknown."""
    clock = Clock()
    leader = Joining(clock).lockstep()
    place.rank = 1
    place.number(0)
    joining = Joining(clock)
    assert joining.lockstep() is None
    assert isinstance(leader, Leader)
    leader.comes_to(3, 0)
    assert isinstance(joining.lockstep(), Follower)


def test_a_second_job_does_not_meet_the_first(place: Place) -> None:
    clock = Clock()
    first = Joining(clock).lockstep()
    assert isinstance(first, Leader)
    first.comes_to(0, 0)
    place.rank = 1  # and has joined one job, like rank 0
    assert Joining(clock).lockstep() is None


def test_the_store_of_the_job_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise RuntimeError("Broken pipe")

    place.rank = 1
    monkeypatch.setattr(module, "_jobs_store", gone)
    assert Joining(Clock()).lockstep() is None


def test_the_store_of_rank_0_cannot_be_reached(place: Place) -> None:
    """This rank tries once, and trains unchanged."""
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = {"host": socket.gethostname(), "port": closed.getsockname()[1]}
        place.store.set("pipediag/lockstep/0", json.dumps(address))
        place.rank = 1
        joining = Joining(Clock())
        began = time.monotonic()
        assert joining.lockstep() is None
        assert time.monotonic() - began < 5.0, "torch would try for a minute"
        closed.listen()
        assert joining.lockstep() is None
        closed.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            closed.accept()


def test_the_store_of_rank_0_ends_meanwhile(place: Place) -> None:
    """It ends between two polls: this rank trains unchanged."""
    clock = Clock()
    leader = Joining(clock).lockstep()
    assert isinstance(leader, Leader)
    leader.comes_to(0, 0)
    place.rank = 1
    place.number(0)

    class Goes(dist.HashStore):  # type: ignore[misc]
        def get(self, key: str) -> bytes:
            raise RuntimeError("Broken pipe")

    place.store = Goes()
    place.store.set("pipediag/lockstep/0", "{}")
    assert Joining(clock).lockstep() is None


@pytest.mark.parametrize(("number", "count"), [("LOCAL_RANK", "WORLD_SIZE"), ("SLURM_LOCALID", "SLURM_NTASKS")])
def test_facts(monkeypatch: pytest.MonkeyPatch, number: str, count: str) -> None:
    monkeypatch.setenv(number, "3")
    monkeypatch.setenv(count, "4")
    found = rank_facts("cuda:3")
    assert (found.rank, found.world_size, found.local_rank, found.device) == (0, 1, 3, "cuda:3")
    assert found.cpus == os.cpu_count()
    assert 0 < found.cores <= found.cpus
    assert found.affinity
    monkeypatch.setenv(number, "")
    assert rank_facts("cpu").local_rank is None

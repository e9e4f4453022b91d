"""Joining the lockstep: which process is alone, which leads, which waits and how long."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
import torch.distributed as dist

from pipediag.ladder.ranks import joining as module
from pipediag.ladder.ranks.joining import Joining, place_in_job, rank_facts
from pipediag.ladder.ranks.lockstep import _LATER, Follower, Leader, Superseded

from ..clock import Clock


class Place:
    """This process's place in a simulated job with its own store; all ranks live in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.ranks = 0, 2
        self.clock = Meanwhile()
        self._joined: list[Joining] = []
        self.store = dist.HashStore()
        monkeypatch.setattr(module, "place_in_job", lambda: (self.rank, self.ranks))
        monkeypatch.setattr(module, "_jobs_store", lambda: self.store)
        self._patch = monkeypatch
        self.number(0)

    def number(self, joined: int) -> None:
        """Set how many jobs this process has joined."""
        self._patch.setattr(module, "_joined", joined)

    def joining(self) -> Joining:
        self._joined.append(Joining(self.clock))
        return self._joined[-1]

    def leads(self) -> Leader:
        """Let rank 0 join; this process is rank 1 from now on."""
        leader = self.joining().lockstep()
        assert isinstance(leader, Leader)
        self.clock.leader = leader
        self.rank = 1
        self.number(0)
        return leader

    def close(self) -> None:
        for one in self._joined:
            one.close()


class Meanwhile(Clock):
    """While a rank sleeps, rank 0 uses its store."""

    leader: Leader | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.leader is not None:
            time.sleep(0.001)
            self.leader.notes()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(monkeypatch)
    yield place
    place.close()


def test_a_process_without_others() -> None:
    assert place_in_job() == (0, 1)
    clock = Clock()
    found = Joining(clock).lockstep()
    assert found is not None
    assert not found.in_job
    assert clock.seconds == 0.0


def test_rank_0_and_its_follower(place: Place) -> None:
    leading = place.joining()
    leader = leading.lockstep()
    assert isinstance(leader, Leader)
    assert leading.lockstep() is leader, "it joins once"
    leader.do("device")
    leader.comes_to(0, 0)
    place.clock.leader, place.rank = leader, 1
    place.number(0)
    follower = place.joining().lockstep()
    assert isinstance(follower, Follower)
    with pytest.raises(Superseded):
        follower.comes_to(0, 0)
    assert follower.activity.rung == "device"
    assert leader.all_joined()


def test_rank_0_is_missing(place: Place) -> None:
    """The first attempt waits some seconds, later ones do not."""
    place.rank = 1
    joining, clock = place.joining(), place.clock
    assert joining.lockstep() is None
    assert module._PATIENCE <= clock.seconds <= module._PATIENCE + _LATER
    waited = clock.seconds
    assert joining.lockstep() is None
    assert clock.seconds == waited
    place.rank = 0
    place.leads().comes_to(0, 0)
    assert _joins(place, joining)


def _joins(place: Place, joining: Joining) -> bool:
    """Return whether a rank joins at one of its next attempts, between which rank 0 goes on."""
    for _ in range(100):
        if isinstance(joining.lockstep(), Follower):
            return True
        place.clock.sleep(0.0)
    return False


def test_rank_0_has_not_taken_a_step_yet(place: Place) -> None:
    """Before that, the number of its epoch is unknown."""
    leader = place.leads()
    joining = place.joining()
    assert joining.lockstep() is None
    leader.comes_to(3, 0)
    assert _joins(place, joining)


def test_a_second_job_does_not_meet_the_first(place: Place) -> None:
    place.leads().comes_to(0, 0)
    place.number(1)  # it has joined one job, like rank 0
    assert place.joining().lockstep() is None


def test_the_store_of_the_job_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise RuntimeError("Broken pipe")

    place.rank = 1
    monkeypatch.setattr(module, "_jobs_store", gone)
    assert place.joining().lockstep() is None


def test_the_store_of_rank_0_cannot_be_reached(place: Place) -> None:
    """This rank tries once, and trains unchanged."""
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = {"host": "127.0.0.1", "port": closed.getsockname()[1], "secret": "ab" * 32}
        place.store.set("pipediag/lockstep/0", json.dumps(address))
        place.rank = 1
        joining = place.joining()
        assert joining.lockstep() is None
        closed.listen()
        assert joining.lockstep() is None
        closed.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            closed.accept()


def test_rank_0_ends_meanwhile(place: Place) -> None:
    """This rank trains unchanged."""
    leader = place.leads()
    joining = place.joining()
    assert joining.lockstep() is None
    place.clock.leader = None
    leader._store.close()
    assert joining.lockstep() is None and joining.lockstep() is None


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


STRANGE = [
    "{}",
    "[" * 100_000,
    "[]",
    "none",
    '{"host": "127.0.0.1", "port": 0, "secret": ""}',
    '{"host": "127.0.0.1", "port": 1.5, "secret": ""}',
    '{"host": 7, "port": 1, "secret": ""}',
    '{"host": "127.0.0.1", "port": 1, "secret": "/etc/passwd"}',
    '{"host": "127.0.0.1", "port": 1, "secret": "/proc/1/fd/../root/etc/passwd"}',
]


@pytest.mark.parametrize("address", STRANGE)
def test_a_strange_address_is_ignored(place: Place, address: str) -> None:
    """Whoever reaches the job's own store can write one."""
    place.store.set("pipediag/lockstep/0", address)
    place.rank = 1
    assert place.joining().lockstep() is None


def test_rank_0_listens_on_loopback_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host; what a stranger does there, :mod:`.test_shared_store` shows."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    place.leads()
    address = json.loads(place.store.get("pipediag/lockstep/0"))
    assert address["host"] == "127.0.0.1" and address["secret"].startswith("/proc/")
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries if name != "lo" else []:
            if entry.family == socket.AF_INET:
                with pytest.raises(OSError):
                    socket.create_connection((entry.address, address["port"]), 1.0)


def test_several_hosts_meet_at_the_address_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    assert module.is_one_host(2, "127.0.0.1") and module.is_one_host(2, "localhost")
    assert not module.is_one_host(2, socket.gethostname()), "its name may lead to loopback, but not for other hosts"
    assert not module.is_one_host(2, "192.0.2.1") and not module.is_one_host(2, "no.such.host.invalid")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert module.is_one_host(2, "192.0.2.1") and not module.is_one_host(4, "192.0.2.1")
    assert module.own_address("127.0.0.1") not in ("0.0.0.0", "")


def test_a_rank_that_may_not_listen_trains_unchanged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_one_host", lambda *_: False)
    monkeypatch.setattr(module, "own_address", lambda _: "192.0.2.1")
    joining = place.joining()
    assert joining.lockstep() is None and joining.lockstep() is None

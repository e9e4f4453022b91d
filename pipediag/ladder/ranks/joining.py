"""Join the lockstep of a distributed job: rank 0 opens a store, and the other ranks connect to it.

The store listens on loopback if the job runs on one host, and otherwise on this host's address in the job. Who connects
must know the job's secret (:mod:`.connection`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from ...clock import Clock, time
from ...measure.machine import affinity, cores, cpus, numa_node
from ...measure.own_rank import local_rank
from ...session import Rank
from ...session.codec import build, dumps, loads
from .connection import new_secret, read_secret
from .lockstep import EPOCH, Follower, Leader, Lockstep, comes_true
from .shared_store import FollowersStore, LeadersStore, Store

#: Key in the job's own store under which rank 0 publishes the address of our store.
_KEY = "pipediag/lockstep"
#: Seconds that a rank waits for rank 0 at its first attempt to join; later attempts do not wait. Rank 0 answers
#: while it takes its steps, in which it waits for this rank.
_PATIENCE = 0.1
#: Maximum seconds for connecting to rank 0's store.
_CONNECTING = 5.0
_S = TypeVar("_S", LeadersStore, FollowersStore)
#: Number of jobs that this process has joined: a program may be measured several times.
_joined = 0


def place_in_job() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; ``(0, 1)`` if it is not in a job of several processes."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def rank_facts(device: str) -> Rank:
    """Return this rank's facts that do not depend on its loader."""
    rank, world_size = place_in_job()
    return Rank(
        rank,
        world_size,
        host=socket.gethostname(),
        local_rank=local_rank(),
        device=device,
        cpus=cpus(),
        cores=cores(),
        affinity=affinity(),
        numa_node=numa_node(),
    )


class Joining:
    """Lets this process join the lockstep of its job.

    Args:
        cut: called, perhaps in another thread, when the connection to another host of the job is cut.
    """

    def __init__(self, clock: Clock, cut: Callable[[], None] = lambda: None) -> None:
        self._clock, self._cut = clock, cut
        self._patience = _PATIENCE
        self._is_unreachable = False
        self._store: Store | None = None
        self.found: Lockstep | None = None  # this process's part in the lockstep, once it has joined
        self.several_hosts = False  # True if the job is known to run on several hosts

    def lockstep(self) -> Lockstep | None:
        """Return this process's part in the lockstep, or None while rank 0 has not joined."""
        if self.found is None:
            rank, world_size = place_in_job()
            if world_size == 1:
                self.found = Lockstep()
            elif self._is_unreachable:
                return None
            elif rank == 0:
                self.found = self._leading(world_size)
            else:
                self.found = self._following(rank, world_size)
        return self.found

    @property
    def is_stopped(self) -> bool:
        """True if rank 0 has ended the analysis."""
        return isinstance(self.found, Follower) and self.found.is_stopped

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _leading(self, world_size: int) -> Leader | None:
        """Return this rank's part, or None if this host lets it listen nowhere."""
        try:
            listener = _listening(world_size)
            host, port = listener.getsockname()[:2]
            secret, told = new_secret(_is_loopback(host))
            self._store = self._watched(LeadersStore(listener, secret, self._cut), host)
            _jobs_store().set(_key(), dumps(asdict(Address(host, port, told))))
        except (OSError, RuntimeError):
            self._is_unreachable = True
            return None
        _count()
        return Leader(self._store, world_size, self._clock)

    def _following(self, rank: int, world_size: int) -> Follower | None:
        """Return this rank's part, or None if rank 0's store is not there in time."""
        until, self._patience = self._clock.now() + self._patience, 0.0
        try:
            if self._store is None:
                theirs = _jobs_store()
                if not comes_true(lambda: theirs.check([_key()]), until, self._clock):
                    return None
                address = build(Address, loads(theirs.get(_key()).decode()))
                secret = read_secret(address.secret)
                connected = socket.create_connection((address.host, address.port), _CONNECTING)
                self._store = self._watched(FollowersStore(connected, secret, self._cut), address.host)
            store = self._store
            if not comes_true(lambda: store.has(EPOCH), until, self._clock):
                return None
            follower = Follower(store, rank, world_size, self._clock)
        except RuntimeError:  # torch's errors of a store whose process has ended
            return None
        except (OSError, TypeError, ValueError):  # a firewall, or no address of ours: trying again would hold up steps
            self._is_unreachable = True
            return None
        _count()
        return follower

    def _watched(self, store: _S, host: str) -> _S:
        """Return the store; if the job runs on several hosts, a thread notices when one does not answer any more.

        This thread may then wait for that host in the step.
        """
        if not _is_loopback(host):
            self.several_hosts = True
            watching = (weakref.ref(store), self._cut)
            threading.Thread(target=_watch, args=watching, name="pipediag-link", daemon=True).start()
        return store


def _watch(watched: Callable[[], LeadersStore | FollowersStore | None], cut: Callable[[], None]) -> None:
    while (store := watched()) is not None and not store.closed:
        if any(connection.proven and connection.is_cut() for connection in [*store.connections]):
            cut()
            return
        del store
        time.sleep(1.0)


@dataclass(frozen=True)
class Address:
    """Where rank 0's store listens, and the secret or the file that holds it."""

    host: str
    port: int
    secret: str

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"port {self.port}")


def _listening(world_size: int) -> socket.socket:
    """Return a socket of the address at which the other ranks reach rank 0."""
    host = "127.0.0.1" if is_one_host(world_size, _jobs_host()) else own_address(_jobs_host())
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    return listener


def is_one_host(world_size: int, jobs_host: str) -> bool:
    """Return whether all ranks are known to run on this host, given the address at which the job's ranks meet."""
    counts = [(os.environ.get(name), all_) for name, all_ in (("LOCAL_WORLD_SIZE", world_size), ("SLURM_NNODES", 1))]
    if any(count == str(all_) for count, all_ in counts):
        return True
    try:
        return ipaddress.ip_address(socket.gethostbyname(jobs_host)).is_loopback and jobs_host != socket.gethostname()
    except (OSError, ValueError):
        return False


def own_address(jobs_host: str) -> str:
    """Return this host's address on the way to where the job's ranks meet, or to anywhere if that is loopback."""
    found = "127.0.0.1"
    for host in (jobs_host, "192.0.2.1"):  # nothing is sent; the second address is of documentation
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        if not _is_loopback(found):
            break
    return found


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _jobs_host() -> str:
    store = _jobs_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "") or socket.gethostname())


def _jobs_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _key() -> str:
    return f"{_KEY}/{_joined}"


def _count() -> None:
    global _joined
    _joined += 1

"""Join the lockstep of a distributed job: rank 0 opens a store, and the other ranks connect to it.

torch would let the store listen on every network interface. Here it listens on loopback if the job runs on one host,
and otherwise on this host's address in the job; and what it holds is sealed (:mod:`.sealed_store`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from ...measure.clock import Clock
from ...measure.machine import affinity, cores, cpus, numa_node
from ...measure.own_rank import local_rank
from ...session import Rank
from ...session.codec import build
from .lockstep import EPOCH, Follower, Leader, Lockstep, comes_true
from .sealed_store import SealedStore, Store, new_secret, read_secret

#: Key in the job's own store under which rank 0 publishes the address of our store.
_KEY = "pipediag/lockstep"
#: Maximum duration of one request to the store.
_TIMEOUT = timedelta(seconds=30)
#: Seconds that a rank waits for rank 0 at its first attempt to join; later attempts do not wait.
_PATIENCE = 2.0
#: Maximum seconds for connecting to rank 0's store.
_CONNECTING = 5.0
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
    """Lets this process join the lockstep of its job."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = _PATIENCE
        self._is_unreachable = False
        self._found: Lockstep | None = None

    def lockstep(self) -> Lockstep | None:
        """Return this process's part in the lockstep, or None while rank 0 has not joined."""
        if self._found is None:
            rank, world_size = place_in_job()
            if world_size == 1:
                self._found = Lockstep()
            elif self._is_unreachable:
                return None
            elif rank == 0:
                self._found = self._leading(world_size)
            else:
                self._found = self._following(rank, world_size)
        return self._found

    def _leading(self, world_size: int) -> Leader | None:
        """Return this rank's part, or None if this host lets it listen nowhere."""
        try:
            return Leader(_opened(world_size), world_size, self._clock)
        except (OSError, RuntimeError):
            self._is_unreachable = True
            return None

    def _following(self, rank: int, world_size: int) -> Follower | None:
        """Return this rank's part, or None if rank 0's store is not there in time."""
        until, self._patience = self._clock.now() + self._patience, 0.0
        try:
            theirs = _jobs_store()
            if not self._has(theirs, _key(), until):
                return None
            store = _connected(build(Address, json.loads(theirs.get(_key()))))
            if not self._has(store, EPOCH, until):
                return None
            follower = Follower(store, rank, world_size, self._clock)
        except RuntimeError:  # torch's errors of a store whose process has ended
            return None
        except (OSError, TypeError, ValueError):  # a firewall, or no address of ours: trying again would hold up steps
            self._is_unreachable = True
            return None
        _count()
        return follower

    def _has(self, store: Store, key: str, until: float) -> bool:
        """Return whether the store has the key in time."""
        return comes_true(lambda: store.check([key]), until, self._clock)


@dataclass(frozen=True)
class Address:
    """Where rank 0's store listens, and the secret or the file that holds it."""

    host: str
    port: int
    secret: str

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"port {self.port}")


def _opened(world_size: int) -> Store:
    """Open rank 0's store, and publish its address in the job's own store."""
    one_host = is_one_host(world_size, _jobs_host())
    host = "127.0.0.1" if one_host else own_address(_jobs_host())
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port = listener.getsockname()[1]
        store: Any = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=_TIMEOUT, master_listen_fd=listener.detach()
        )
    secret, told = new_secret(one_host)
    _jobs_store().set(_key(), json.dumps(asdict(Address(host, port, told))))
    _count()
    return SealedStore(store, secret)


def _connected(address: Address) -> Store:
    """Connect to rank 0's store.

    Raises:
        OSError: it cannot be reached, or its secret is not for this user.
    """
    secret = read_secret(address.secret)
    with socket.create_connection((address.host, address.port), _CONNECTING):  # torch itself tries for a minute
        pass
    return SealedStore(dist.TCPStore(address.host, address.port, is_master=False, timeout=_TIMEOUT), secret)


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
        if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
            break
    return found


def _jobs_host() -> str:
    """Return the address at which the ranks of the job meet."""
    store: Any = _jobs_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "") or socket.gethostname())


def _jobs_store() -> Store:
    return cast("Store", dist.distributed_c10d._get_default_store())


def _key() -> str:
    return f"{_KEY}/{_joined}"


def _count() -> None:
    global _joined
    _joined += 1

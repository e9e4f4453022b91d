"""Join the lockstep of a distributed job: rank 0 opens a store, and the other ranks connect to it."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from ..measure.clock import Clock
from ..measure.machine import affinity, cores, cpus, numa_node
from ..measure.own_rank import local_rank
from ..session import Rank
from .lockstep import EPOCH, Follower, Leader, Lockstep, Store

#: Key in the job's own store under which rank 0 publishes the address of our store.
_KEY = "pipediag/lockstep"
#: Maximum duration of one request to the store.
_TIMEOUT = timedelta(seconds=30)
#: Seconds that a rank waits for rank 0 at its first attempt to join; later attempts do not wait.
_PATIENCE = 2.0
#: Maximum seconds for connecting to rank 0's store, and seconds between two polls of a store.
_CONNECTING, _POLL = 5.0, 0.005
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
            elif rank == 0:
                self._found = Leader(_opened(), world_size, self._clock)
            else:
                store = self._awaited()
                self._found = None if store is None else Follower(store, rank, world_size, self._clock)
        return self._found

    def _awaited(self) -> Store | None:
        """Return rank 0's store, or None if it is not there in time."""
        if self._is_unreachable:
            return None
        until, self._patience = self._clock.now() + self._patience, 0.0
        try:
            theirs = _jobs_store()
            if not self._has(theirs, _key(), until):
                return None
            store = _connected(json.loads(theirs.get(_key())))
            if not self._has(store, EPOCH, until):
                return None
        except RuntimeError:  # torch's errors of a store whose process has ended
            return None
        except OSError:  # perhaps a firewall: trying again in each step would hold up the job
            self._is_unreachable = True
            return None
        _count()
        return store

    def _has(self, store: Store, key: str, until: float) -> bool:
        """Return whether the store has the key in time."""
        while not store.check([key]):
            if self._clock.now() >= until:
                return False
            self._clock.sleep(_POLL)
        return True


def _opened() -> Store:
    """Open rank 0's store, and publish its address in the job's own store."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    _jobs_store().set(_key(), json.dumps({"host": socket.gethostname(), "port": store.port}))
    _count()
    return cast("Store", store)


def _connected(address: dict[str, Any]) -> Store:
    """Connect to rank 0's store.

    Raises:
        OSError: it cannot be reached.
    """
    here = address["host"] == socket.gethostname()
    host = "127.0.0.1" if here else os.environ.get("MASTER_ADDR", address["host"])
    with socket.create_connection((host, address["port"]), _CONNECTING):  # torch itself tries for a minute
        pass
    return cast("Store", dist.TCPStore(host, address["port"], is_master=False, timeout=_TIMEOUT))


def _jobs_store() -> Store:
    return cast("Store", dist.distributed_c10d._get_default_store())


def _key() -> str:
    return f"{_KEY}/{_joined}"


def _count() -> None:
    global _joined
    _joined += 1

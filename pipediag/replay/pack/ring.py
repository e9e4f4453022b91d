"""Transfer batches from a loader's workers to the training process through reusable slots of shared memory.

A worker creates a slot of shared memory when it first needs one. The slot's first batch sends the slot itself, by
torch's own mechanism for shared memory; later batches send only its number. The training process maps and page-locks
each slot once, so that a device can copy from it asynchronously.

Every batch has a ticket. To release a batch, the training process writes its ticket into a table that the workers map
too. A worker reuses a slot once the table holds the ticket of the slot's last batch. Only the training process writes
to the table, so it needs no lock. Nobody waits either: a worker without a free slot sends its batch in separate memory.

Each iterator of a loader has its own workers and needs its own :class:`Ring`. The workers' dataset or collate function
holds the ring, so it lives until they have ended. Then its memory is unlocked and unmapped, except for slots whose
batch is still referenced.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ...errors import PipediagError

#: A slot has room for 1/_SLACK more than its batch if batches differ in size.
_SLACK = 8
#: Number of low bits of a ticket that count a worker's batches; the bits above hold its process id.
_COUNTED = 32


class Ring:
    """Slots of one iterator's workers. It is sent to the workers as part of their dataset or collate function.

    Args:
        workers: number of workers.
        slots: maximum number of slots per worker. While a worker fills one, up to ``prefetch_factor`` others are in
            transit, and the training loop holds some.
        device: destination of the batches; for a CUDA device the memory is page-locked if possible.
        varying: whether batches differ in size. Replacing a slot by a larger one is slow: page-locking it takes
            milliseconds, in which the training process can launch nothing.
    """

    def __init__(self, workers: int, slots: int, device: torch.device | None = None, *, varying: bool = False) -> None:
        self._lock = _PageLock(device) if device is not None and device.type == "cuda" else None
        self._token = next(_TOKENS)
        self._varying = varying
        self._released = torch.zeros((workers, slots), dtype=torch.int64, device="cpu").share_memory_()
        self._mapped: dict[tuple[int, int], _Mapped] = {}  # by worker and slot
        self._senders: dict[int, int] = {}  # process ids of the workers
        self._filler: _Filler | None = None
        _RINGS[self._token] = self

    def __getstate__(self) -> dict[str, Any]:
        return {"_token": self._token, "_varying": self._varying, "_released": self._released, "_filler": None}

    def claim(self, size: int) -> Claim | None:
        """Return a free slot with room for ``size`` bytes; None if there is none, or outside a worker."""
        info = get_worker_info()
        if info is None or size == 0:
            return None
        if self._filler is None:
            self._filler = _Filler(self._token, info.id, self._released[info.id], self._varying)
        return self._filler.claim(size)

    def lease(self, worker: int, number: int, size: int, ticket: int, storage: torch.UntypedStorage | None) -> Lease:
        """Return the slot that has arrived in the training process, with a batch of ``size`` bytes.

        ``storage`` is the slot's memory if it is new.

        Raises:
            PipediagError: it comes from another iterator's worker.
        """
        sender = ticket >> _COUNTED
        if self._senders.setdefault(worker, sender) != sender:
            raise PipediagError("two iterators send their batches through one ring: make one for each")
        if storage is not None:
            self._mapped[worker, number] = _Mapped(storage, self._lock)
        return Lease(self._mapped[worker, number], self._released[worker], number, size, ticket)


#: The rings of this process, by token, for arriving batches.
_RINGS: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()
_TOKENS = itertools.count()


# ---- in a worker


def shared_memory(size: int) -> torch.UntypedStorage | None:
    """Return ``size`` bytes that other processes can map, or None if the machine has no shared memory left."""
    try:
        storage = torch.UntypedStorage._new_shared(size)
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
            # Some versions of torch do not check that the memory is available: writing to it would kill the worker.
            file, _ = storage._share_fd_cpu_()
            if os.fstat(file).st_blocks * 512 < size:
                os.posix_fallocate(file, 0, size)
    except (RuntimeError, OSError):
        return None
    return storage


class _Slot:
    """Slot in a worker. ``ticket`` is that of its last batch; None until the training process knows the slot."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.ticket: int | None = None


class Claim:
    """Slot that a worker fills. It arrives in the training process as a :class:`Lease`."""

    def __init__(self, slot: _Slot, token: int, worker: int, number: int, size: int, ticket: int) -> None:
        #: Of dtype uint8, of the requested size.
        self.memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(slot.storage, 0, (size,))
        self._slot = slot
        self._before = slot.ticket
        self._address = (token, worker, number, size, ticket)
        slot.ticket = ticket

    def abandon(self) -> None:
        """Restore the slot, since no batch is sent in it."""
        self._slot.ticket = self._before

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (*self._address, self._slot.storage if self._before is None else None)


class _Filler:
    """Slots of one worker. ``released`` is the worker's row of the table."""

    def __init__(self, token: int, worker: int, released: Tensor, varying: bool) -> None:
        self._token = token
        self._worker = worker
        self._varying = varying
        self._released = released.numpy()
        self._tickets = itertools.count((os.getpid() << _COUNTED) + 1)
        self._slots: list[_Slot] = []
        self._room = 0

    def claim(self, size: int) -> Claim | None:
        number = self._number(size)
        if number is None:
            return None
        return Claim(self._slots[number], self._token, self._worker, number, size, next(self._tickets))

    def _number(self, size: int) -> int | None:
        """Return the first free slot that is large enough; or replace a free slot by a larger one, or add a slot."""
        released = self._released
        free = [n for n, slot in enumerate(self._slots) if slot.ticket is None or slot.ticket == released[n]]
        for number in free:
            if self._slots[number].storage.nbytes() >= size:
                return number
        if not free and len(self._slots) == len(self._released):
            return None
        if size > self._room:
            self._room = size + size // _SLACK if self._varying else size
            self._varying = True
        storage = shared_memory(self._room)
        if storage is None:
            return None
        if free:
            self._slots[free[0]] = _Slot(storage)
            return free[0]
        self._slots.append(_Slot(storage))
        return len(self._slots) - 1


# ---- in the training process


def _arrived(
    token: int, worker: int, number: int, size: int, ticket: int, storage: torch.UntypedStorage | None
) -> Lease:
    """Unpickle a :class:`Claim` as a lease."""
    _COPIES.settle()
    ring = _RINGS.get(token)
    if ring is None:
        raise PipediagError(
            "a batch arrived for a ring that is gone: the iterator's dataset or collate function must hold it"
        )
    return ring.lease(worker, number, size, ticket, storage)


class Lease:
    """Slot with a batch in it. The worker may reuse it once this object is released or collected."""

    def __init__(self, mapped: _Mapped, released: Tensor, number: int, size: int, ticket: int) -> None:
        #: The batch, uint8, 1-d; after the release it may hold another batch.
        self.memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(mapped.storage, 0, (size,))
        self._mapped = mapped
        self._released = released.numpy()
        self._number = number
        self._process = os.getpid()
        self._ending = False
        self._due = [ticket]  # of two threads that release it, only one can pop the ticket

    @property
    def page_locked(self) -> bool:
        return self._mapped.locked

    @property
    def released(self) -> bool:
        return not self._due

    @property
    def ending(self) -> bool:
        """True once it is released, or an event will release it: no new read of the memory may begin."""
        return self._ending or self.released

    def release(self) -> None:
        """Let the worker write to the slot from now on. Further calls do nothing."""
        if os.getpid() != self._process:  # a forked copy of a batch that the training process still holds
            return
        try:
            ticket = self._due.pop()
        except IndexError:
            return
        self._released[self._number] = ticket

    def release_after(self, event: torch.cuda.Event) -> None:
        """Release it once the device has reached ``event``, without waiting. The lease is kept alive until then."""
        self._ending = True
        _COPIES.add(self, event)

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a batch in reused shared memory cannot be copied or pickled: clone its tensors")


class _Mapped:
    """Memory of a slot in the training process, page-locked while this object lives if ``lock`` can lock it."""

    def __init__(self, storage: torch.UntypedStorage, lock: _PageLock | None) -> None:
        self.storage = storage
        self._process = os.getpid()
        self._lock = lock if lock is not None and lock.lock(storage) else None

    @property
    def locked(self) -> bool:
        return self._lock is not None

    def __del__(self) -> None:
        if self._lock is not None and os.getpid() == self._process:
            self._lock.unlock(self.storage)


class _PageLock:
    """Page-locker of existing memory, for copies by one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = -1
        if torch.cuda.is_available():
            # The device of the thread that makes the ring: on another thread's, this would create a needless context.
            self._device = torch.cuda.current_device() if device.index is None else device.index

    def lock(self, storage: torch.UntypedStorage) -> bool:
        """Lock the pages; return whether that succeeded."""
        if self._device < 0:
            return False
        with torch.cuda.device(self._device):
            locked = int(torch.cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0)) == 0
            if not locked:
                self._forget_error()
        return locked

    def unlock(self, storage: torch.UntypedStorage) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(storage.data_ptr())

    def _forget_error(self) -> None:
        """Clear the runtime's last error, which torch would otherwise report after its next kernel."""
        try:
            torch.ones(1, device=torch.device("cuda", self._device))
        except RuntimeError:
            pass


class _Copies:
    """Leases, oldest first, whose memory a device may still be reading. They may outlive their ring."""

    def __init__(self) -> None:
        self._running: deque[tuple[Lease, torch.cuda.Event]] = deque()
        self._settling = threading.Lock()
        self._process = os.getpid()

    def add(self, lease: Lease, event: torch.cuda.Event) -> None:
        self._running.append((lease, event))
        self.settle()

    def settle(self) -> None:
        """Release the leases whose copy is complete, without waiting for a device or another thread that does this."""
        if os.getpid() != self._process or not self._settling.acquire(blocking=False):
            return
        try:
            while self._running and self._running[0][1].query():
                self._running.popleft()[0].release()
        finally:
            self._settling.release()


_COPIES = _Copies()

"""The memory in which batches go from a loader's workers to the training process: slots that are used again and again.

A worker makes a slot of shared memory when it first needs one. With its first batch the slot itself travels, by torch's
own route for shared memory; from then on only its number does. The training process maps each slot once and locks its
pages once, so that a device can copy from it while the processor goes on.

Every batch has a ticket. When a batch is released, the training process writes its ticket into a table that the workers
map too; a worker fills a slot again when it finds there the ticket of the batch that it last sent in it. Nobody else
writes into the table, so nothing is locked, and nobody waits for anybody: a worker that finds none of its slots
released sends its batch in memory of its own.

Each iterator of a loader needs a :class:`Ring` of its own, since its workers are others. The objects that the iterator
gives its workers hold the ring, so it lives until the workers have ended; then its memory is unlocked and unmapped,
but for slots whose batch somebody still holds.
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

from ..errors import PipediagError

#: A slot that batches have outgrown is replaced by one that is larger than the batch by one part in so many.
_SLACK = 8
#: Bits of a ticket that count a worker's batches; those above are the number of its process.
_COUNTED = 32


class Ring:
    """The slots of one iterator's workers. It travels to the workers as part of what they are given.

    Args:
        workers: how many there are.
        slots: the most that each of them may have. A worker fills one while others, up to the loader's
            ``prefetch_factor``, are on their way, and the training loop holds some.
        device: where the batches go: for a CUDA device the memory is page-locked. None: it is not.

    Attributes:
        why: the reason why the memory is not page-locked although ``device`` asks for it; empty where it is.
    """

    def __init__(self, workers: int, slots: int, device: torch.device | None = None) -> None:
        self.why = ""
        self._lock = _PageLock(device) if device is not None and device.type == "cuda" else None
        self._token = next(_TOKENS)
        self._released = torch.zeros((workers, slots), dtype=torch.int64).share_memory_()
        self._mapped: dict[tuple[int, int], _Mapped] = {}  # by worker and slot
        self._senders: dict[int, int] = {}  # process numbers of the workers
        self._filler: _Filler | None = None
        _RINGS[self._token] = self

    def __getstate__(self) -> dict[str, Any]:
        return {"_token": self._token, "_released": self._released, "_filler": None}

    def claim(self, size: int) -> Claim | None:
        """In a worker: a free slot with room for ``size`` bytes. None where there is none, and in no worker."""
        info = get_worker_info()
        if info is None or size == 0:
            return None
        if self._filler is None:
            self._filler = _Filler(self._token, info.id, self._released[info.id])
        return self._filler.claim(size)

    def lease(self, worker: int, number: int, size: int, ticket: int, storage: torch.UntypedStorage | None) -> Lease:
        """In the training process: the slot that has arrived with ``size`` bytes in it, and with its memory if new.

        Raises:
            PipediagError: it comes from another iterator's worker.
        """
        sender = ticket >> _COUNTED
        if self._senders.setdefault(worker, sender) != sender:
            raise PipediagError("two iterators send their batches through one ring: make one for each")
        if storage is not None:
            mapped = self._mapped[worker, number] = _Mapped(storage, self._lock)
            self.why = self.why or mapped.why
        return Lease(self._mapped[worker, number], self._released[worker], number, size, ticket)


#: The rings of this process, where arriving batches find them.
_RINGS: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()
_TOKENS = itertools.count()


# ---- in a worker


def shared_memory(size: int) -> torch.UntypedStorage | None:
    """So many bytes that other processes can map; None where the machine has no more of such memory."""
    try:
        storage = torch.UntypedStorage._new_shared(size)
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
            # Some versions of torch make it without asking whether it is there: the worker that writes to it would die.
            file, _ = storage._share_fd_cpu_()
            if os.fstat(file).st_blocks * 512 < size:
                os.posix_fallocate(file, 0, size)
    except (RuntimeError, OSError):
        return None
    return storage


class _Slot:
    """``ticket`` is that of the batch last sent in it: none yet, then the training process does not know the slot."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.ticket: int | None = None


class Claim:
    """A slot that a worker fills. What arrives in the training process in its place is a :class:`Lease`.

    Attributes:
        memory: uint8, as many as were asked for.
    """

    def __init__(self, slot: _Slot, token: int, worker: int, number: int, size: int, ticket: int) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8).set_(slot.storage, 0, (size,))
        self._slot = slot
        self._before = slot.ticket
        self._address = (token, worker, number, size, ticket)
        slot.ticket = ticket

    def abandon(self) -> None:
        """Nothing is sent after all."""
        self._slot.ticket = self._before

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (*self._address, self._slot.storage if self._before is None else None)


class _Filler:
    """One worker's slots. ``released`` is its row of the table."""

    def __init__(self, token: int, worker: int, released: Tensor) -> None:
        self._token = token
        self._worker = worker
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
        """Of the free slots the first that is large enough; else a free one made anew, else one more."""
        free = [number for number, slot in enumerate(self._slots) if self._is_free(number, slot)]
        for number in free:
            if self._slots[number].storage.nbytes() >= size:
                return number
        if not free and len(self._slots) == len(self._released):
            return None
        if size > self._room:
            self._room = size + size // _SLACK if self._room else size
        storage = shared_memory(self._room)
        if storage is None:
            return None
        if free:
            self._slots[free[0]] = _Slot(storage)
            return free[0]
        self._slots.append(_Slot(storage))
        return len(self._slots) - 1

    def _is_free(self, number: int, slot: _Slot) -> bool:
        return slot.ticket is None or slot.ticket == self._released[number]


# ---- in the training process


def _arrived(
    token: int, worker: int, number: int, size: int, ticket: int, storage: torch.UntypedStorage | None
) -> Lease:
    """What a :class:`Claim` becomes when it is unpickled."""
    _COPIES.settle()
    ring = _RINGS.get(token)
    if ring is None:
        raise PipediagError(
            "a batch arrived for a ring that is gone: the iterator's dataset or collate function has to hold it"
        )
    return ring.lease(worker, number, size, ticket, storage)


class Lease:
    """A slot with a batch in it. The worker may use it again once it is released, or once nobody holds it any more.

    Attributes:
        memory: the batch, uint8, in one dimension; another batch's from the release on.
    """

    def __init__(self, mapped: _Mapped, released: Tensor, number: int, size: int, ticket: int) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8).set_(mapped.storage, 0, (size,))
        self._mapped = mapped
        self._released = released.numpy()
        self._number = number
        self._process = os.getpid()
        self._ending = False
        self._due = [ticket]  # taken out by who releases it: of two threads one alone

    @property
    def page_locked(self) -> bool:
        return self._mapped.locked

    @property
    def released(self) -> bool:
        return not self._due

    @property
    def ending(self) -> bool:
        """Whether it has been released, or will be by an event: nobody may begin to read the memory any more."""
        return self._ending or self.released

    def release(self) -> None:
        """The worker may write into the slot from now on. It can be called again, which does nothing."""
        if os.getpid() != self._process:  # a fork's copy of a batch that the training process still holds
            return
        try:
            ticket = self._due.pop()
        except IndexError:
            return
        self._released[self._number] = ticket

    def release_after(self, event: torch.cuda.Event) -> None:
        """Release it once the device has come to ``event``, without waiting, whoever holds it until then."""
        self._ending = True
        _COPIES.add(self, event)

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a batch in shared memory that is used again cannot be copied or pickled: clone its tensors")


class _Mapped:
    """A slot's memory in the training process. Its pages are locked as long as this lives, if they can be."""

    def __init__(self, storage: torch.UntypedStorage, lock: _PageLock | None) -> None:
        self.storage = storage
        self._process = os.getpid()
        self._lock: _PageLock | None = None
        self.why = lock.lock(storage) if lock is not None else ""
        if not self.why:
            self._lock = lock

    @property
    def locked(self) -> bool:
        return self._lock is not None

    def __del__(self) -> None:
        if self._lock is not None and os.getpid() == self._process:
            self._lock.unlock(self.storage)


class _PageLock:
    """Locks pages of memory that was made elsewhere, for copies by one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = -1
        if torch.cuda.is_available():
            # Of the thread that makes the ring: another one's current device would get a context for nothing.
            self._device = torch.cuda.current_device() if device.index is None else device.index

    def lock(self, storage: torch.UntypedStorage) -> str:
        """The reason why that cannot be done; empty if it is."""
        if self._device < 0:
            return "there is no CUDA device"
        runtime = torch.cuda.cudart()
        with torch.cuda.device(self._device):
            error = runtime.cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0)
            if int(error) == 0:
                return ""
            self._forget_error()
        return f"cudaHostRegister says: {runtime.cudaGetErrorString(error)}"

    def unlock(self, storage: torch.UntypedStorage) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(storage.data_ptr())

    def _forget_error(self) -> None:
        """The runtime keeps an error for whoever asks next, which would be torch after its next kernel."""
        try:
            torch.ones(1, device=torch.device("cuda", self._device))
        except RuntimeError:
            pass


class _Copies:
    """Leases whose memory a device may still be reading, oldest first. They may outlive their ring."""

    def __init__(self) -> None:
        self._running: deque[tuple[Lease, torch.cuda.Event]] = deque()
        self._settling = threading.Lock()
        self._process = os.getpid()

    def add(self, lease: Lease, event: torch.cuda.Event) -> None:
        self._running.append((lease, event))
        self.settle()

    def settle(self) -> None:
        """Release those that have been copied. Waits neither for a device nor for a thread that is at it."""
        if os.getpid() != self._process or not self._settling.acquire(blocking=False):
            return
        try:
            while self._running and self._running[0][1].query():
                self._running.popleft()[0].release()
        finally:
            self._settling.release()


_COPIES = _Copies()

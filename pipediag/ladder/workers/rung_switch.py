"""Hold the current rung in memory shared with the workers, so that they switch rungs while running."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...clock import time
from ...session import MOST_OF_A_LINE, cut_of, cut_rung, left_out, without_rung, workers_make
from .rungs import SERVED

#: Codes from here on are cuts of the transform chain.
_CUTS = 1000
#: Seconds after which a pause ends by itself: workers must not wait forever if their training process has died.
PAUSE = 10.0
#: Seconds between two checks whether a pause is over.
_LOOK = 0.002
#: Number of integers that hold the line which is left out, as bytes that a 0 ends.
_OF_A_LINE = MOST_OF_A_LINE // 8 + 1
_RUNG, _POOL, _PAUSED_UNTIL, _TIMING, _TRIES, _LINE = range(6)
_FIRST_WORKER = _LINE + _OF_A_LINE
#: Code of a rung ``without:line``.
_WITHOUT = -1


class RungSwitch:
    """Integers shared with the workers: rung, bytes each may cache, pause, timing, trials, and which workers are busy.

    Reading is one memory access; nothing restarts when the rung changes. The object travels to workers inside the
    wrapped dataset, by fork or by pickle.
    """

    def __init__(self, workers: int = 0) -> None:
        self._shared = torch.zeros(_FIRST_WORKER + workers, dtype=torch.int64).share_memory_()
        self._cells = _cells(self._shared)
        self.set("baseline")

    def __getstate__(self) -> dict[str, torch.Tensor]:
        return {"_shared": self._shared}

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        self._shared = state["_shared"]
        self._cells = _cells(self._shared)

    def set(self, rung: str) -> None:
        """Let the workers serve ``rung`` from their next batch on; a pause continues."""
        links, where = cut_of(rung), left_out(rung)
        if where is not None:
            ctypes.memmove(self._line, where.encode() + b"\0", len(where.encode()) + 1)
            self._cells[_RUNG] = _WITHOUT
            return
        self._cells[_RUNG] = [*SERVED].index(workers_make(rung)) if links is None else _CUTS + links

    @property
    def _line(self) -> int:
        """Address of the line that is left out."""
        return ctypes.addressof(self._cells) + 8 * _LINE

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Keep workers from inspecting samples within the context, in which the loop is timed."""
        self._cells[_TIMING] = 1
        try:
            yield
        finally:
            self._cells[_TIMING] = 0

    @property
    def timing(self) -> bool:
        return bool(self._cells[_TIMING])

    @property
    def rung(self) -> str:
        code = self._cells[_RUNG]
        if code == _WITHOUT:
            rung = without_rung(ctypes.string_at(self._line).decode(errors="replace"))
            return rung if left_out(rung) is not None else "baseline"  # another line is being written
        return cut_rung(code - _CUTS) if code >= _CUTS else [*SERVED][code]

    @property
    def pool_bytes(self) -> int:
        return self._cells[_POOL]

    @pool_bytes.setter
    def pool_bytes(self, value: int) -> None:
        self._cells[_POOL] = value

    @property
    def tries(self) -> bool:
        """True if the first worker is to try cheaper transforms after its next batch."""
        return bool(self._cells[_TRIES])

    @tries.setter
    def tries(self, value: bool) -> None:
        self._cells[_TRIES] = value

    # Pausing: called by the training process

    def pause(self) -> None:
        """Keep workers from beginning batches for :data:`PAUSE` seconds; batches under way are finished."""
        self._cells[_PAUSED_UNTIL] = int(1000 * (time.monotonic() + PAUSE))

    def resume(self) -> None:
        self._cells[_PAUSED_UNTIL] = 0

    @property
    def at_work(self) -> int:
        """Number of workers that are making a batch."""
        return sum(self._cells[_FIRST_WORKER:])

    def forget(self) -> None:
        """Mark all workers as idle, since they have ended."""
        for worker in range(len(self._cells) - _FIRST_WORKER):
            self._mark(worker, 0)

    # Called by a worker

    def begin(self, worker: int) -> None:
        """Mark a worker as busy with a batch, waiting first if there is a pause.

        A negative number means the training process itself, which never waits.
        """
        if worker < 0:
            return
        self._mark(worker, 1)  # before the check: a caller that pauses and then sees no busy worker can rely on it
        if self._is_paused():
            self._mark(worker, 0)
            while self._is_paused():
                time.sleep(_LOOK)
            self._mark(worker, 1)

    def end(self, worker: int) -> None:
        """Mark the worker as idle: its batch is finished or has failed."""
        self._mark(worker, 0)

    def _is_paused(self) -> bool:
        until = self._cells[_PAUSED_UNTIL]
        return until > 0 and 1000 * time.monotonic() < until

    def _mark(self, worker: int, working: int) -> None:
        if 0 <= worker < len(self._cells) - _FIRST_WORKER:
            self._cells[_FIRST_WORKER + worker] = working


def _cells(shared: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Return the tensor's integers; an index of a tensor takes 20 times as long, several times a batch."""
    return (ctypes.c_int64 * len(shared)).from_address(shared.data_ptr())

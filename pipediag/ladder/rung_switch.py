"""The current rung, in memory shared with the workers: this is the live switch."""

from __future__ import annotations

import time

import torch

from ..session import CONTROLS, RUNGS, cut_of, cut_rung, workers_make

_CODES = (*RUNGS, *CONTROLS)
#: Codes from here on are cuts of the transform chain.
_CUTS = 1000
#: Seconds after which a pause ends by itself: workers whose training process has died must not wait for ever.
PAUSE = 10.0
#: Seconds between two looks at whether a pause is over.
_LOOK = 0.002
_RUNG, _POOL, _PAUSED_UNTIL, _FIRST_WORKER = range(4)


class RungSwitch:
    """Shared integers: the rung that the workers serve, how many bytes each may cache, and which of them are busy.

    Reading is one memory access; nothing is restarted when the rung changes. The object travels to workers inside
    the wrapped dataset, by fork or by pickle.
    """

    def __init__(self, workers: int = 0) -> None:
        self._shared = torch.zeros(_FIRST_WORKER + workers, dtype=torch.int64).share_memory_()
        self.set("baseline")

    def set(self, rung: str) -> None:
        """Let the workers serve ``rung`` from their next batch on; a pause goes on."""
        links = cut_of(rung)
        self._shared[_RUNG] = _CODES.index(workers_make(rung)) if links is None else _CUTS + links

    @property
    def rung(self) -> str:
        code = int(self._shared[_RUNG])
        return cut_rung(code - _CUTS) if code >= _CUTS else _CODES[code]

    @property
    def pool_bytes(self) -> int:
        return int(self._shared[_POOL])

    @pool_bytes.setter
    def pool_bytes(self, value: int) -> None:
        self._shared[_POOL] = value

    # Pausing: called by the training process

    def pause(self) -> None:
        """Let workers begin no batch, from now on for :data:`PAUSE` seconds; those under way are made."""
        self._shared[_PAUSED_UNTIL] = int(1000 * (time.monotonic() + PAUSE))

    def resume(self) -> None:
        """End the pause."""
        self._shared[_PAUSED_UNTIL] = 0

    @property
    def at_work(self) -> int:
        """How many workers are making a batch."""
        return int(self._shared[_FIRST_WORKER:].sum())

    def forget(self) -> None:
        """The workers have ended, whatever they were at."""
        self._shared[_FIRST_WORKER:] = 0

    # Called by a worker

    def begin(self, worker: int) -> None:
        """A worker wants to begin a batch: it waits here as long as the pause lasts.

        A negative number is the training process itself, which makes a batch when it wants one.
        """
        if worker < 0:
            return
        self._mark(worker, 1)  # before the look: who pauses and sees nobody at work can rely on it
        if self._is_paused():
            self._mark(worker, 0)
            while self._is_paused():
                time.sleep(_LOOK)
            self._mark(worker, 1)

    def end(self, worker: int) -> None:
        """The batch is made, or will not be."""
        self._mark(worker, 0)

    def _is_paused(self) -> bool:
        until = int(self._shared[_PAUSED_UNTIL])
        return until > 0 and 1000 * time.monotonic() < until

    def _mark(self, worker: int, working: int) -> None:
        if 0 <= worker < len(self._shared) - _FIRST_WORKER:
            self._shared[_FIRST_WORKER + worker] = working

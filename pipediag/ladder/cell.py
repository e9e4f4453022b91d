"""The current rung, in memory shared with the workers: this is the live switch."""

from __future__ import annotations

import torch

from ..session import CONTROLS, RUNGS, cut_of, cut_rung, fed_apart

_CODES = (*RUNGS, *CONTROLS)
#: Codes from here on are cuts of the transform chain.
_CUTS = 1000
#: What workers do meanwhile when the training loop itself is fed from a cache, or not at all.
_WORKERS_DO = dict.fromkeys(("device", "host", "supply"), "baseline")


class Cell:
    """Two shared integers: the rung the workers serve, and how many bytes each of them may cache.

    Reading is one memory access; nothing is restarted when the rung changes. The object travels to workers inside
    the wrapped dataset, by fork or by pickle.
    """

    def __init__(self) -> None:
        self._shared = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.switch("baseline")

    def switch(self, rung: str) -> None:
        links = cut_of(rung)
        done = "baseline" if fed_apart(rung) else _WORKERS_DO.get(rung, rung)
        self._shared[0] = _CODES.index(done) if links is None else _CUTS + links

    @property
    def rung(self) -> str:
        code = int(self._shared[0])
        return cut_rung(code - _CUTS) if code >= _CUTS else _CODES[code]

    @property
    def pool_bytes(self) -> int:
        return int(self._shared[1])

    @pool_bytes.setter
    def pool_bytes(self, value: int) -> None:
        self._shared[1] = value

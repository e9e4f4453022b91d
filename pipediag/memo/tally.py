"""Count what processes of a run look up and find, without a lock: each process adds to a row of its own."""

from __future__ import annotations

import mmap
import os
import struct
from multiprocessing.reduction import DupFd
from typing import Any

from .locks import locked

#: Words of a row: for each family, the calls answered from what is kept, the calls made, and the bytes stored.
_WORDS = 3
FAMILIES = 16
_ROW = 8 * _WORDS * FAMILIES
#: Processes beyond this number share the row of an ended one.
_ROWS = 512
HITS, MADE, BYTES = range(_WORDS)


class Tally:
    """Counts by family and kind. It may be forked, or sent to spawned workers."""

    def __init__(self, number: int | None = None) -> None:
        if number is None:
            number = os.memfd_create("pipediag-tally")
            os.pwrite(number, bytes(_ROW * (_ROWS + 1)), 0)
        self.number = number
        self._memory = mmap.mmap(number, _ROW * (_ROWS + 1))
        self._words = memoryview(self._memory).cast("q")
        self._process = self._row = 0

    def __del__(self) -> None:
        if "number" in self.__dict__:
            os.close(self.number)

    def __reduce__(self) -> Any:
        return _reopened, (DupFd(self.number),)

    def add(self, family: int, kind: int, number: int = 1) -> None:
        if self._process != os.getpid():
            self._process, self._row = os.getpid(), self._new_row()
        self._words[self._row + _WORDS * family + kind] += number

    def of(self, family: int, kind: int) -> int:
        """Return a count of all processes."""
        rows = min(self._words[0], _ROWS)
        step = _ROW // 8
        return sum(self._words[step * (row + 1) + _WORDS * family + kind] for row in range(rows))

    def _new_row(self) -> int:
        with locked(self.number):
            row = self._words[0]
            os.pwrite(self.number, struct.pack("=q", row + 1), 0)
        return _ROW // 8 * (row % _ROWS + 1)


def _reopened(number: Any) -> Tally:
    return Tally(number.detach())

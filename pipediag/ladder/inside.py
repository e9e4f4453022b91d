"""Looking inside a worker: what a sample costs there, link by link, and which lines take the time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..session import Inside
from .chain import Chain
from .hotlines import TRACED, HotLines
from .probe import TIMED, Probe
from .slots import Slot


class Inspection:
    """Makes samples under one instrument after another: first timers, then a line tracer.

    One worker looks ``thorough``-ly; the others only tell which chain of transforms they have found, since theirs
    are the same samples in the same code.
    """

    def __init__(
        self, slots: list[Slot], clock: Callable[[], float], thorough: bool, timed: int = TIMED, traced: int = TRACED
    ) -> None:
        self._probe = Probe(slots, clock, timed)
        self._lines = HotLines(traced)
        self._thorough = thorough

    @property
    def complete(self) -> bool:
        return not self._thorough or (self._probe.complete and self._lines.complete)

    def give_up(self) -> None:
        """Look no further: the code minds being looked at."""
        self._thorough = False

    def make(self, sample: Callable[[], Any], again: bool = False) -> Any:
        """Make one sample under the instrument whose turn it is.

        With ``again`` a sample can be made once more, and is, without instruments, where it fails under them.
        """
        if self.complete:
            return sample()
        try:
            return self._lines.trace(sample) if self._probe.complete else self._probe.time(sample)
        except Exception:
            if not again:
                raise
            self.give_up()
            return sample()

    def figures(self, chain: Chain) -> Inside:
        """What was found, with the links of ``chain``; only these from a worker that did not look closely."""
        inside = self._probe.figures(chain)
        inside.lines = self._lines.figures()
        inside.threads = threads()
        return inside


def threads() -> dict[str, int]:
    """How many threads each library would use in this process."""
    found = {"torch": torch.get_num_threads()}
    opencv = sys.modules.get("cv2")
    if opencv is not None and hasattr(opencv, "getNumThreads"):
        found["opencv"] = int(opencv.getNumThreads())
    return found

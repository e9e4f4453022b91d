"""Inspect samples inside a worker: their cost by link, and the lines that take the time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ...session import NOT_YET, Inside
from ...usercode.chain import Chain
from ...usercode.slots import Slot
from .hotlines import TRACED, HotLines
from .sample_probe import TIMED, Probe


class Inspection:
    """A sequence of instruments for making samples: first timers, then, if it ``traces``, a line tracer.

    Timers cost microseconds, so they run on samples that training gets anyway. Only one worker traces lines: the others
    run the same code. ``needed`` is False if everything is already known.
    """

    def __init__(
        self,
        slots: list[Slot],
        clock: Callable[[], float],
        needed: bool,
        traces: bool,
        timed: int = TIMED,
        traced: int = TRACED,
        queued: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._probe = Probe(slots, clock, timed, queued)
        self._lines = HotLines(traced)
        self._needed = needed
        self._traces = traces
        self._reported = 0

    @property
    def times(self) -> bool:
        """True if further samples are to be timed."""
        return self._needed and not self._probe.complete

    @property
    def complete(self) -> bool:
        return not self._needed or (self._probe.complete and (not self._traces or self._lines.complete))

    @property
    def own(self) -> float:
        """Seconds that timing samples took besides making them."""
        return self._probe.own

    @property
    def news(self) -> bool:
        """True if many more samples were timed since the last figures, or all: computing them takes a while."""
        return self._probe.count > self._reported and (self._probe.complete or self._probe.count >= 2 * self._reported)

    def give_up(self) -> None:
        """Stop inspecting: the code fails under the instruments."""
        self._needed = False

    def time(self, make: Callable[[], Any], samples: int = 1) -> Any:
        """Make samples that training gets, under the timers if more are needed.

        If this fails, make them again without timers: the user's own errors are raised there.
        """
        if not self.times:
            return make()
        try:
            return self._probe.time(make, samples)
        except StopIteration:
            raise
        except Exception:
            self.give_up()
            return make()

    def make(self, sample: Callable[[], Any], again: bool = False) -> Any:
        """Make one sample under the current instrument.

        With ``again``, a sample that fails under the instrument is made once more without.
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

    def opened(self, endings: tuple[str, ...]) -> list[str]:
        """Return some of the files with these endings that were opened for the timed samples."""
        return self._probe.opened(endings)

    def figures(self, chain: Chain) -> Inside:
        """Return the findings with the links of ``chain``; only the links if nothing was timed."""
        self._reported = self._probe.count
        inside = self._probe.figures(chain)
        if not chain.samples and not chain.unsplit:
            inside.unsplit = NOT_YET
        inside.lines = self._lines.figures()
        inside.threads = threads()
        return inside


def threads() -> dict[str, int]:
    """Return the number of threads that each library would use in this process."""
    found = {"torch": torch.get_num_threads()}
    opencv = sys.modules.get("cv2")
    if opencv is not None and hasattr(opencv, "getNumThreads"):
        found["opencv"] = int(opencv.getNumThreads())
    return found

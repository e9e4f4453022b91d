"""Inspect samples inside a worker: their cost by link, and the lines that take the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import Any

import torch

from ...session import NOT_YET, Inside
from ...usercode import randomness
from ...usercode.chain import Chain
from ...usercode.paths import same
from ...usercode.slots import Slot
from .hotlines import HotLines
from .sample_probe import TIMED, Probe

#: Seconds in which samples are made twice, and the number of them from which on their equality says something.
_TWICE_SECONDS, _FEWEST = 2.0, 6


class Inspection:
    """The instruments for making samples: timers of the transforms, and looks at the running line.

    Both cost microseconds, so they run on samples that training gets anyway. ``makers`` are the functions that call the
    dataset's code, ``collating`` those that call the collate function. ``needed`` is False if everything is already
    known.

    Attributes:
        lines: the looks.
        same_twice: see :attr:`pipediag.session.Inside.same_twice`.
    """

    def __init__(
        self,
        slots: list[Slot],
        clock: Callable[[], float],
        needed: bool,
        makers: Collection[CodeType] = (),
        collating: Collection[CodeType] = (),
        timed: int = TIMED,
        queued: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._probe = Probe(slots, clock, timed, queued)
        self.lines = HotLines(makers, collating)
        self.same_twice: bool | None = None
        self._needed = needed
        self._reported = 0

    @property
    def times(self) -> bool:
        """True if further samples are to be timed."""
        return self._needed and not self._probe.complete

    @property
    def own(self) -> float:
        """Seconds that timing samples took besides making them."""
        return self._probe.own

    @property
    def news(self) -> bool:
        """True if many more samples were timed since the last figures, or all: computing them takes a while."""
        count, before = self._probe.count, self._reported
        return (count > before and (self._probe.complete or count >= 2 * before)) or (count > 0 and self.lines.news)

    def looks(self, busy: float) -> bool:
        """Return whether to look at the lines of a batch, ``busy`` seconds of work after the first."""
        return self._needed and self.lines.affordable(busy)

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
        """Make one sample under the timers.

        With ``again``, a sample that fails under them is made once more without.
        """
        if not self.times:
            return sample()
        try:
            return self._probe.time(sample)
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
        inside.looks, inside.lines = self.lines.looks, self.lines.figures(self._probe.transforms())
        inside.threads, inside.same_twice = threads(), self.same_twice
        return inside


def made_twice(make: Callable[[Any], Any], indices: Iterable[Any]) -> bool | None:
    """Return whether samples made twice are equal without a draw from a process-wide generator; None if unknown.

    Few samples tell nothing: a flip with a generator of its own leaves every second one as it is.
    """
    until, count, before = time.perf_counter() + _TWICE_SECONDS, 0, randomness.glance()
    try:
        for index in indices:
            if (answer := same(make(index), make(index))) is not True:
                return answer
            count += 1
            if time.perf_counter() > until:
                break
    except Exception:  # if it is the dataset's own, it comes again when the loop asks for that sample
        return None
    if randomness.drawn_from(before, randomness.glance()):
        return False
    return True if count >= _FEWEST else None


def threads() -> dict[str, int]:
    """Return the number of threads that each library would use in this process."""
    found = {"torch": torch.get_num_threads()}
    opencv = sys.modules.get("cv2")
    if opencv is not None and hasattr(opencv, "getNumThreads"):
        found["opencv"] = int(opencv.getNumThreads())
    return found

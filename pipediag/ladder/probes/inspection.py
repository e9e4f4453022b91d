"""Inspect samples inside a worker: their cost by link, and the lines that take the time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import Any

import torch

from ...clock import time
from ...session import NOT_YET, Inside
from ...usercode import randomness, tree
from ...usercode.chain import Chain
from ...usercode.paths import same
from ...usercode.spying import recorded, with_nested
from ...usercode.transform_slots import Slot
from .hotlines import HotLines
from .opened_files import OpenedFiles
from .sample_costs import Sample, Timed, Timer, costs, entry_of

#: Maximum number of timed samples, and maximum seconds spent on them.
TIMED, _SECONDS = 32, 2.0
#: Seconds in which samples are made twice, and the number of them from which on their equality says something.
_TWICE_SECONDS, _FEWEST = 2.0, 6


class Inspection:
    """The instruments for making samples: timers of the transforms, and looks at the running line.

    Both cost microseconds, so they run on samples that training gets anyway. ``clock`` gives the worker's CPU seconds,
    ``queued`` the seconds that it has waited for a core. ``makers`` are the functions that call the dataset's code,
    ``collating`` those that call the collate function. ``needed`` is False if everything is already known.
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
        self.lines = HotLines(makers, collating)  # the looks
        self.files = OpenedFiles()  # what was opened for the timed samples
        self.own = 0.0  # seconds that timing samples took besides making them
        self.same_twice: bool | None = None  # see :attr:`pipediag.session.Inside.same_twice`
        self._slots = slots
        self._watched: list[tuple[Slot, Any]] = []  # with nested ones, and their values
        self._clock, self._queued = clock, queued
        self._needed, self._most = needed, timed
        self._samples: list[Sample] = []
        self._count = self._reported = 0
        self._spent = self._waited = 0.0  # seconds of the samples, and those that they waited for a core

    @property
    def times(self) -> bool:
        """True if further samples are to be timed."""
        return self._needed and self._count < self._most and self._spent <= _SECONDS

    @property
    def news(self) -> bool:
        """True if many more samples were timed since the last figures, or all: computing them takes a while."""
        count, before = self._count, self._reported
        complete = count >= self._most or self._spent > _SECONDS
        return (count > before and (complete or count >= 2 * before)) or (count > 0 and self.lines.news)

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
            return self._timed(make, samples)
        except StopIteration:
            raise
        except Exception:
            self.give_up()
            return make()

    def make(self, sample: Callable[[], Any], again: bool = False) -> Any:
        """Make one sample under the timers.

        With ``again``, a sample that fails under them is made once more without.
        """
        if again or not self.times:
            return self.time(sample)
        return self._timed(sample)

    def _timed(self, make: Callable[[], Any], samples: int = 1) -> Any:
        """Make ``samples`` samples in one call and record the times."""
        entered, queued = time.perf_counter(), self._queued()
        timer, opening, opening_cpu = Timer(self._clock), self.files.seconds, self.files.cpu
        if not _still_there(self._watched):
            self._watched = with_nested(self._slots)
        with recorded(self._watched, timer), self.files.watched():
            cpu, wall = self._clock(), time.perf_counter()
            sample = make()
            wall, cpu = time.perf_counter() - wall, self._clock() - cpu
        own, own_cpu = timer.own + self.files.seconds - opening, timer.own_cpu + self.files.cpu - opening_cpu
        whole = Timed(None, wall=max(0.0, wall - own), cpu=max(0.0, cpu - own_cpu))
        self._waited += max(0.0, self._queued() - queued - max(0.0, own - own_cpu))  # what is no work waited for a core
        self._spent += whole.wall
        self._count += samples
        self._samples.append(Sample(whole, timer.calls, tree.nbytes(sample), samples))
        self.own += time.perf_counter() - entered - whole.wall
        return sample

    def figures(self, chain: Chain) -> Inside:
        """Return the findings with the links of ``chain``; only the links if nothing was timed."""
        self._reported = self._count
        inside = costs(self._samples, chain, self._waited)
        if self._count:
            inside.files = self.files.figures(self._count)
        if not chain.samples and not chain.unsplit:
            inside.unsplit = NOT_YET
        transforms = {code for s in self._samples for call in s.calls if (code := entry_of(call.fn)) is not None}
        names = {link.name for link in inside.links} | {part.name for link in inside.links for part in link.parts}
        inside.looks, inside.lines = self.lines.looks, self.lines.figures(transforms, names)
        inside.threads, inside.same_twice = threads(), self.same_twice
        return inside


def _still_there(watched: list[tuple[Slot, Any]]) -> bool:
    """Return whether the slots were found and still hold the same transforms."""
    try:
        return bool(watched) and all(slot.get() is value for slot, value in watched)
    except (LookupError, AttributeError, ValueError):  # a shorter list, an attribute or a cell that is gone
        return False


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

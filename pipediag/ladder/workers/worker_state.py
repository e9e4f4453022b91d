"""Keep a worker's cached items and the state of the batch being made."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...clock import time
from ...measure.evidence import BatchCost, cpu_of_programs
from ...usercode import tree
from ...usercode.chain import Apart, Chain, CutSample
from ...usercode.dissect import RawSample
from ..probes.inspection import Inspection
from .collating import CollateStubs, SafeCopies
from .delivery import Notes

#: Number of distinct items a worker caches: enough to span the sizes of varied data, few enough to make quickly.
MIN_ITEMS, MAX_ITEMS = 8, 32
#: Samples that take less than ``_QUICK_SECONDS`` are timed in one of ``_ONE_IN`` batches only.
_QUICK_SECONDS, _ONE_IN = 200e-6, 8
#: Multiple of the usual seconds per sample from which waiting for a core is subtracted.
_STANDS_OUT = 1.5
#: Seconds after which a cache that holds ``MIN_ITEMS`` is not filled further.
FILL_SECONDS = 2.0
#: Shares of a worker's allowance for raw samples and for samples cut between two transforms; the rest is for processed
#: samples.
RAW_SHARE, CUT_SHARE = 0.4, 0.3
#: Bytes for the results of calls that are left out, of all workers together; each gets an eighth at most.
LEFT_OUT_BYTES = 1 << 29
#: Maximum share of a worker's time for inspecting samples.
SHARE = 0.01
#: Seconds that inspection may take in any case. A script of ten steps needs an answer from its first batches, of which
#: 1 % would be less than a millisecond; it is spent once, before the first window if it can be.
ALLOWANCE = 0.2


class OwnTime:
    """pipediag's own seconds in a worker, by batch and in total."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of the batch being made
        self.busy = 0.0  # seconds that earlier batches have kept the worker busy
        self._spent = 0.0  # in earlier batches

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the time within the context; contexts must not be nested."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def end(self, busy: float) -> float:
        """End a batch that has kept the worker busy for so many seconds; return pipediag's own part of them."""
        own, self.seconds = min(self.seconds, busy), 0.0
        self._spent += own
        self.busy += busy
        return own

    @property
    def affordable(self) -> bool:
        """True if inspection may go on: pipediag's own time is within its bound."""
        return self._spent + self.seconds <= max(ALLOWANCE, SHARE * self.busy)


@dataclass
class WorkerState:
    """One worker's state. ``clock`` gives its CPU seconds, ``queued`` the seconds that it has waited for a core."""

    worker: int
    clock: Callable[[], float]
    queued: Callable[[], float]
    stubs: CollateStubs
    of_threads: bool = False  # whether the workers share a process
    # What is cached
    indices: list[Any] = field(default_factory=list)
    complete: bool = False  # there are enough items to represent the dataset
    settled: bool = False  # the indices are in use and no longer change
    met: int = 0  # indices seen while choosing
    taken: int = 0  # which of them is taken next
    weight: float = 1.0  # of algorithm L
    samples: list[Any] = field(default_factory=list)
    raws: list[RawSample] = field(default_factory=list)
    apart: list[Apart] = field(default_factory=list)  # the same samples, taken apart link by link
    raw_mode: str = ""  # how the raw rung is served: replay, collate, or impossible
    raw_trouble: str = ""
    chain: Chain = field(default_factory=Chain)
    cuts: dict[int, list[CutSample]] = field(default_factory=dict)
    cached_batch: Any = None
    copies: SafeCopies = field(default_factory=SafeCopies)
    turn: int = 0
    source: Iterator[Any] = field(default_factory=lambda: iter(()))  # of an iterable dataset
    chance: random.Random = field(default_factory=lambda: random.Random(0))  # leaves the user's generator alone
    # What is known of the dataset's code
    inspection: Inspection | None = None
    tried: bool = False  # cheaper transforms were tried
    typical: float = 0.0  # usual seconds to make one sample
    batches: int = 0
    queued_before: float = 0.0
    # The batch being made
    count: int = 0  # its samples
    rung: str = ""  # empty between two batches
    stable: bool = True
    why_not: str = ""
    own: OwnTime = field(default_factory=OwnTime)
    collating: float = 0.0
    looking: ExitStack = field(default_factory=ExitStack)  # at the running lines
    begun: tuple[float, float, float] = (0.0, 0.0, 0.0)
    notes: Notes | None = None

    def begin(self, rung: str) -> None:
        self.queued_before = self.queued()
        self.begun = (time.perf_counter(), self.clock(), self.queued_before)
        self.rung = rung
        self.batches += 1
        self.stable, self.why_not, self.collating = True, "", 0.0
        self.copies.begin()

    def stop_looking(self) -> None:
        """End the looks at the running lines; what they took is pipediag's own."""
        self.looking.close()
        if self.inspection is not None:
            self.own.seconds += self.inspection.lines.taken()

    def close(self) -> None:
        self.looking.close()
        if self.inspection is not None:
            self.inspection.lines.close()

    def cost(self) -> BatchCost:
        """Return the cost of the batch since it was begun, and end it. pipediag's own time keeps one core busy."""
        began, cpu_before, queued_before = self.begun
        wall, cpu, queued = time.perf_counter() - began, self.clock() - cpu_before, self.queued() - queued_before
        own = self.own.end(wall)
        return BatchCost(wall - own, max(0.0, cpu - own), queued, self.copies.seconds, self.collating, own)

    def remember(self, indices: Sequence[Any]) -> None:
        """Choose the indices to cache by reservoir sampling from all that were seen, so that they span the data.

        Li's algorithm L: it draws how many indices to pass over, instead of a number for each.
        """
        wanted = min(MAX_ITEMS, max(MIN_ITEMS, len(indices)))
        first, self.met = self.met, self.met + len(indices)
        if (missing := wanted - len(self.indices)) > 0:
            self.indices += indices[:missing]
            self.taken, self.weight = first + min(missing, len(indices)), 1.0
            self._pass_over()
        while self.taken < self.met:
            self.indices[self.chance.randrange(len(self.indices))] = indices[self.taken - first]
            self._pass_over()
        self.complete = len(self.indices) >= wanted

    def _pass_over(self) -> None:
        self.weight *= self.chance.random() ** (1 / len(self.indices))
        self.taken += 1 + int(math.log1p(-self.chance.random()) / math.log1p(-self.weight))

    def note(self) -> Notes:
        self.notes = self.notes or Notes()
        return self.notes

    @property
    def times_samples(self) -> bool:
        """True if this batch's samples are to be timed: quick samples, which timing would slow down, only sometimes."""
        return self.typical == 0.0 or self.typical > _QUICK_SECONDS or self.batches % _ONE_IN == 0

    def timed(self, seconds: float, index: object) -> None:
        """Record the seconds of one sample made under the baseline; items of a stream have no index.

        The time it waited for a core is subtracted, but read only for unusually slow samples, since reading takes time.
        It then holds the waits of the samples before too, so that such a sample counts as no quicker than the usual.
        """
        began = time.perf_counter()
        if seconds > _STANDS_OUT * self.typical:
            queued = self.queued()
            seconds = max(seconds - (queued - self.queued_before), min(seconds, self.typical))
            self.queued_before = queued
        self.typical = seconds if self.typical == 0.0 else 0.9 * self.typical + 0.1 * seconds
        notes = self.note()
        notes.times.append(seconds)
        if notes.slowest is None or seconds > notes.slowest[0]:
            notes.slowest = (seconds, "" if index is None else f"{index!r:.40}")
        self.own.seconds += time.perf_counter() - began

    def draw(self, pool: Sequence[Any], count: int) -> list[Any]:
        """Return the next ``count`` items of a pool, cyclically and regardless of the index asked for."""
        first, self.turn = self.turn, self.turn + count
        return [pool[i % len(pool)] for i in range(first, first + count)]

    def serve(self, count: int) -> list[Any]:
        return [self.copies.of(sample) for sample in self.draw(self.samples, count)]

    def fresh(self, batch: Any) -> Any:
        """Return a cached batch in new shared memory, as a worker's collate function leaves one.

        Memory that the training process has already mapped would be cheaper to transfer than in training.
        """
        started = time.perf_counter()
        batch = tree.in_shared_memory(batch)
        self.copies.seconds += time.perf_counter() - started
        return batch

    def replay(self, raw: RawSample | CutSample) -> Any:
        """Make a cached sample again; the time of copying is recorded apart from the transforms' own."""
        sample, copying = raw.replay()
        self.copies.seconds += copying
        return self.copies.of(sample)

    def cut(self, links: int, room: float) -> list[CutSample]:
        """Return samples with their first ``links`` transforms applied, within ``room`` bytes for all cuts."""
        if links in self.cuts:
            self.cuts[links] = self.cuts.pop(links)  # keep the order of last use
        else:
            self.stable = False
            first = CutSample(self.chain.samples[0], links)
            share = max(room / max(1, len(self.chain.cuts())), MIN_ITEMS * first.nbytes())
            while self.cuts and share + sum(c.nbytes() for pool in self.cuts.values() for c in pool) > room:
                self.cuts.pop(next(iter(self.cuts)))
            made = (CutSample(apart, links) for apart in self.chain.samples)
            pool = list(within(made, CutSample.nbytes, min(share, room)))
            for sample in pool:
                sample.copies = any(one.copies for one in pool)
            self.cuts[links] = pool
        return self.cuts[links]


def within(items: Iterator[Any], size: Callable[[Any], int], room: float) -> Iterator[Any]:
    """Yield items while they fit into ``room`` bytes.

    The first item is always yielded. After ``MIN_ITEMS`` items, the iterator also stops when :data:`FILL_SECONDS` are
    over.
    """
    until = time.perf_counter() + FILL_SECONDS
    for number, item in enumerate(items):
        room -= size(item)
        if room < 0 and number > 0:
            return
        yield item
        if number + 1 >= MIN_ITEMS and time.perf_counter() > until:
            return


def with_children(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock of CPU time that includes the programs which this process has run to their end."""
    return lambda: clock() + cpu_of_programs()


def queue_clock() -> Callable[[], float]:
    """Return a function for the seconds this process has waited for a core, from Linux's scheduler statistics.

    The function returns 0 if there are no statistics.
    """
    try:
        fd = os.open("/proc/self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0.0

    def read() -> float:
        try:
            return int(os.pread(fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    return read

"""What one worker keeps from batch to batch: the items it caches, and the state of the batch being made."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import tree
from .chain import Chain, CutSample
from .delivery import Notes
from .dissect import RawSample

#: Distinct items a worker caches: enough to span the sizes of varied data, few enough to make quickly.
MIN_ITEMS, MAX_ITEMS = 8, 32
#: Samples quicker than this are timed in one batch of so many only.
_QUICK_SECONDS, _ONE_IN = 200e-6, 8
#: A sample that takes this many times the usual is looked at more closely.
_STANDS_OUT = 1.5
#: Seconds after which a cache that holds ``MIN_ITEMS`` is not filled further.
FILL_SECONDS = 2.0
#: Parts of a worker's allowance for raw samples and for those cut between two transforms; the rest is for processed
#: ones.
RAW_SHARE, CUT_SHARE = 0.4, 0.3


@dataclass
class Bench:
    """One worker's state."""

    worker: int
    clock: Callable[[], float]
    queued: Callable[[], float]
    indices: list[Any] = field(default_factory=list)
    complete: bool = False  # the items are enough to stand for the dataset
    settled: bool = False  # the indices are in use, and stay as they are
    met: int = 0  # indices seen while they were being chosen
    samples: list[Any] = field(default_factory=list)
    raws: list[RawSample] = field(default_factory=list)
    raw_mode: str = ""  # how the raw rung is served: replay, collate, or impossible
    chain: Chain = field(default_factory=Chain)
    cuts: dict[int, list[CutSample]] = field(default_factory=dict)
    parcel: Any = None
    source: Iterator[Any] = field(default_factory=lambda: iter(()))  # of an iterable dataset
    passes_on: bool | None = None  # whether the collate function hands the samples' own memory on
    takes_apart: bool | None = None  # whether the collate function changes the samples' own containers
    stubs: dict[str, list[Any]] = field(default_factory=dict)
    spied: bool = False
    turn: int = 0
    # the batch being made
    rung: str | None = None
    stable: bool = True
    why_not: str = ""
    raw_trouble: str = ""
    copying: float = 0.0
    begun: tuple[float, float, float] = (0.0, 0.0, 0.0)
    notes: Notes | None = None
    typical: float = 0.0  # seconds to make one sample
    batches: int = 0
    queued_before: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(0))  # leaves the user's generator alone

    def begin(self, rung: str) -> None:
        """Start a batch under ``rung``."""
        self.queued_before = self.queued()
        self.begun = (time.perf_counter(), self.clock(), self.queued_before)
        self.rung = rung
        self.batches += 1
        self.stable, self.why_not, self.copying = True, "", 0.0

    def cost(self) -> tuple[float, float, float, float]:
        """Seconds since the batch was begun: wall, on a CPU, waiting for a core, copying cached items."""
        wall, cpu, queued = self.begun
        return time.perf_counter() - wall, self.clock() - cpu, self.queued() - queued, self.copying

    def remember(self, indices: Sequence[Any]) -> None:
        """Choose the indices to cache: at random among all that have come by, so that they span what there is."""
        wanted = min(MAX_ITEMS, max(MIN_ITEMS, len(indices)))
        for index in indices:
            self.met += 1
            if len(self.indices) < wanted:
                self.indices.append(index)
            elif (place := self.chance.randrange(self.met)) < len(self.indices):
                self.indices[place] = index
        self.complete = len(self.indices) >= wanted

    def note(self) -> Notes:
        """The notes that go with the next batch."""
        self.notes = self.notes or Notes()
        return self.notes

    @property
    def times_samples(self) -> bool:
        """Whether the samples of this batch are worth timing: of quick ones, for which that would show, few are."""
        return self.typical == 0.0 or self.typical > _QUICK_SECONDS or self.batches % _ONE_IN == 0

    def timed(self, seconds: float, index: object) -> None:
        """One sample has been made under the baseline; items of a stream have no index.

        What it waited for a core is not its own: asked for samples that stand out only, since asking takes time.
        """
        if seconds > _STANDS_OUT * self.typical:
            queued = self.queued()
            seconds -= min(seconds, queued - self.queued_before)
            self.queued_before = queued
        self.typical = seconds if self.typical == 0.0 else 0.9 * self.typical + 0.1 * seconds
        notes = self.note()
        notes.times.append(seconds)
        if notes.slowest is None or seconds > notes.slowest[0]:
            notes.slowest = (seconds, "" if index is None else f"{index!r:.40}")

    def draw(self, pool: Sequence[Any], count: int) -> list[Any]:
        """The next ``count`` items of a pool, round and round: cached by draw, not by index."""
        first, self.turn = self.turn, self.turn + count
        return [pool[i % len(pool)] for i in range(first, first + count)]

    def serve(self, count: int) -> list[Any]:
        """Processed samples from the pool."""
        return [self.safe(sample) for sample in self.draw(self.samples, count)]

    def replay(self, raw: RawSample | CutSample) -> Any:
        """A cached sample made again; copying is kept apart from the transforms' own cost."""
        sample, copying = raw.replay()
        self.copying += copying
        return self.safe(sample)

    def safe(self, sample: Any) -> Any:
        """A cached sample as it may be given away: a copy, where the loop gets the sample's own memory."""
        if self.passes_on is False:
            return sample
        started = time.perf_counter()
        sample = tree.clone(sample)
        self.copying += time.perf_counter() - started
        return sample

    def cut(self, links: int, room: float) -> list[CutSample]:
        """Samples that have their first ``links`` transforms behind them, within ``room`` bytes for all cuts."""
        if links in self.cuts:
            self.cuts[links] = self.cuts.pop(links)  # the one that is used last goes last
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
    """Items while their sizes fit into ``room`` bytes, the first always; enough of them, and more while time allows."""
    until = time.perf_counter() + FILL_SECONDS
    for number, item in enumerate(items):
        room -= size(item)
        if room < 0 and number > 0:
            return
        yield item
        if number + 1 >= MIN_ITEMS and time.perf_counter() > until:
            return


def queue_clock() -> Callable[[], float]:
    """Seconds this process has waited for a core, from Linux's scheduler statistics; 0 where there are none."""
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

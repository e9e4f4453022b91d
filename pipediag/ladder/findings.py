"""Gather and send what a loader reveals: its startups, the inside of the dataset's code, slow samples."""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ..analysis.numbers.chain import merged
from ..measure.rare_steps import FAR_LONGER
from ..session import NOT_YET, PLAIN, Alternative, Inside, Slow, SlowBatches, Startup, Tail
from ..usercode.constructions import located
from .workers.delivery import Delivery

#: Maximum number of times kept: for percentiles of samples, beyond it a random subset of all of them; of batches, the
#: first ones.
_KEPT = 8192
#: Number of slow samples that are named.
_NAMED = 8
#: Maximum number of bins of the histogram; few samples get fewer.
_BINS = 40
#: Maximum number of slow batches that are few.
_FEW = 200


class Findings:
    """What was found about one loader."""

    def __init__(self) -> None:
        self.startups: list[Startup] = []  # one entry for each time the data was begun
        #: Seconds that it took to end the workers at the end of the last epoch, until they are started again.
        self.shutdown = 0.0
        self.insides: dict[int, Inside] = {}  # findings about the dataset's code, by worker number
        #: Cheaper ways for the transforms as tried in a worker, with the number of the transform in its chain; None if
        #: none was to try them yet.
        self.alternatives: list[tuple[int, Alternative]] | None = None
        self.revision = 0  # number of updates of ``insides``
        self.samples = 0  # number of samples timed
        self._times: list[float] = []
        self._slowest: dict[str, float] = {}
        self._draw = random.Random(0)
        self._batches: list[float] = []
        self._startups = self._revision = self._samples = self._sent_batches = 0  # sent so far

    def take(self, delivery: Delivery, stopped: float = 0.0) -> None:
        """Note what a batch tells; while it was made, the process stood still for ``stopped`` seconds."""
        notes, cost = delivery.notes, delivery.cost
        first = notes is not None and notes.ready is not None
        if delivery.rung in PLAIN and cost.wall > 0 and not first and len(self._batches) < _KEPT:
            self._batches.append(max(0.0, cost.wall - cost.queued - stopped))
        if notes is None:
            return
        if notes.inside is not None:
            self._take_inside(delivery.worker, notes.inside)
        if notes.alternatives is not None:
            self.alternatives = notes.alternatives
        for seconds in notes.times:
            self.samples += 1
            if len(self._times) < _KEPT:
                self._times.append(seconds)
            elif (place := self._draw.randrange(self.samples)) < _KEPT:
                self._times[place] = seconds
        if notes.slowest is not None:
            seconds, index = notes.slowest
            self._slowest[index] = max(seconds, self._slowest.get(index, 0.0))
            if len(self._slowest) > _NAMED:
                del self._slowest[min(self._slowest, key=self._slowest.__getitem__)]

    def _take_inside(self, worker: int, inside: Inside) -> None:
        """Keep what is known best: the workers of a new epoch start from nothing."""
        known = self.insides.get(worker, inside)
        best = known if known.unsplit != NOT_YET and inside.unsplit == NOT_YET else inside
        longest = inside if inside.looks > known.looks else known
        if best is inside or longest is inside:
            self.insides[worker] = replace(best, lines=longest.lines, looks=longest.looks)
            self.revision += 1

    def send_new(self, send: Callable[[str, dict[str, Any]], None], attempt: int, looks_inside: bool) -> None:
        """Send what has appeared or changed since, between windows: locating transforms takes time.

        The inside of the dataset's code is left out unless ``looks_inside``.
        """
        for startup in self.startups[self._startups :]:
            send("startup", {**asdict(startup), "attempt": attempt})
        self._startups = len(self.startups)
        if self.revision > self._revision and looks_inside:
            self._revision = self.revision
            inside = merged(list(self.insides.values()))
            send("inside", asdict(replace(inside, links=located(inside.links))))
        if self.samples > self._samples and (tail := self.tail) is not None:
            self._samples = self.samples
            send("tail", asdict(tail))
        if len(self._batches) > self._sent_batches:
            self._sent_batches = len(self._batches)
            send("slow-batches", asdict(self.slow_batches))

    @property
    def slow_batches(self) -> SlowBatches:
        usual = statistics.median(self._batches)
        slow = [took - usual for took in self._batches if took > FAR_LONGER * usual]
        longer = [round(1000 * more, 3) for more in slow] if len(slow) <= _FEW else []
        return SlowBatches(len(self._batches), longer)

    @property
    def tail(self) -> Tail | None:
        """The distribution of sample times so far, or None if fewer than two samples were timed individually."""
        if len(self._times) < 2:
            return None
        ranked = sorted(self._times)
        edges, counts = _histogram([1000 * seconds for seconds in ranked])
        return Tail(
            samples=self.samples,
            p50_ms=round(1000 * statistics.median(ranked), 4),
            p99_ms=round(1000 * ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))], 4),
            slowest=[
                Slow(index, round(1000 * seconds, 3))
                for index, seconds in sorted(self._slowest.items(), key=lambda item: item[1], reverse=True)
            ],
            edges_ms=edges,
            counts=counts,
        )


def _histogram(ranked: list[float]) -> tuple[list[float], list[int]]:
    """Return edges and counts of bins for sorted times in milliseconds; on a logarithmic scale the bins are equal."""
    low = max(1e-4, math.floor(1e4 * ranked[0]) / 1e4)  # edges are rounded outward to 0.0001 ms
    high = max(low, math.ceil(1e4 * ranked[-1]) / 1e4) + 1e-4
    bins = min(_BINS, math.ceil(math.sqrt(len(ranked))))
    inner = {round(low * (high / low) ** (number / bins), 4) for number in range(1, bins)}
    edges = sorted({round(low, 4), *inner, round(high, 4)})
    counts = [0] * (len(edges) - 1)
    for ms in ranked:
        counts[max(0, bisect_right(edges, ms) - 1)] += 1
    return edges, counts

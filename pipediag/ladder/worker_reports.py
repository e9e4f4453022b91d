"""Gather the findings that workers send with their batches."""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_right

from ..session import NOT_YET, Inside, Slow, Tail
from .delivery import Delivery

#: Maximum number of sample times kept for percentiles; beyond it, a random subset of all of them.
_KEPT = 8192
#: Number of slow samples that are named.
_NAMED = 8
#: Maximum number of bins of the histogram; few samples get fewer.
_BINS = 40


class WorkerReports:
    """The notes of all deliveries.

    Attributes:
        insides: findings about the dataset's code, by worker number.
        revision: number of updates of ``insides``.
    """

    def __init__(self) -> None:
        self.insides: dict[int, Inside] = {}
        self.revision = 0
        self._times: list[float] = []
        self._slowest: dict[str, float] = {}
        self.samples = 0  # timed so far
        self._draw = random.Random(0)

    def take(self, delivery: Delivery) -> None:
        notes = delivery.notes
        if notes is None:
            return
        if notes.inside is not None and not self._knows_more(delivery.worker, notes.inside):
            self.insides[delivery.worker] = notes.inside
            self.revision += 1
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

    def _knows_more(self, worker: int, inside: Inside) -> bool:
        """Return whether the worker has taken samples apart already: one of a new epoch begins from nothing."""
        known = self.insides.get(worker)
        return known is not None and known.unsplit != NOT_YET and inside.unsplit == NOT_YET

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

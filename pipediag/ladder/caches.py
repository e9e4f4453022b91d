"""Plan and hold the cached batches, within ``LIMIT_BYTES`` and ``LIMIT_BATCHES``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..clock import time
from ..streams.handover import copied
from ..usercode import tree

WRITES_IN_PLACE = {
    "code": "writes-in-place",
    "message": "the training loop changes its batches in place",
    "help": "cached rungs hand out copies of their batches, and their times include the copying",
}
LIMIT_BYTES = 1 << 30
LIMIT_BATCHES = 64
#: Bytes reserved for the samples that workers cache, whatever the size of a batch.
_POOL_RESERVE = 192 << 20
#: Distinct batches under the device and host rungs, if they fit.
_DISTINCT = 8
#: Maximum number of batches checked for writes after use, and maximum seconds of all checks.
_WATCHED, _LOOKING_SECONDS = 64, 0.1


@dataclass(frozen=True)
class CachePlan:
    """The number of batches in each cache, and the bytes of samples each worker may keep."""

    device: int
    host: int
    shared: int
    pool_bytes: int
    batch_bytes: int
    workers: int

    @property
    def distinct(self) -> int:
        return max(self.device, self.host, self.shared)

    @property
    def held_bytes(self) -> int:
        """Maximum bytes in all caches together."""
        return (self.device + self.host + self.shared) * self.batch_bytes + max(1, self.workers) * self.pool_bytes


def plan_caches(batch_bytes: int, workers: int, on_cpu: bool) -> CachePlan:
    """Divide the limits: one batch for each cache first, then more distinct ones while they fit.

    ``shared`` batches are mapped by every worker for the ``worker`` rung; there are two, so that the arriving batch is
    never the one the loop still holds. On the CPU, host and device are the same, and ``host`` stays empty.
    """
    size = max(1, batch_bytes)
    counts = {"device": 0, "host": 0, "shared": 0}
    left = LIMIT_BYTES - _POOL_RESERVE
    batches = LIMIT_BATCHES // 2  # the other half is for the workers' samples
    first = ["device"] if on_cpu else ["device", "host"]
    order = [*first, *(["shared"] * 2 if workers else []), *itertools.chain(*[first] * (_DISTINCT - 1))]
    for name in order:
        if size <= left and sum(counts.values()) < batches:
            counts[name] += 1
            left -= size
    pools = min(left + _POOL_RESERVE, LIMIT_BATCHES // 2 * size)
    return CachePlan(**counts, pool_bytes=pools // max(1, workers), batch_bytes=size, workers=workers)


class Caches:
    """The collected batches for each rung that serves them."""

    def __init__(self, batches: Sequence[Any], plan: CachePlan, device: torch.device, writes_in_place: bool) -> None:
        on_cpu = device.type == "cpu"
        moved = [batch if on_cpu else tree.move(batch, device) for batch in batches[: plan.device]]
        self.device = BatchCache(moved, writes_in_place)
        self.host = BatchCache(batches[: plan.host], writes_in_place)
        self.shared = list(batches[: plan.shared])
        #: True if anything in a batch moved to the device.
        self.moves = on_cpu or any(t.device.type == device.type for t in tree.tensors(moved))


class BatchCache:
    """A cache of distinct batches that are handed out cyclically.

    A loop may write into its batch, but a cached batch must not change. The first batch is handed out as a copy, and
    the first batches are checked after use: once one has changed, all are handed out as copies. A loop that writes into
    its copy on the device is found too: a batch that is already there is not copied. All batches are treated alike, so
    the checks, which are slow for batches of thousands of objects, end after a few dozen.
    """

    def __init__(self, batches: Sequence[Any], writes_in_place: bool = False) -> None:
        self._batches = batches
        self._writes_in_place = writes_in_place
        self._turn = 0
        self._looked = 0.0
        self._out: tuple[Any, tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def writes_in_place(self) -> bool:
        """True if the loop has written into a batch, including its current one."""
        if self._out is not None and not self._writes_in_place:
            batch, before = self._out
            self._writes_in_place = self._versions(batch) != before
        return self._writes_in_place

    def next(self) -> Any:
        return self.at(self._turn)

    def at(self, number: int) -> Any:
        """Return batch ``number``, as a copy if the loop may change it."""
        batch = self._batches[number % len(self._batches)]
        if self.writes_in_place or self._turn == 0:
            batch = copied(batch)
        self._turn += 1
        watched = not self._writes_in_place and self._turn <= _WATCHED and self._looked < _LOOKING_SECONDS
        self._out = (batch, self._versions(batch)) if watched else None
        return batch

    def nbytes(self, number: int) -> int:
        return tree.nbytes(self._batches[number % len(self._batches)])

    def _versions(self, batch: Any) -> tuple[int, ...]:
        began = time.perf_counter()
        found = tree.versions(batch)
        self._looked += time.perf_counter() - began
        return found

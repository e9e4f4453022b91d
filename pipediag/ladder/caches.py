"""What the analysis keeps in memory, and how much of it: never more than ``LIMIT_BYTES`` or ``LIMIT_BATCHES``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from . import tree

LIMIT_BYTES = 1 << 30
LIMIT_BATCHES = 64
#: Kept for the samples that workers cache, whatever the size of a batch.
_POOL_RESERVE = 192 << 20
#: Distinct batches the loop is fed under the device and host rungs, where they fit.
_DISTINCT = 8


@dataclass(frozen=True)
class CachePlan:
    """How many batches each cache holds, and how many bytes of samples each worker may keep."""

    device: int
    host: int
    shared: int
    pool_bytes: int

    def total_bytes(self, batch_bytes: int, workers: int) -> int:
        return (self.device + self.host + self.shared) * batch_bytes + max(1, workers) * self.pool_bytes


def plan_caches(batch_bytes: int, workers: int, on_cpu: bool) -> CachePlan:
    """Share the limits out: one batch for each cache first, then more distinct ones while they fit.

    ``shared`` batches are mapped by every worker for the ``worker`` rung; two of them, so that the batch that
    arrives is never the one the loop still holds. On the CPU host and device are one, and ``host`` stays empty.
    """
    counts = {"device": 0, "host": 0, "shared": 0}
    left = LIMIT_BYTES - _POOL_RESERVE
    batches = LIMIT_BATCHES // 2  # the other half is for the workers' samples
    first = ["device"] if on_cpu else ["device", "host"]
    order = [*first, *(["shared"] * 2 if workers else []), *itertools.chain(*[first] * (_DISTINCT - 1))]
    for name in order:
        if batch_bytes <= left and sum(counts.values()) < batches:
            counts[name] += 1
            left -= batch_bytes
    pools = min(left + _POOL_RESERVE, LIMIT_BATCHES // 2 * max(batch_bytes, 1))
    return CachePlan(**counts, pool_bytes=pools // max(1, workers))


class BatchCache:
    """Distinct batches handed out round and round.

    A loop may write into the batch it gets; a cached one must not change. The first batch goes out as a copy that is
    watched: if it has changed when the loop is back, every batch goes out as a copy from then on. That also catches
    what cannot be seen before, a loop that copies batches to the device and writes into the copy: given a batch that
    is on the device already, there is no copy.
    """

    def __init__(self, batches: list[Any], writes_in_place: bool = False) -> None:
        self.writes_in_place = writes_in_place
        self._batches = batches
        self._turn = 0
        self._probe: tuple[Any, tuple[int, ...]] | None = None
        self._probed = writes_in_place

    def __len__(self) -> int:
        return len(self._batches)

    def next(self) -> Any:
        if self._probe is not None:
            batch, before = self._probe
            self._probe = None
            self.writes_in_place = tree.versions(batch) != before
        batch = self._batches[self._turn % len(self._batches)]
        self._turn += 1
        if self._probed and not self.writes_in_place:
            return batch
        batch = tree.clone(batch)
        if not self._probed:
            self._probed, self._probe = True, (batch, tree.versions(batch))
        return batch

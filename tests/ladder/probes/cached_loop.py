"""A loop on cached batches, for probes that feed it themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from pipediag.ladder.caches import BatchCache
from pipediag.measure.device import Device


class CachedLoop:
    """A :class:`LoopSide` with one cache. ``leaves`` are the numbers of the steps after which its epoch is over."""

    clock: Any

    def __init__(self, batches: Sequence[Any] = (), device: str = "cpu", leaves: tuple[int, ...] = ()) -> None:
        self.batches = BatchCache(batches)
        self.device: Any = Device(torch.device(device))
        self.epochs = SimpleNamespace(complete=False)
        self.leaves = leaves
        self.handed: list[Any] = []

    def cache(self, rung: str) -> BatchCache:
        return self.batches

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        self.handed.append(batch)
        yield batch
        return len(self.handed) - 1 not in self.leaves


def driven(turning: Generator[Any, None, Any], step: Callable[[Any], Any] = lambda batch: None) -> Any:
    """Train with ``step`` on every batch of a turn; return the turn's result."""
    while True:
        try:
            batch = next(turning)
        except StopIteration as end:
            return end.value
        step(batch)

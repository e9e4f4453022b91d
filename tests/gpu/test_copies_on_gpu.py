"""Copies of cached batches, in a loop that reads them on a stream of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from pipediag.ladder.caches import BatchCache

_NUMBERS = 1 << 22
#: Cycles of the GPU's clock, some 50 ms.
_LONG = 100_000_000


class Prefetcher:
    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    def read(self, cache: BatchCache, late: bool) -> Tensor:
        """Return a batch as read on the own stream, some time after the batch is dropped if ``late``."""
        batch: Tensor = cache.next()
        with torch.cuda.stream(self.stream):
            if late:
                torch.cuda._sleep(_LONG)
            return batch + 0


def cache_of_ones() -> BatchCache:
    cache = BatchCache([torch.ones(_NUMBERS, device="cuda")], writes_in_place=True)
    torch.cuda.synchronize()
    return cache


def free_block() -> None:
    """Leave the allocator a block of a batch's size that holds other numbers."""
    torch.full((_NUMBERS,), 7.0, device="cuda")


def test_a_copy_is_complete_when_it_is_read() -> None:
    cache, prefetcher = cache_of_ones(), Prefetcher()
    free_block()
    torch.cuda._sleep(_LONG)  # the training step before
    read = prefetcher.read(cache, late=False)
    torch.cuda.synchronize()
    assert bool((read == 1).all())


def test_a_copys_memory_is_not_used_again_before_it_is_read() -> None:
    cache, prefetcher = cache_of_ones(), Prefetcher()
    read = prefetcher.read(cache, late=True)
    following = [torch.full((_NUMBERS,), 7.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert bool((read == 1).all()) and len(following) == 4

"""How much is cached, and that a loop cannot change cached batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipediag.ladder.caches import LIMIT_BATCHES, LIMIT_BYTES, BatchCache, plan_caches

MIB = 1 << 20
WORKERS = st.integers(0, 256)


@given(st.integers(0, 4 * LIMIT_BYTES), WORKERS, st.booleans())
def test_within_the_limits(batch_bytes: int, workers: int, on_cpu: bool) -> None:
    plan = plan_caches(batch_bytes, workers, on_cpu)
    assert plan.held_bytes <= LIMIT_BYTES
    assert plan.held_bytes <= LIMIT_BATCHES * max(1, batch_bytes)
    assert min(plan.device, plan.host, plan.shared, plan.pool_bytes) >= 0
    assert workers or not plan.shared
    if 0 < batch_bytes <= (800 if on_cpu else 400) * MIB:
        assert plan.device >= 1 and bool(plan.host) is not on_cpu, "one of each fits"


@given(st.integers(1, 40 * MIB), WORKERS, st.booleans())
def test_eight_distinct_small_batches(batch_bytes: int, workers: int, on_cpu: bool) -> None:
    plan = plan_caches(batch_bytes, workers, on_cpu)
    assert (plan.device, plan.host, plan.shared) == (8, 0 if on_cpu else 8, 2 if workers else 0)
    assert plan.held_bytes == (plan.device + plan.host + plan.shared) * batch_bytes + max(1, workers) * plan.pool_bytes
    assert plan.distinct == 8


def test_a_batch_that_does_not_fit() -> None:
    plan = plan_caches(LIMIT_BYTES, 4, on_cpu=False)
    assert (plan.device, plan.host, plan.shared) == (0, 0, 0)


@given(st.integers(64 * 1024, 64 * MIB), st.integers(1, 16))
def test_workers_have_room_for_samples(batch_bytes: int, workers: int) -> None:
    """All workers together can keep the samples of two batches, whatever the other caches take."""
    plan = plan_caches(batch_bytes, workers, on_cpu=False)
    assert workers * plan.pool_bytes >= 2 * batch_bytes


def batches(count: int) -> list[Any]:
    return [(torch.full((2,), float(i)), i) for i in range(count)]


def test_batches_are_handed_out_cyclically() -> None:
    cache = BatchCache(batches(3))
    assert len(cache) == 3
    assert [cache.next()[1] for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_no_copies_for_a_loop_that_only_reads() -> None:
    kept = batches(2)
    cache = BatchCache(kept)
    handed = [cache.next()[0] for _ in range(6)]
    assert not cache.writes_in_place
    assert all(a is kept[i % 2][0] for i, a in enumerate(handed) if i > 0)


@pytest.mark.parametrize("known", [True, False], ids=["known before", "detected"])
def test_copies_for_a_loop_that_writes(known: bool) -> None:
    kept = batches(3)
    cache = BatchCache(kept, known)
    for i in range(9):
        tensor, number = cache.next()
        assert tensor.tolist() == [float(i % 3)] * 2
        assert number == i % 3
        tensor.add_(100)
    assert cache.writes_in_place
    assert [tensor.tolist() for tensor, _ in kept] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    clones = [cache.next()[0] for _ in range(6)]
    assert clones[0].data_ptr() != clones[3].data_ptr(), "of the same batch"


def test_a_loop_that_writes_sometimes() -> None:
    """Mixing or erasing with a probability changes only some batches; changes must not accumulate."""
    cache = BatchCache(batches(2))
    for i in range(20):
        tensor, number = cache.next()
        assert abs(tensor[0].item() - number) <= 1
        if i % 3 == 2:
            tensor.add_(1)

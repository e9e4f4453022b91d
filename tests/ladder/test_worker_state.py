"""What one worker keeps between batches: cuts within their memory, pools, the times of samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from pipediag.ladder.workers import worker_state as module
from pipediag.ladder.workers.collating import CollateStubs
from pipediag.ladder.workers.worker_state import (
    ALLOWANCE,
    FILL_SECONDS,
    MAX_ITEMS,
    MIN_ITEMS,
    SHARE,
    OwnTime,
    WorkerState,
    within,
)
from pipediag.measure.evidence import BatchCost
from pipediag.usercode import tree
from pipediag.usercode.chain import chain_of, take_apart
from pipediag.usercode.transform_slots import find_slots

from ..things import Compose, Double, Items, Shift, same


class Clocks:
    """Clocks that the test sets."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.queued = 0.0

    def perf_counter(self) -> float:
        return self.wall


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(module, "time", found)
    return found


def state(clocks: Clocks | None = None) -> WorkerState:
    held = clocks or Clocks()
    return WorkerState(0, lambda: held.cpu, lambda: held.queued, CollateStubs(default_collate))


KIB = 1 << 10


class Kilobytes(Items):
    """Samples of one KiB, through ``links`` transforms."""

    def __init__(self, links: int) -> None:
        super().__init__()
        self.transform = Compose([Double() if number % 2 else Shift() for number in range(links)])

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.full((KIB // 4,), float(index)))


def with_cuts(links: int = 5, samples: int = 12) -> WorkerState:
    found = state()
    dataset = Kilobytes(links)
    slots = find_slots(dataset)
    found.chain = chain_of([take_apart(lambda i=i: dataset[i], slots) for i in range(samples)])
    return found


class TestCuts:
    def test_made_once(self) -> None:
        own = with_cuts()
        own.begin("transform:2")
        pool = own.cut(2, 1000 * KIB)
        assert len(pool) == 12
        assert not own.stable
        own.begin("transform:2")
        assert own.cut(2, 1000 * KIB) is pool
        assert own.stable

    @pytest.mark.parametrize(
        ("order", "room", "samples", "kept"),
        [
            # All cuts are kept if they fit, and each gets its share: of 40 KiB, ten samples.
            ([1, 2, 3, 4], 1000, 12, [1, 2, 3, 4]),
            ([1, 2, 3, 4], 40, 10, [1, 2, 3, 4]),
            # Old cuts make room for the minimum of samples: 20 KiB hold two. The least recently used one is dropped.
            ([1, 2, 3], 20, MIN_ITEMS, [2, 3]),
            ([1, 2, 1, 3], 20, MIN_ITEMS, [1, 3]),
            # At least one sample.
            ([1, 2], 0, 1, [2]),
        ],
    )
    def test_room(self, order: list[int], room: int, samples: int, kept: list[int]) -> None:
        own = with_cuts()
        assert {len(own.cut(links, room * KIB)) for links in order} == {samples}
        assert list(own.cuts) == kept

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 120))
    def test_never_more_than_fits_except_for_one_sample(self, order: list[int], room: int) -> None:
        own = with_cuts(samples=10)
        for links in order:
            pool = own.cut(links, room * KIB)
            held = sum(cut.nbytes() for kept in own.cuts.values() for cut in kept)
            assert held <= max(room * KIB, pool[0].nbytes())
            assert own.cuts[links] is pool


class TestWithin:
    @pytest.mark.parametrize(
        ("sizes", "room", "expected"),
        [
            ([1] * 20, 20, [1] * 20),
            ([3, 4, 5, 1], 8, [3, 4]),
            ([3, 1], 0, [3]),  # the first item always
            ([3, 1], 2, [3]),
            ([], 10, []),
        ],
    )
    def test_only_what_fits(self, sizes: list[int], room: int, expected: list[int]) -> None:
        assert list(within(iter(sizes), lambda size: size, room)) == expected

    def test_no_unneeded_item_is_made(self) -> None:
        """Except the one that turns out too large."""
        source = itertools.count()
        assert list(within(source, lambda _: 1, 3)) == [0, 1, 2]
        assert next(source) == 4

    @pytest.mark.parametrize("seconds, made", [(0.0, MAX_ITEMS), (0.125, 17), (1.0, MIN_ITEMS), (50.0, MIN_ITEMS)])
    def test_slow_items_are_few_but_enough(self, clocks: Clocks, seconds: float, made: int) -> None:
        def items() -> Iterator[int]:
            for number in range(MAX_ITEMS):
                clocks.wall += seconds
                yield number

        assert FILL_SECONDS == 2.0
        assert len(list(within(items(), lambda _: 1, 1000))) == made


class TestTimes:
    @pytest.mark.parametrize(
        ("samples", "times", "slowest"),
        [
            # Each with the seconds that the process has waited for a core until then.
            ([(0.01, 0.0), (0.01, 0.0), (0.01, 0.0)], [0.01, 0.01, 0.01], (0.01, "0")),
            ([(0.01, 0.0), (0.05, 0.0), (0.03, 0.0)], [0.01, 0.05, 0.03], (0.05, "1")),
            # Waiting is subtracted, once, and no time is negative.
            ([(0.01, 0.0), (0.05, 0.04)], [0.01, 0.01], (0.01, "1")),
            ([(0.05, 0.04), (0.05, 0.04)], [0.01, 0.05], (0.05, "1")),
            ([(0.05, 9.0)], [0.0], (0.0, "0")),
        ],
    )
    def test_of_samples(
        self, samples: list[tuple[float, float]], times: list[float], slowest: tuple[float, str]
    ) -> None:
        clocks = Clocks()
        own = state(clocks)
        own.begin("baseline")
        for index, (seconds, clocks.queued) in enumerate(samples):
            own.timed(seconds, index)
        notes = own.note()
        assert notes.times == pytest.approx(times)
        assert notes.slowest == (pytest.approx(slowest[0]), slowest[1])

    def test_the_clock_is_read_only_for_unusually_slow_samples(self) -> None:
        asked = []
        own = state()
        own.queued = lambda: asked.append(1) or 0.0  # type: ignore[func-returns-value]
        for _ in range(50):
            own.timed(0.01, 0)
        assert len(asked) == 1
        own.timed(0.1, 0)
        assert len(asked) == 2

    def test_recording_them_is_pipediags_own_time(self) -> None:
        own = state(Clocks())
        for _ in range(100):
            own.timed(0.01, "x" * 10_000)
        assert 0 < own.own.seconds < 0.1
        assert own.note().slowest == (0.01, repr("x" * 10_000)[:40]), "long indices are cut"


def test_cost(clocks: Clocks) -> None:
    own = state(clocks)
    clocks.wall, clocks.cpu, clocks.queued = 5.0, 2.0, 1.0
    own.begin("raw")
    clocks.wall, clocks.cpu, clocks.queued = 6.0, 2.5, 1.25
    own.copies.seconds += 0.125
    own.collating = 0.5
    assert own.cost() == BatchCost(wall=1.0, cpu=0.5, queued=0.25, copy=0.125, collate=0.5)
    own.begin("raw")
    assert own.cost() == BatchCost()


def test_cost_without_pipediags_own_part(clocks: Clocks) -> None:
    own = state(clocks)
    own.begin("baseline")
    clocks.wall, clocks.cpu = 1.0, 0.75
    own.own.seconds += 0.25
    assert own.cost() == BatchCost(wall=0.75, cpu=0.5, own=0.25)
    own.begin("baseline")
    clocks.wall, clocks.cpu = 2.0, 0.875
    own.own.seconds += 0.25
    assert own.cost() == BatchCost(wall=0.75, cpu=0.0, own=0.25), "never negative"


def test_items_are_drawn_cyclically() -> None:
    own = state()
    assert [own.draw("abc", 2), own.draw("abc", 2), own.draw("abc", 2)] == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_a_cached_batch_gets_new_memory_each_time(clocks: Clocks) -> None:
    own = state()
    cached_batch = {"x": torch.arange(6.0).reshape(2, 3).t().share_memory_(), "label": 3}
    one, other = own.fresh(cached_batch), own.fresh(cached_batch)
    assert same(one, cached_batch) and same(other, cached_batch)
    assert len({batch["x"].data_ptr() for batch in (one, other, cached_batch)}) == 3
    assert not tree.share_memory(cached_batch, [one, other]) and not tree.share_memory(one, other)
    assert one["x"].is_shared() and other["x"].is_shared() and one["x"].is_contiguous()


class TestRemembering:
    """The indices that represent the dataset."""

    @pytest.mark.parametrize("size, kept", [(1, MIN_ITEMS), (4, MIN_ITEMS), (12, 12), (100, MAX_ITEMS)])
    def test_one_batch_of_indices_within_bounds(self, size: int, kept: int) -> None:
        own = state()
        for first in range(0, 400, size):
            own.remember(range(first, first + size))
        assert len(own.indices) == kept
        assert own.complete
        assert len(set(own.indices)) == kept

    def test_not_complete_with_too_few(self) -> None:
        own = state()
        own.remember([1, 2, 3])
        assert not own.complete
        assert own.indices == [1, 2, 3]

    def test_every_index_is_as_likely_as_any_other(self) -> None:
        """320 indices in batches of 8, of which 8 are kept: each in one of 40 workers."""
        counts = [0] * 320
        for seed in range(4000):
            own = state()
            own.chance.seed(seed)
            for first in range(0, 320, 8):
                own.remember(range(first, first + 8))
            for index in own.indices:
                counts[index] += 1
        thirds = [sum(counts[first : first + 40]) for first in range(0, 320, 40)]
        assert sum(thirds) == 32_000
        assert all(abs(found - 4000) < 5 * 60 for found in thirds), "the standard deviation is about 60"

    def test_few_numbers_are_drawn(self) -> None:
        """A batch of thousands of indices must not take longer for being looked through."""
        own, drawn = state(), []
        native = own.chance.random
        own.chance.random = lambda: drawn.append(1) or native()  # type: ignore[method-assign, func-returns-value]
        for first in range(0, 1_000_000, 1000):
            own.remember(range(first, first + 1000))
        assert len(drawn) < 2000

    def test_they_span_all_indices_seen(self) -> None:
        """A dataset may be sorted: its first items do not represent the others."""
        own = state()
        for first in range(0, 1000, 10):
            own.remember(range(first, first + 10))
        assert min(own.indices) < 300
        assert max(own.indices) > 700


def batch(own: OwnTime, seconds: float, busy: float) -> float:
    own.seconds += seconds
    return own.end(busy)


class TestOfABatch:
    def test_is_the_sum_of_what_was_measured(self, clocks: Clocks) -> None:
        own = OwnTime()
        for seconds in (0.25, 0.5):
            with own.measured():
                clocks.wall += seconds
            clocks.wall += 1.0
        assert own.seconds == 0.75
        assert own.end(10.0) == 0.75
        assert own.seconds == 0.0

    def test_counts_if_it_fails(self, clocks: Clocks) -> None:
        own = OwnTime()
        with pytest.raises(OSError), own.measured():
            clocks.wall += 0.25
            raise OSError
        assert own.seconds == 0.25

    def test_is_no_more_than_the_batch(self) -> None:
        assert batch(OwnTime(), 2.0, busy=0.5) == 0.5


class TestBound:
    def test_a_first_allowance(self) -> None:
        own = OwnTime()
        batch(own, 0.75 * ALLOWANCE, busy=0.5)
        assert own.affordable
        own.seconds = 0.5 * ALLOWANCE
        assert not own.affordable, "within a batch as well"

    def test_then_a_share_of_the_workers_time(self) -> None:
        own = OwnTime()
        batch(own, 2 * ALLOWANCE, busy=1.0)
        waited = 1.0
        while not own.affordable:
            batch(own, 0.0, busy=1.0)
            waited += 1.0
        assert waited == pytest.approx(2 * ALLOWANCE / SHARE, abs=1.0)

    def test_stays_within_it_over_a_long_run(self) -> None:
        own, spent, busy = OwnTime(), 0.0, 0.0
        for _ in range(10_000):
            inspects = own.affordable
            spent += batch(own, 0.01 if inspects else 0.0, busy=0.1)
            busy += 0.1
        assert 0.009 * busy < spent <= SHARE * busy + 0.01

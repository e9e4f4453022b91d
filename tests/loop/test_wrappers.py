"""The wrappers of a loader's parts: transparent, and on the loader only for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from pipediag.clock import SystemClock
from pipediag.ladder.feed import Feed
from pipediag.ladder.workers.rung_switch import RungSwitch
from pipediag.ladder.workers.worker_side import WorkerSide
from pipediag.loop import wrappers
from pipediag.loop.wrappers import EndlessSampler, InitWorker, StagedDataset, StagedIterable

from ..clock import Clock
from ..things import Transformed, same


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [next(iterator) for _ in range(count)]


class TestEndlessSampler:
    def test_ends_by_default(self) -> None:
        assert list(EndlessSampler([1, 2, 3])) == [1, 2, 3]

    def test_can_become_endless_while_it_runs(self) -> None:
        sampler = EndlessSampler([1, 2])
        iterator = iter(sampler)
        assert take(iterator, 2) == [1, 2]
        sampler.endless = True
        assert take(iterator, 3) == [1, 2, 1]
        sampler.endless = False
        assert list(iterator) == [2]

    def test_each_round_draws_a_new_order(self) -> None:
        sampler = EndlessSampler(RandomSampler(range(50)))
        sampler.endless = True
        iterator = iter(sampler)
        first, second = take(iterator, 50), take(iterator, 50)
        assert sorted(first) == sorted(second) == list(range(50))
        assert first != second

    def test_the_time_of_the_users_sampler(self) -> None:
        clock = Clock()

        def slow() -> Iterator[int]:
            for number in range(3):
                clock.seconds += 0.5
                yield number

        sampler = EndlessSampler(slow(), now=clock.now)
        iterator = iter(sampler)
        assert next(iterator) == 0 and sampler.spent == 0.5
        clock.seconds += 60.0
        assert list(iterator) == [1, 2] and sampler.spent == 1.5

    @pytest.mark.parametrize(("inner", "items"), [([], []), (iter([1, 2]), [1, 2])])
    def test_an_empty_sampler_and_an_iterator_end(self, inner: Any, items: list[int]) -> None:
        sampler = EndlessSampler(inner)
        sampler.endless = True
        assert list(sampler) == items

    def test_other_attributes_are_the_users(self) -> None:
        inner = BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)
        sampler = EndlessSampler(inner)
        assert len(sampler) == 3
        assert sampler.batch_size == 2
        with pytest.raises(AttributeError):
            _ = sampler.set_epoch

    @given(st.lists(st.integers(), min_size=1, max_size=6), st.integers(0, 30))
    def test_any_length(self, items: list[int], count: int) -> None:
        sampler = EndlessSampler(items)
        sampler.endless = True
        assert take(iter(sampler), count) == [items[i % len(items)] for i in range(count)]


def worker_side(dataset: Any = None) -> WorkerSide:
    return WorkerSide(dataset if dataset is not None else Transformed(size=7), default_collate, RungSwitch(), [])


@pytest.mark.parametrize("shell", [StagedDataset, StagedIterable])
def test_everything_but_fetching_goes_to_the_users_dataset(shell: Any) -> None:
    dataset = Transformed(size=7)
    staged = shell(worker_side(dataset))
    assert staged.transform is dataset.transform
    assert staged.size == 7
    with pytest.raises(AttributeError):
        _ = staged.nonsense
    with pytest.raises(AttributeError):
        _ = staged.__nonsense__


def test_length() -> None:
    assert len(StagedDataset(worker_side())) == 7


@pytest.mark.parametrize("shell", [StagedDataset, StagedIterable, EndlessSampler])
def test_wrappers_can_be_made_without_their_contents(shell: Any) -> None:
    """Unpickling does this; reading an attribute then must not recurse."""
    with pytest.raises(AttributeError):
        _ = shell.__new__(shell).anything


def test_the_state_of_a_sampler_is_its_own() -> None:
    """torchdata saves and restores the iterator's state; a sampler without state has none here either."""

    class Counting:
        state_dict = 5

        def __iter__(self) -> Counting:
            return self

        def __next__(self) -> int:
            return 1

    assert iter(EndlessSampler(Counting())).state_dict == 5
    assert not hasattr(iter(EndlessSampler(range(3))), "state_dict")


class TestInitWorker:
    @pytest.mark.parametrize("users", [True, False])
    def test_workers_see_the_users_dataset(self, monkeypatch: pytest.MonkeyPatch, users: bool) -> None:
        own, seen = worker_side(), list[Any]()
        InitWorker(own, None)(0)  # outside a worker
        info = SimpleNamespace(dataset="wrapped")
        monkeypatch.setattr(wrappers, "get_worker_info", lambda: info)
        InitWorker(own, (lambda worker: seen.append((worker, info.dataset))) if users else None)(3)
        assert info.dataset is own.dataset and seen == [(3, own.dataset)] * users


def native(loader: Any) -> Any:
    return DataLoader._get_iterator(loader)


def attributes(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the loader's attributes without those that torch sets when it is iterated."""
    return {name: value for name, value in vars(loader).items() if not name.startswith("_")}


class Countdown(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6, 0, -1))


class TestFeed:
    """The loader's iterator with the wrappers inside; the loader itself is unchanged."""

    @pytest.mark.parametrize("batch_size", [3, None])
    def test_the_loader_is_restored(self, batch_size: int | None) -> None:
        loader = DataLoader(Transformed(size=7), batch_size=batch_size)
        before = attributes(loader)
        feed = Feed(loader, native, SystemClock())
        feed.open()
        assert attributes(loader) == before
        feed.close()
        assert attributes(loader) == before

    def test_the_loader_is_restored_if_it_cannot_be_iterated(self) -> None:
        loader = DataLoader(Transformed(size=7))
        before = attributes(loader)

        def fails(loader: Any) -> Any:
            raise OSError("too many open files")

        with pytest.raises(OSError, match="too many"):
            Feed(loader, fails, SystemClock()).open()
        assert attributes(loader) == before

    @pytest.mark.parametrize("dataset", [Transformed(size=7), Countdown()], ids=["map-style", "iterable"])
    def test_batches_are_those_of_the_loader(self, dataset: Any) -> None:
        loader = DataLoader(dataset, batch_size=3)
        feed = Feed(loader, native, SystemClock())
        delivered = []
        while (delivery := feed.take()) is not None:
            assert delivery.rung == "baseline"
            delivered.append(delivery.batch)
        assert same(delivered, list(loader))
        assert len(feed.findings.startups) == 1

    def test_random_order_is_that_of_the_loader(self) -> None:
        loader = DataLoader(Transformed(size=7), batch_size=3, shuffle=True)
        torch.manual_seed(5)
        expected = list(loader)
        torch.manual_seed(5)
        feed = Feed(loader, native, SystemClock())
        feed.open()
        delivered = [feed.take() for _ in range(3)]
        assert same([d.batch for d in delivered if d is not None], expected)

    def test_endless(self) -> None:
        feed = Feed(DataLoader(Transformed(size=4), batch_size=3), native, SystemClock())
        feed.endless = True
        sizes = []
        for _ in range(5):
            delivery = feed.take()
            assert delivery is not None
            sizes.append(len(delivery.batch[1]))
        assert sizes == [3, 1, 3, 1, 3]

    def test_renew(self) -> None:
        feed = Feed(DataLoader(Transformed(size=4), batch_size=3), native, SystemClock())
        while feed.take() is not None:
            pass
        feed.renew()
        delivery = feed.take()
        assert delivery is not None
        assert delivery.batch[1].tolist() == [0, 1, 2]

    def test_closing_twice(self) -> None:
        feed = Feed(DataLoader(Transformed(size=4)), native, SystemClock())
        feed.open()
        feed.close()
        feed.close()
        assert feed.worker_pids == []

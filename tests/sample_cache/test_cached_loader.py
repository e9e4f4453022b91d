"""The cached loader yields what the plain one yields, to the last bit, and moves the same generators."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler, get_worker_info
from torchvision import transforms as T

import pipediag
from pipediag.errors import UsageError
from pipediag.sample_cache.loader import CachedLoader
from pipediag.usercode import randomness

from . import datasets
from .datasets import Faulty, Photos, Rows, Texts, photos, table

Make = Callable[[Path], Any]
EPOCHS = 3
METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]


def seeded() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


def epochs(loader: Any, number: int = EPOCHS) -> tuple[list[Any], tuple[Any, ...]]:
    """The batches of some epochs, and the states of the generators after them."""
    seeded()
    return [batch for _ in range(number) for batch in loader], randomness.state()


def assert_same(one: Any, other: Any) -> None:
    """To the last bit, types included."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def compare(loader: DataLoader[Any], number: int = EPOCHS) -> CachedLoader:
    """Assert that a cached loader yields the same as the plain one."""
    expected, state = epochs(loader, number)
    cached = pipediag.cache(loader)
    batches, states = epochs(cached, number)
    assert_same(batches, expected)
    assert randomness.moved(states, state) is None
    return cached


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", datasets.usual())
def test_the_same_batches(name: str, workers: int, tmp_path: Path) -> None:
    make, plan = datasets.usual()[name]
    dataset = make(tmp_path)
    cached = compare(DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers))
    assert cached.plan.startswith(plan)
    assert cached.store is not None
    assert cached.store.entries == len(dataset)


@pytest.mark.parametrize("name", datasets.LEFT_ALONE)
def test_left_alone_with_the_reason(name: str, tmp_path: Path) -> None:
    make, reason = datasets.LEFT_ALONE[name]
    loader = DataLoader(make(tmp_path), batch_size=5, collate_fn=list)
    cached = pipediag.cache(loader)
    assert reason in cached.plan
    assert cached.store is None
    assert len(list(cached)) == len(loader)


def test_samples_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = pipediag.cache(DataLoader(Rows(table(tmp_path)), batch_size=5, shuffle=True))
    first = {float(label) for _, labels in cached for label in labels}
    monkeypatch.delattr(Rows, "__getitem__")
    assert {float(label) for _, labels in cached for label in labels} == first


def test_the_users_loader_does_not_change(tmp_path: Path) -> None:
    loader = DataLoader(Rows(table(tmp_path)), batch_size=5, num_workers=1, persistent_workers=True)
    before = dict(vars(loader))
    cached = pipediag.cache(loader)
    list(cached)
    assert vars(loader) == before
    assert isinstance(cached, DataLoader)
    assert cached.batch_size == 5
    assert len(cached) == len(loader)
    assert cached.dataset.rows is loader.dataset.rows  # type: ignore[attr-defined]
    assert pipediag.cache(cached) is cached


def test_it_takes_a_loader() -> None:
    with pytest.raises(UsageError, match="takes a torch DataLoader, not list"):
        pipediag.cache([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"nbytes": float("nan")}, {"nbytes": -1}, {"samples": 0}, {"samples": True}])
def test_it_takes_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be a whole number"):
        pipediag.cache(DataLoader(torch.zeros(2)), **wrong)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [False, True])
def test_ways_to_start_workers(method: str, persistent: bool, tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomResizedCrop(8), T.ToTensor()]))
    workers = multiprocessing.get_context(method)
    cached = compare(
        DataLoader(
            dataset,
            batch_size=7,
            shuffle=True,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context=workers,
        ),
        number=2,
    )
    assert cached.store is not None
    assert cached.store.entries == len(dataset)


def test_with_replacement_and_without_batches(tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomResizedCrop(8), T.ToTensor()]))
    sampler = WeightedRandomSampler(torch.ones(len(dataset)), 40)
    compare(DataLoader(dataset, batch_size=5, sampler=sampler))
    compare(DataLoader(dataset, batch_size=None, sampler=sampler))


class Permuted:
    """A sampler of the user's: its indices are numpy's numbers."""

    def __len__(self) -> int:
        return datasets.SAMPLES

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.permutation(datasets.SAMPLES))


def test_indices_of_numpy(tmp_path: Path) -> None:
    cached = compare(DataLoader(Rows(table(tmp_path)), batch_size=5, sampler=Permuted()))
    assert cached.store is not None
    assert cached.store.entries == datasets.SAMPLES


def test_indices_that_are_no_numbers(tmp_path: Path) -> None:
    class Named(Rows):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(int(index[3:]))

    names = [f"row{k}" for k in range(9)]
    cached = compare(DataLoader(Named(table(tmp_path)), batch_size=5, sampler=names))
    assert "something other than a number" in cached.plan


def test_epochs_that_break_off(tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomResizedCrop(8), T.ToTensor()]))

    def broken(loader: Any) -> list[Any]:
        seeded()
        return [batch for _ in range(4) for batch, _ in zip(loader, range(2), strict=False)]

    loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=2)
    assert_same(broken(pipediag.cache(loader)), broken(loader))


def test_a_dataset_that_grows(tmp_path: Path) -> None:
    dataset = Rows(table(tmp_path))
    loader = DataLoader(dataset, batch_size=5)
    cached = pipediag.cache(loader)
    list(cached)
    dataset.rows.append([0.0] * 5)
    assert_same(list(cached), list(loader))
    assert len(list(cached)) == 5


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_are_the_datasets_own_and_not_kept(workers: int, tmp_path: Path) -> None:
    cached = pipediag.cache(DataLoader(Faulty(table(tmp_path)), batch_size=3, num_workers=workers))
    for _ in range(2):
        with pytest.raises(ValueError, match="row 21 is broken"):
            list(cached)
    assert cached.store is not None
    assert cached.store.get(21) is None


class Informed(Texts):
    """Records what the user's code sees of the worker."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return super().__getitem__(index)["length"], info is None or info.dataset is self


def name_the_worker(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is Informed
    info.dataset.worker = worker


@pytest.mark.parametrize("method", METHODS)
def test_workers_know_the_users_dataset(method: str, tmp_path: Path) -> None:
    dataset = Informed(datasets.lines(tmp_path))
    loader = DataLoader(
        dataset, batch_size=5, num_workers=2, worker_init_fn=name_the_worker, multiprocessing_context=method
    )
    cached = compare(loader, 2)
    assert cached.store is not None
    assert cached.store.entries == len(dataset)
    assert all(own.all() for _, own in cached)


def test_a_folder_serves_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    dataset = Photos(photos(tmp_path / "data"), T.Compose([T.Resize((9, 9)), T.RandomCrop(8), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5, shuffle=True)
    expected, _ = epochs(loader)
    first = pipediag.cache(loader, folder=tmp_path / "kept")
    assert_same(epochs(first)[0], expected)
    second = pipediag.cache(loader, folder=tmp_path / "kept")
    assert second.store is not None
    assert second.store.entries == len(dataset)
    assert_same(epochs(second)[0], expected)
    dataset.transform.transforms[0].size = (10, 10)
    third = pipediag.cache(loader, folder=tmp_path / "kept")
    assert third.store is not None
    assert third.store.entries == 0


def test_samples_made_anew_are_told(tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomCrop(16), T.ToTensor()]))
    cached = pipediag.cache(DataLoader(dataset, batch_size=5))
    list(cached)
    assert cached.left_out == cached.made_anew == ""
    for name in ("03.png", "04.png"):
        os.utime(tmp_path / name)
    list(cached)
    assert cached.plan.endswith("; samples made anew: 2 since a file of theirs had changed")


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loader = DataLoader(Rows(table(tmp_path)), batch_size=5)
    with pytest.raises(UsageError, match=r"samples cannot be kept in .*; name a folder"):
        pipediag.cache(loader, folder=tmp_path / folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_room_for_some_samples_only(workers: int, tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers)
    expected, _ = epochs(loader)
    cached = pipediag.cache(loader, nbytes=100_000)
    assert_same(epochs(cached)[0], expected)
    assert cached.store is not None
    assert 0 < cached.store.entries < len(dataset)
    left = len(dataset) - cached.store.entries
    assert cached.plan.endswith(f"; {left} of {len(dataset)} samples do not fit: its limit is reached")


@pytest.mark.parametrize("workers", [0, 2])
def test_offloaded(workers: int, tmp_path: Path) -> None:
    crops = [T.Resize((20, 20)), T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor()]
    dataset = Photos(photos(tmp_path), T.Compose(crops))
    loader = DataLoader(dataset, batch_size=6, shuffle=True, num_workers=workers)
    expected, _ = epochs(loader)
    cached = pipediag.cache(loader)
    assert cached.plan.startswith("kept after Resize")
    offloaded = pipediag.offload(cached, "cpu")
    assert offloaded.plan.pieces
    batches, _ = epochs(offloaded)
    assert_same(batches, expected)
    assert offloaded.unrecorded == 0
    assert cached.store is not None
    assert cached.store.entries == len(dataset)


def test_offloaded_although_nothing_is_kept(tmp_path: Path) -> None:
    loader = DataLoader(datasets.Clocked(datasets.lines(tmp_path)), batch_size=5)
    assert len(list(pipediag.offload(pipediag.cache(loader), "cpu"))) == len(loader)

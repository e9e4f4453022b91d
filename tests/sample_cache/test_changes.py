"""What is out of date is never served: changed attributes, transforms, labels, files, and what nobody foresaw."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as T

import pipediag
from pipediag.sample_cache.changes import contents, differing, key_of, makers
from pipediag.sample_cache.cut import Cut

from .datasets import Archive, Epochs, Photos, Rows, Views, archive, photos, table
from .test_cached_loader import assert_same, epochs

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@WORKERS
def test_an_attribute_of_the_epoch(workers: int, tmp_path: Path) -> None:
    dataset = Epochs(table(tmp_path))
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    for epoch in (0, 0, 1, 2, 0):
        dataset.epoch = epoch
        assert_same(list(cached), list(loader))
        assert ("'epoch' has changed" in cached.plan) == (epoch > 0)


@WORKERS
def test_another_transform(workers: int, tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.Resize((20, 20)), T.RandomCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    assert_same(epochs(cached)[0], epochs(loader)[0])
    cached.dataset.transform = T.Compose([T.RandomCrop(8), T.ToTensor()])  # through the loader, as scripts do it
    assert dataset.transform is cached.dataset.transform
    assert_same(epochs(cached)[0], epochs(loader)[0])


@WORKERS
def test_another_link_and_a_links_attribute(workers: int, tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.Resize((20, 20)), T.RandomCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    list(cached)
    dataset.transform.transforms[0].size = (24, 24)
    assert_same(epochs(cached)[0], epochs(loader)[0])
    dataset.transform.transforms[0].size = (20, 20)
    dataset.transform.transforms[1] = T.CenterCrop(16)
    assert_same(epochs(cached)[0], epochs(loader)[0])


def test_a_change_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.Resize((20, 20)), T.RandomCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5)
    cached = pipediag.cache(loader)
    list(cached)

    def growing(loader: Any) -> list[Any]:
        torch.manual_seed(1)
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            dataset.transform.transforms[0].size = (20 + number, 20 + number)
        dataset.transform.transforms[0].size = (20, 20)
        return batches

    assert_same(growing(cached), growing(loader))


@WORKERS
def test_labels_that_are_corrected_in_place(workers: int, tmp_path: Path) -> None:
    dataset = Rows(table(tmp_path))
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    list(cached)
    dataset.rows[3][-1] = 77.0
    assert_same(list(cached), list(loader))
    assert "'rows' has changed" in cached.plan


@WORKERS
def test_a_file_that_is_written_anew(workers: int, tmp_path: Path) -> None:
    dataset = Photos(photos(tmp_path), T.Compose([T.RandomCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    list(cached)
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(dataset.paths[7])
    assert_same(epochs(cached)[0], epochs(loader)[0])
    assert cached.store is not None
    assert cached.store.changed == 1
    assert cached.store.entries == len(dataset)


def test_the_file_that_all_samples_come_from(tmp_path: Path) -> None:
    dataset = Archive(archive(tmp_path))
    loader = DataLoader(dataset, batch_size=5, num_workers=1)  # each epoch's worker opens the file
    cached = pipediag.cache(loader)
    assert_same(epochs(cached)[0], epochs(loader)[0])
    np.savez(dataset.file, signals=np.random.default_rng(1).integers(0, 99, (24, 301)))
    assert_same(epochs(cached)[0], epochs(loader)[0])
    assert "'file' has changed" in cached.plan


class Forgetful(Rows):
    """Its rows change where nobody looks."""

    def __getitem__(self, index: int) -> Any:
        row, label = super().__getitem__(index)
        return row, label + SECRET["added"]


SECRET = {"added": 0}


@WORKERS
def test_spot_checks_find_what_has_changed_unseen(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(Forgetful(table(tmp_path)), batch_size=5, num_workers=workers)
    cached = pipediag.cache(loader)
    assert cached._cache is not None
    cached._cache.every = 7
    expected = list(cached)
    assert_same(list(cached), expected)
    assert cached.plan == "kept whole"
    monkeypatch.setitem(SECRET, "added", 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        list(cached)
    said = [str(one.message) for one in seen if "pipediag" in str(one.message)]
    assert len(said) == (0 if workers else 1)  # a worker says it on its own standard error
    assert "is not what it was when it was kept" in cached.plan
    assert_same(list(cached), list(loader))


def test_spot_checks_leave_the_batches_as_they_are(tmp_path: Path) -> None:
    loader = DataLoader(
        Views(photos(tmp_path), T.Compose([T.RandomCrop(16), T.ToTensor()])), batch_size=5, shuffle=True
    )
    expected = epochs(loader)
    cached = pipediag.cache(loader)
    assert cached._cache is not None
    cached._cache.every = 3
    batches = epochs(cached)
    assert_same(batches[0], expected[0])
    assert torch.equal(batches[1][1], expected[1][1])
    assert cached.plan.startswith("kept before RandomCrop")


class Sometimes(Rows):
    """Draws for one of its rows only."""

    def __getitem__(self, index: int) -> Any:
        row, label = super().__getitem__(index)
        return row, label + (random.random() if index == 20 else 0)


def test_a_sample_that_draws_although_none_that_was_tried_did(tmp_path: Path) -> None:
    loader = DataLoader(Sometimes(table(tmp_path)), batch_size=5)
    expected = epochs(loader)
    cached = pipediag.cache(loader)
    batches = epochs(cached)
    assert_same(batches[0], expected[0])
    assert batches[1][0] == expected[1][0]
    assert cached.store is not None
    assert cached.store.get(20) is None
    assert cached.store.entries == 23


def test_contents_of_attributes() -> None:
    class Held:
        def __init__(self) -> None:
            self.array = np.zeros(5)
            self.tensor = torch.zeros(5)
            self.names = ["a", "b"]
            self.nested = [[1, 2], {"a": [3]}]
            self.by_name = {"a": 1}
            self.none: Any = None

    held = Held()
    before = contents([held])
    assert differing(before, contents([held]), [held]) == frozenset()
    held.array[2] = 1
    held.tensor[2] = 1
    held.names[0] = "c"
    held.nested[1]["a"][0] = 4  # type: ignore[call-overload]
    held.by_name["b"] = 2
    held.none = object()
    assert differing(before, contents([held]), [held]) == set(vars(held))
    assert differing(before, contents([held]), []) == frozenset()


def test_contents_of_unusual_arrays() -> None:
    class Held:
        def __init__(self) -> None:
            self.empty = np.zeros((0, 3))
            self.single = np.array(3.0)
            self.records = np.zeros(3, dtype=[("x", "i4"), ("y", "f8")])
            self.objects = np.array([None, 1], dtype=object)
            self.matrix = np.asmatrix([[1, 2]])
            self.dates = np.array(["2020-01-01"], dtype="datetime64[D]")
            self.turned = np.asfortranarray(np.zeros((3, 4)))
            self.sparse = torch.eye(3).to_sparse()
            self.conjugate = torch.ones(3, dtype=torch.complex64).conj()
            self.scalar = torch.tensor(1, dtype=torch.bfloat16)
            self.across = torch.zeros(3, 4).t()
            self.weight = torch.nn.Parameter(torch.ones(3))

    held = Held()
    before = contents([held])
    assert differing(before, contents([held]), [held]) == frozenset()
    held.single[...] = held.records["y"][1] = held.matrix[0, 1] = 7
    held.scalar.add_(1)
    held.weight.data[1] = 2
    assert differing(before, contents([held]), [held]) == {"single", "records", "matrix", "scalar", "weight"}


def test_parts_of_a_large_array() -> None:
    class Held:
        array = np.zeros(1, np.uint8)

    held = Held()
    held.array = np.zeros((3 << 26) + 5, np.uint8)
    before = contents([held])
    held.array[:] = 1
    assert differing(before, contents([held]), [held]) == {"array"}


def test_keys_of_folders(tmp_path: Path) -> None:
    cut = Cut({}, ())
    dataset = Rows(table(tmp_path))
    keys = [key_of(dataset, cut), key_of(Epochs(dataset.file), cut)]
    dataset.rows *= 1000
    keys.append(key_of(dataset, cut))
    assert key_of(dataset, cut) == keys[-1]
    dataset.rows[20_000] = [0.0]
    keys.append(key_of(dataset, cut))
    keys.append(key_of(dataset, Cut({0: 1}, ())))
    dataset.file.write_text("1,2")
    keys.append(key_of(dataset, cut))
    assert len(set(keys)) == len(keys)


def test_makers_are_the_datasets_and_the_links_before_the_cut(tmp_path: Path) -> None:
    links = [T.Resize(9), T.RandomCrop(8)]
    dataset = torch.utils.data.Subset(Photos(tmp_path, T.Compose(links)), [0])
    assert makers(dataset) == [dataset, dataset.dataset, *links]
    assert makers(dataset, {0: 1}) == [dataset, dataset.dataset, links[0]]


class Rarely:
    """Writes into some of the images that it gets."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.1:
            image[:] = 0
        return image


def halved(samples: list[Any]) -> list[torch.Tensor]:
    return [row.div_(2) for row, _ in samples]


def test_user_code_may_write_into_what_it_gets(tmp_path: Path) -> None:
    images = Photos(photos(tmp_path), T.Compose([T.Resize((9, 9)), T.ToTensor(), Rarely()]))
    for loader in (DataLoader(images, batch_size=5), DataLoader(Rows(table(tmp_path)), collate_fn=halved)):
        expected = epochs(loader)
        assert_same(epochs(pipediag.cache(loader))[0], expected[0])

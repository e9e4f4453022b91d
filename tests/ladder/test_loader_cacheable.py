"""What a loader tells about a cache of its samples before one is tried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import pipediag
from pipediag.ladder.loader_facts import describe


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Drawing(Plain):
    def __getitem__(self, index: int) -> int:
        return random.choice([index, index + 1])


class Together(Plain):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class OwnIterator(DataLoader[int]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader(Plain()), ""),
        (DataLoader(Together()), ""),
        (DataLoader(Stream()), "the samples of an iterable dataset have no index"),
        (DataLoader(Endless(), sampler=range(8)), "the dataset has no length"),
        (OwnIterator(Plain()), "OwnIterator has an iterator of its own"),
    ],
    ids=["plain", "together", "stream", "endless", "own iterator"],
)
def test_the_cache_refuses_what_is_said_to_be_refused(loader: DataLoader[int], why: str) -> None:
    """The same condition decides in both places."""
    told = describe(loader, "train.py:1", 0)
    assert told.uncached == why
    if why:
        assert pipediag.cache(loader).plan == f"nothing is kept: {why}"


@pytest.mark.parametrize("dataset", [Drawing(), Subset(Drawing(), [1, 2])], ids=["itself", "a part of it"])
def test_samples_that_the_datasets_own_code_draws(dataset: Dataset[int]) -> None:
    told = describe(DataLoader(dataset), "train.py:1", 0)
    assert told.uncached == "its samples draw from a random generator outside its transforms"
    assert "outside its transforms" in pipediag.cache(DataLoader(dataset)).plan


def test_samples_that_are_made_together() -> None:
    assert describe(DataLoader(Together()), "", 0).together
    assert not describe(DataLoader(Plain()), "", 0).together

"""What a loader tells about a cache before one is tried."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from pipediag.ladder.loader_facts import describe


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class OwnIterator(DataLoader[int]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Stateful(DataLoader[int]):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_only_a_loader_that_saves_its_place_keeps_nothing() -> None:
    for loader in (DataLoader(Plain()), DataLoader(Stream()), OwnIterator(Plain())):
        assert describe(loader, "train.py:1", 0).uncached == ""
    assert "saves its place" in describe(Stateful(Plain()), "train.py:1", 0).uncached

"""What a loader is said to be: whose code it runs, and on which lines."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import FakeData

from pipediag.ladder.loader_facts import availability, describe
from pipediag.loop.iterables import loader_over
from pipediag.session import Loader
from pipediag.usercode import constructions
from pipediag.usercode.places import placed, short

from ..things import Compose, Double, Transformed


def described(dataset: Any, line: str = "train.py:10") -> Loader:
    return describe(DataLoader(dataset), line, 0)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only source file that is searched for constructions."""
    file = tmp_path / "script.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constructions, "_users_files", lambda: [str(file)])
    return file


class TestDataset:
    def test_the_users_own(self) -> None:
        found = described(Subset(Transformed(), [0, 1])).dataset_code
        assert found == placed("Transformed.__getitem__", Transformed.__getitem__)
        assert found is not None and (found.library, found.made) == (False, "")

    def test_a_librarys_with_the_users_line_that_makes_it(self) -> None:
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        dataset = FakeData(size=4)
        found = described(Subset(dataset, [0, 1])).dataset_code
        assert found is not None and found.library
        assert (found.name, found.where.rpartition(":")[0]) == (
            "FakeData.__getitem__",
            "torchvision/datasets/fakedata.py",
        )
        assert found.made == f"{short(__file__)}:{line}"

    def test_a_librarys_without_a_line(self, script: Path) -> None:
        script.write_text("one, other = FakeData(size=4), FakeData(size=8)")
        found = describe(DataLoader({"train": FakeData(size=4)}["train"]), "", 0)
        assert found.dataset_code is not None and found.dataset_code.made == ""
        assert found.where == found.dataset_code.where, "the loop has no line either"

    def test_a_librarys_loader_of_a_librarys_dataset_is_at_the_call_of_the_library(self, script: Path) -> None:
        script.write_text("one, other = FakeData(size=4), FakeData(size=8)")
        loader = DataLoader({"train": FakeData(size=4)}["train"])
        assert describe(loader, "", 0, "train.py:20").where == "train.py:20"
        assert describe(loader, "train.py:10", 0, "train.py:20").where == "train.py:10"
        own = describe(DataLoader({"train": Plain()}["train"]), "", 0, "train.py:20")
        assert own.dataset_code is not None and own.where == own.dataset_code.where


class TestLoop:
    def test_is_the_users(self) -> None:
        assert described(FakeData(size=4)).where == "train.py:10"

    def test_of_a_library_is_where_the_dataset_is_made(self, script: Path) -> None:
        script.write_text("data = {'train': FakeData(size=4)}")
        assert describe(DataLoader({"train": FakeData(size=4)}["train"]), "", 0).where == "script.py:1"


class TestTransform:
    def test_the_users_own(self) -> None:
        found = described(Transformed(Double())).transform
        assert found == placed("Double", Double)

    def test_a_librarys_chain_is_where_the_script_constructs_it(self, script: Path) -> None:
        script.write_text("size = 4\nchain = Compose([CenterCrop(size), ToTensor()])")
        chain = v1.Compose([v1.CenterCrop(4), v1.ToTensor()])
        found = described(Transformed(chain)).transform
        assert found is not None
        assert (found.name, found.where, found.library) == ("Compose(CenterCrop, ToTensor)", "script.py:2", False)

    def test_else_where_the_dataset_applies_it(self, script: Path) -> None:
        for chain in (v1.Compose([v1.CenterCrop(4)]), v1.CenterCrop(4)):
            found = described(Transformed(chain)).transform
            assert found is not None and found.where == placed("", Transformed.__getitem__).where

    def test_a_chain_of_the_users(self) -> None:
        found = described(Transformed(Compose([Double()]))).transform
        assert found == placed("Compose", Compose)


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


def test_a_generator_is_not_used_up_by_measuring_it_alone() -> None:
    rungs = ("baseline", "supply", "device")
    for loader, measurable in ((DataLoader(Plain()), rungs), (loader_over(iter([1, 2])), ("baseline", "device"))):
        found = availability(loader, True, {}, rungs)
        assert tuple(rung.name for rung in found if rung.available) == measurable

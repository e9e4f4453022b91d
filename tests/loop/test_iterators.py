"""The classes that make a DataLoader's iterators are found and hooked, whenever they are defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pipediag.errors import UsageError
from pipediag.loop.copies import require_no_state
from pipediag.loop.iterators import (
    IteratorHook,
    foreign_method,
    get_iterator_replaced,
    is_iterated_by_script,
    maker_of,
)

DATA = list(range(4))


def making() -> type[Any]:
    """A subclass that makes its iterators itself; as in torchdata, it is defined before its iterators."""

    class Making(DataLoader):  # type: ignore[misc,type-arg]
        def _get_iterator(self) -> Any:
            return OwnIterator(self)

        def state_dict(self) -> dict[str, Any]:
            return {}

    return Making


class Passing(DataLoader):  # type: ignore[misc,type-arg]
    """Calls DataLoader's own method."""

    calls = 0

    def _get_iterator(self) -> Any:
        Passing.calls += 1
        return super()._get_iterator()


class Generating(DataLoader):  # type: ignore[misc,type-arg]
    """Returns an iterator that is not a DataLoader's."""

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.dataset)


class OwnIterator(_BaseDataLoaderIter):  # type: ignore[misc]
    """An iterator without batches."""


def seen_by_hook(classes: Callable[[], type[Any]]) -> list[type]:
    """Return the makers for which the hook was called while the script iterated a loader of the class."""
    built: list[type] = []

    def build(loader: Any, native: Callable[[Any], Any]) -> Any:
        built.append(maker_of(loader))
        return native(loader)

    with IteratorHook(build).installed():
        iter(classes()(DATA))
    return built


def test_a_class_that_makes_iterators_itself_is_hooked_whether_defined_before_or_after() -> None:
    before = making()
    assert seen_by_hook(lambda: before) == [before]
    (after,) = seen_by_hook(making)
    assert after.__name__ == "Making" and after is not before


def test_a_class_that_calls_the_native_method_is_hooked_once() -> None:
    Passing.calls = 0
    assert seen_by_hook(lambda: Passing) == [Passing]
    assert Passing.calls == 1


def test_iterators_of_another_kind_are_left_alone() -> None:
    assert seen_by_hook(lambda: Generating) == []


def test_everything_is_restored() -> None:
    own = making()
    before = [vars(cls).get(name) for cls in (DataLoader, own) for name in ("_get_iterator", "__init_subclass__")]
    with get_iterator_replaced(DataLoader, lambda maker: lambda loader: None):
        assert vars(own)["_get_iterator"] is not before[2]
    after = [vars(cls).get(name) for cls in (DataLoader, own) for name in ("_get_iterator", "__init_subclass__")]
    assert after == before


def test_a_loader_that_saves_its_place_is_not_replaced() -> None:
    require_no_state(DataLoader(DATA))
    require_no_state(Generating(DATA))
    with pytest.raises(UsageError, match="Making saves its place in the epoch"):
        require_no_state(making()(DATA))


class Iterating(DataLoader):  # type: ignore[misc,type-arg]
    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def test_code_on_a_batchs_way_out_that_is_not_torchs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, iterating = DataLoader(DATA), Iterating(DATA)
    assert foreign_method(plain) == foreign_method(plain, around=True) == foreign_method(iterating) == ""
    assert foreign_method(iterating, around=True) == "Iterating.__iter__"
    assert foreign_method(Passing(DATA)) == "Passing._get_iterator"
    with IteratorHook(lambda loader, native: native(loader)).installed():
        assert foreign_method(plain) == "", "layers of ours are on torch's own code"
        assert foreign_method(Passing(DATA)) == "Passing._get_iterator"
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", lambda self: None)
    assert foreign_method(plain) == "_BaseDataLoaderIter.__next__"
    monkeypatch.undo()
    plain.__dict__["_get_iterator"] = lambda: iter(DATA)
    assert foreign_method(plain) == "its own _get_iterator"


def test_code_of_the_script_that_gets_what_workers_send(monkeypatch: pytest.MonkeyPatch) -> None:
    for loader in (DataLoader(DATA), Iterating(DATA), Passing(DATA)):
        assert not is_iterated_by_script(loader), "it gets the batches"
    assert is_iterated_by_script(making()(DATA))
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", lambda self: None)
    assert is_iterated_by_script(DataLoader(DATA))

"""Objects whose ``__getattr__`` raises are looked at like any other."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pipediag.ladder.loader_facts import describe
from pipediag.usercode import tree
from pipediag.usercode.attributes import HeldByObject, attribute, has_attribute, is_a, is_exactly, unwrapped
from pipediag.usercode.contents import is_record
from pipediag.usercode.links import links_of
from pipediag.usercode.loops import loop_line
from pipediag.usercode.places import code_of, place_of
from pipediag.usercode.stand_ins import standing_in
from pipediag.usercode.transform_slots import find_slots, is_dataset

ERRORS = [KeyError, RuntimeError, ValueError, AttributeError, RecursionError]


class Rigid(Dataset[Any]):
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1)

    def __call__(self, data: Any) -> Any:
        return data

    def __getattr__(self, name: str) -> Any:
        raise self.__dict__.get("error", AttributeError)(name)


@pytest.mark.parametrize("error", ERRORS)
def test_an_attribute_that_raises_is_absent(error: type[Exception]) -> None:
    rigid = Rigid(error)
    assert attribute(rigid, "transform", 7) == 7 and attribute(rigid, "error") is error
    assert not has_attribute(rigid, "transform") and has_attribute(rigid, "error")
    assert unwrapped(rigid) is rigid and unwrapped(len) is len


@pytest.mark.parametrize("error", ERRORS)
def test_a_loader_of_such_objects_is_described(error: type[Exception]) -> None:
    loader = DataLoader(Rigid(error), batch_size=None, collate_fn=Rigid(error))
    loop_line(loader)
    assert describe(loader, "", 0).dataset
    assert place_of(Rigid(error)).name == "Rigid"
    assert tree.nbytes([Rigid(error)]) == tree.nbytes([Rigid(AttributeError)])


class Classless:
    """Its class cannot be asked for; natively nobody does."""

    @property
    def __class__(self) -> Any:
        raise KeyError("the planted error")

    def __call__(self, data: Any) -> Any:
        return data


def test_an_object_whose_class_raises_is_what_its_type_says() -> None:
    one = Classless()
    with pytest.raises(KeyError):
        isinstance(one, int)
    assert not is_a(one, (int, str)) and is_a(one, Classless) and is_a(3, int)
    assert not is_dataset(one) and is_record(one) and code_of(one) == id(Classless)
    assert list(tree.leaves([one, {"a": (one, 2)}])) == [one, one, 2]
    data = Rigid(KeyError)
    data.transform, data.held = one, [one]
    assert "transform" in [slot.name for slot in find_slots(data)]


class Incomparable(type):
    """Classes that compare and hash as nobody expects."""

    def __eq__(cls, other: object) -> bool:
        raise KeyError("the planted error")

    def __hash__(cls) -> int:
        raise KeyError("the planted error")


class Entry(dict[str, int], metaclass=Incomparable):
    def __call__(self, data: Any) -> Any:
        return data


class Registry(Mapping[str, int], metaclass=type("Meta", (Incomparable, type(Mapping)), {})):  # type: ignore[misc]
    def __getitem__(self, name: str) -> int:
        return 3

    def __iter__(self) -> Iterator[str]:
        return iter(["one"])

    def __len__(self) -> int:
        return 1


def test_types_are_told_apart_by_identity() -> None:
    one = Entry(one=3)
    with pytest.raises(KeyError):
        type(one) in (tuple, list)  # noqa: B015
    assert not is_exactly(one, tuple, list, dict) and is_exactly(one, tuple, Entry)
    for kind in (Entry, Registry):
        made = kind(one=3) if kind is Entry else kind()
        assert is_a(made, Mapping) and is_a(made, (int, Mapping)) and not is_a(made, (int, torch.Tensor))
        assert list(tree.leaves([made, 4])) == [3, 4]
    assert code_of(one) == code_of(Entry()) != code_of(Classless())
    assert place_of(one) == place_of(Entry()) and place_of(one).where
    assert links_of(one) == [one]
    assert standing_in(one, lambda: 5)() == standing_in(Entry(), lambda: 5)() == 5


class Holder:
    """What a value may be held by."""


def test_a_value_that_leads_back_to_its_object_goes_with_it() -> None:
    held, one = HeldByObject[list[Any]](), Holder()
    held.set(one, [one])
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_object_holds_no_value(again: Callable[[Any], Any]) -> None:
    held, one = HeldByObject[Any](), Holder()
    held.set(one, threading.Lock())  # which cannot be copied
    other = again(one)
    assert one in held and other not in held and held.get(other) is None
    held.set(other, 2)
    assert held.get(other) == 2 and held.get(one) != 2


def test_values_are_replaced_and_taken_back() -> None:
    held, other, one = HeldByObject[int | None](), HeldByObject[int](), Holder()
    assert one not in held and held.get(one) is None
    held.set(one, 1)
    held.set(one, None)
    assert one in held and held.get(one) is None and one not in other
    held.clear()
    assert one not in held and vars(one) == {}

"""Objects of the user's own classes are taken apart and put together without a call of their code."""

from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pipediag.usercode.contents import slot_values
from pipediag.usercode.objects import holds_twice, leaves, moved, replaced, taken_apart, why_whole

CALLS: list[str] = []


class Plain:
    def __init__(self, x: Any) -> None:
        CALLS.append("init")
        self.x, self.again, self.more = x, x, {"in": [x, 3]}

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append("set")
        super().__setattr__(name, value)

    def to(self, device: Any) -> Plain:
        CALLS.append("to")
        return self


class Slotted:
    __slots__ = ("_y", "x")

    def __init__(self, x: Any) -> None:
        self.x, self._y = x, 5


class OfBoth(Slotted):
    def __init__(self, x: Any) -> None:
        super().__init__(x)
        self.z = 7


class Named(NamedTuple):
    x: Any
    y: int = 5

    def to(self, device: Any) -> Named:
        CALLS.append("to")
        return self


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: int = 5

    def __post_init__(self) -> None:
        CALLS.append("init")


@dataclasses.dataclass(slots=True, frozen=True)
class FrozenSlots:
    x: Any
    y: int = 5


class OfDict(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__

    def __init__(self, x: Any) -> None:
        super().__init__(x=x)


class OfList(list):  # type: ignore[type-arg]
    def __init__(self, x: Any) -> None:
        super().__init__([x, 2])
        self.z = 7


MAKES = [Plain, Slotted, OfBoth, Named, Frozen, FrozenSlots, OfDict, OfList]


def what_is_in(obj: Any) -> Any:
    content = taken_apart(obj)
    assert content is not None
    return content[0], content.parts


@pytest.mark.parametrize("make", MAKES)
def test_the_same_object_again(make: Callable[[Any], Any]) -> None:
    obj = make(torch.arange(3))
    CALLS.clear()
    content = taken_apart(obj)
    assert content is not None
    again = content.together()
    assert type(again) is type(obj) and again is not obj and not CALLS
    assert [id(one) for one in leaves(again)] == [id(one) for one in leaves(obj)]
    by_pickle = pickle.loads(pickle.dumps(obj))
    CALLS.clear()
    numbers = [one.tolist() if isinstance(one, Tensor) else one for one in leaves(by_pickle)]
    assert numbers == [one.tolist() if isinstance(one, Tensor) else one for one in leaves(obj)]
    assert what_is_in(by_pickle)[0] is what_is_in(obj)[0]


@pytest.mark.parametrize("make", MAKES)
def test_other_leaves(make: Callable[[Any], Any]) -> None:
    obj = make(torch.arange(3))
    CALLS.clear()
    made = replaced([obj, obj], lambda leaf: leaf + 1 if isinstance(leaf, Tensor) else leaf)
    (one,) = {id(leaf): leaf for leaf in leaves(made[0]) if isinstance(leaf, Tensor)}.values() or (None,)
    assert one.tolist() == [1, 2, 3] and not CALLS
    assert made[0] is made[1] and (made[0] is obj or isinstance(obj, tuple))


@pytest.mark.parametrize("make", MAKES)
def test_leaves_in_a_list_are_those_of_the_object(make: Callable[[Any], Any]) -> None:
    obj = make(torch.arange(3))
    assert [*map(id, leaves([(obj, obj)]))] == [*map(id, leaves(obj))] * 2


def test_lists_and_dicts_get_other_leaves_all_at_once() -> None:
    inner: dict[str, Any] = {"one": 1}
    batch: list[Any] = [inner, (2, inner), collections.defaultdict(list, three=3)]
    batch.append(batch)

    def fails(leaf: int) -> int:
        if leaf == 3:
            raise ValueError
        return 0

    with pytest.raises(ValueError):
        replaced(batch, fails)
    assert inner == {"one": 1} and batch[1] == (2, inner) and batch[2] == {"three": 3}
    made = replaced(batch, lambda leaf: leaf if leaf is batch else leaf + 1)
    assert made is batch is batch[3] and made[0] is made[1][1] is inner == {"one": 2} and made[2] == {"three": 4}


def test_what_is_on_the_device_already_is_handed_on_itself() -> None:
    batch = {"of": Plain(torch.arange(3)), "named": Named(torch.ones(2))}
    CALLS.clear()
    assert moved(batch, torch.device("cpu")) is batch
    there = moved(batch, torch.device("meta"))
    assert there["of"].x.is_meta and there["of"].more["in"][0].is_meta and there["named"].x.is_meta
    assert there["of"] is not batch["of"] and batch["of"].x.is_cpu and not CALLS


class Pickled(Plain):
    def __getstate__(self) -> Any:
        return {}


class Reduced(Plain):
    def __reduce__(self) -> Any:
        return Plain, (1,)


class Set(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)


class New:
    def __new__(cls) -> Any:
        return super().__new__(cls)


class Ordered(OrderedDict[Any, Any]):
    pass


class Read:
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@pytest.mark.parametrize("obj", [Pickled(1), Reduced(1), Set(), New(), Ordered(), Read()])
def test_what_has_a_way_of_its_own_to_be_copied_stays_whole(obj: Any) -> None:
    assert taken_apart(obj) is None and why_whole(obj)


@pytest.mark.parametrize("obj", [5, "text", None, [1], (1,), {}, torch.ones(1), torch.nn.Linear(1, 1), Plain, pickle])
def test_what_is_no_object_of_the_users(obj: Any) -> None:
    assert taken_apart(obj) is None


class Store:
    """As graph libraries keep their data: with a reference back, which is restored when it is copied."""

    def __init__(self, parent: Any, x: Tensor) -> None:
        self.parent, self.x = weakref.ref(parent), x

    def __getstate__(self) -> Any:
        return {**self.__dict__, "parent": None}

    def to(self, device: Any) -> Store:
        self.x = self.x.to(device)
        return self


class Graph:
    def __init__(self, x: Tensor) -> None:
        self.store = Store(self, x)

    def __deepcopy__(self, memo: Any) -> Graph:
        return Graph(self.store.x.clone())

    def to(self, device: Any) -> Graph:
        self.store.to(device)
        return self


def test_an_object_with_a_reference_back_moves_itself() -> None:
    graph = Graph(torch.ones(2))
    there = moved([graph], torch.device("meta"))[0]
    assert there.store.x.is_meta and there.store.parent() is there and graph.store.x.is_cpu


def test_an_object_that_holds_itself() -> None:
    obj = Plain(1)
    obj.x = obj
    assert 3 in list(leaves(obj)) and replaced(obj, lambda leaf: leaf) is obj
    twice = [1]
    assert holds_twice([twice, {"in": twice}]) and not holds_twice([[1], {"in": (1,)}, (), ()])


def test_another_thread_may_add_to_a_class() -> None:
    obj, goes_on, before = Slotted(1), [True], sys.getswitchinterval()

    def add() -> None:
        while goes_on:
            for number in range(50):
                setattr(Slotted, f"of_{number}", number)
            for number in range(50):
                delattr(Slotted, f"of_{number}")

    adding = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    adding.start()
    try:
        assert all(slot_values(obj) == {"x": 1, "_y": 5} for _ in range(2000))
    finally:
        goes_on.clear()
        adding.join()
        sys.setswitchinterval(before)

"""Where datasets keep their transforms, and that everything is put back."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, SequentialSampler, Subset, random_split
from torch.utils.data import default_collate as torch_collate

from pipediag.usercode.chain import take_apart
from pipediag.usercode.spying import Recorder, spied
from pipediag.usercode.transform_slots import Slot, find_slots, function_slots

from ..things import Double, Items, Shift, Transformed

GLOBAL = Double()


def a_function(x: Any) -> Any:
    return x * 2


def names(dataset: Any) -> list[str]:
    return [slot.name for slot in find_slots(dataset)]


def holder(**attributes: Any) -> Items:
    dataset = Items()
    vars(dataset).update(attributes)
    return dataset


@pytest.mark.parametrize(
    "transform",
    [Double(), a_function, lambda x: x, functools.partial(a_function), torch.nn.ReLU(), Double().__call__],
    ids=["object", "function", "lambda", "partial", "module", "bound method"],
)
def test_attribute(transform: Any) -> None:
    (slot,) = find_slots(holder(augment=transform))
    assert slot.name == "augment"
    assert slot.get() == transform


def test_several_attributes() -> None:
    assert names(holder(transform=Double(), target_transform=a_function)) == ["transform", "target_transform"]


def test_list_of_transforms() -> None:
    dataset = holder(transforms=[Double(), Shift()])
    slots = find_slots(dataset)
    assert [slot.name for slot in slots] == ["transforms[0]", "transforms[1]"]
    with slots[1].replaced("spy"):
        assert dataset.transforms[1] == "spy"
        assert isinstance(dataset.transforms[0], Double)


def test_tuple_of_transforms() -> None:
    dataset = holder(transforms=(Double(), Shift()))
    with find_slots(dataset)[0].replaced("spy"):
        assert isinstance(dataset.transforms, tuple)
        assert dataset.transforms[0] == "spy"


def test_dict_of_transforms() -> None:
    dataset = holder(transforms={"image": Double(), "mask": Shift(), "size": 3})
    assert names(dataset) == ["transforms['image']", "transforms['mask']"]


class Noise(Items):
    """Mixes in samples of its own."""

    def __call__(self, x: Any) -> Any:
        return x + self[0]


def test_a_transform_that_is_a_dataset_too() -> None:
    """One of them does not hide its neighbours; datasets beside each other are none."""
    assert names(holder(transforms=[Double(), Noise(), Shift()])) == [f"transforms[{n}]" for n in range(3)]
    assert names(holder(parts=[Noise(), Noise()])) == [] == names(holder(noise=Noise()))


def test_named_tuple_of_transforms() -> None:
    class Both(NamedTuple):
        image: Any
        mask: Any

    before = Both(Double(), Shift())
    dataset = holder(transforms=before)
    with ExitStack() as stack:
        for slot in find_slots(dataset):
            stack.enter_context(slot.replaced("spy"))
        assert dataset.transforms == Both("spy", "spy")
    assert dataset.transforms == before


@pytest.mark.parametrize(
    "name",
    ["loader", "load_image", "reader", "open_fn", "decoder", "fetch", "batch_sampler", "collate", "is_valid_file",
     "index_fn", "find_classes", "Loader"],
)  # fmt: skip
def test_what_makes_raw_data_is_no_transform(name: str) -> None:
    assert names(holder(**{name: a_function})) == []
    assert names(holder(**{name: [a_function]})) == []
    assert names(holder(**{name: {"a": a_function}})) == []


@pytest.mark.parametrize(
    "value",
    [3, "text", None, [1, 2], [], {}, torch.zeros(3), torch.Generator(), Double, types, SequentialSampler([1])],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_called_is_no_transform(value: Any) -> None:
    assert names(holder(transform_of=value)) == []


class Wrapper(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __len__(self) -> int:
        return len(self.inner)


class Plain:
    """A home-made wrapper that is no ``Dataset``."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def __getitem__(self, index: int) -> Any:
        return self.parts[0][index]

    def __len__(self) -> int:
        return 1


WRAPPINGS: dict[str, Callable[[Any], Any]] = {
    "subset": lambda d: Subset(d, range(4)),
    "random_split": lambda d: random_split(d, [32, 32])[1],
    "concat": lambda d: ConcatDataset([d, Items()]),
    "home-made": Wrapper,
    "no dataset": Plain,
    "several": lambda d: Subset(Wrapper(ConcatDataset([Plain(d)])), [0]),
}


@pytest.mark.parametrize("wrapping", list(WRAPPINGS))
def test_through_wrappers(wrapping: str) -> None:
    inner = Transformed()
    transform = inner.transform
    (slot,) = find_slots(WRAPPINGS[wrapping](inner))
    with slot.replaced("spy"):
        assert inner.transform == "spy"
    assert inner.transform is transform


def test_the_same_dataset_twice_is_searched_once() -> None:
    inner = Transformed()
    assert names(ConcatDataset([inner, inner])) == ["transform"]


def test_datasets_that_refer_to_each_other() -> None:
    one, other = Wrapper(None), Wrapper(None)
    one.inner, other.inner = other, one
    assert names(one) == []


class UsesGlobal(Items):
    def __getitem__(self, index: int) -> Any:
        return GLOBAL(self.raw(index)), a_function(index)


class Many(Items):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [GLOBAL(self.raw(i)) for i in indices]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(GLOBAL, range(3))


@pytest.mark.parametrize("dataset", [UsesGlobal(), Many(), Stream(), Wrapper(UsesGlobal())])
def test_globals(dataset: Any) -> None:
    """An object used by a global name; functions are code, and too many to be spied on."""
    (slot,) = find_slots(dataset)
    assert slot.name == "GLOBAL"
    before = GLOBAL
    with slot.replaced("spy"):
        assert GLOBAL == "spy"
    assert GLOBAL is before


class Refusing(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "augment":
            raise TypeError
        super().__setattr__(name, value)


class OfClass(Items, metaclass=Refusing):
    augment = Double()
    both = Double()

    def __init__(self) -> None:
        super().__init__()
        self.both = Double()

    def transform(self, image: Any) -> Any:
        return self.augment(image)


class Derived(OfClass):
    pass


@pytest.mark.parametrize("dataset", [OfClass(), Derived(), ConcatDataset([OfClass(), Derived()])])
def test_attributes_of_classes(dataset: Any) -> None:
    """Methods are code; an attribute of the object hides one of its class."""
    before = OfClass.augment
    slot = next(slot for slot in find_slots(dataset) if slot.name == "augment")
    assert {*names(dataset)} == {"augment", "both"} and names(dataset).count("augment") == 1
    with slot.replaced("spy"):
        assert OfClass.augment == "spy"
    assert OfClass.augment is before


def closing_over(transform: Any) -> Dataset[Any]:
    class Local(Items):
        def __getitem__(self, index: int) -> Any:
            return transform(self.raw(index))

    return Local()


def test_closures() -> None:
    transform = Double()
    dataset = closing_over(transform)
    (slot,) = find_slots(dataset)
    assert slot.name == "transform"
    spy = Shift()
    with slot.replaced(spy):
        assert dataset[3].tolist() == [[4.0] * 3] * 2
    assert dataset[3].tolist() == [[6.0] * 3] * 2


def test_a_closure_not_filled_yet() -> None:
    def fill() -> Any:
        def inner() -> Any:
            return later

        found = function_slots(inner)
        later = Double()
        return found, later

    assert fill()[0] == []


class TestCollate:
    def test_of_torch_has_none(self) -> None:
        assert function_slots(torch_collate) == []

    def test_closure(self) -> None:
        def make(augment: Any) -> Callable[[Any], Any]:
            def collate(samples: Any) -> Any:
                return torch_collate([augment(s) for s in samples])

            return collate

        assert [s.name for s in function_slots(make(Double()))] == ["augment"]

    def test_object(self) -> None:
        class Collate:
            def __init__(self) -> None:
                self.augment = Double()

            def __call__(self, samples: Any) -> Any:
                return torch_collate([self.augment(GLOBAL(s)) for s in samples])

        assert sorted(s.name for s in function_slots(Collate())) == ["GLOBAL", "augment"]

    def test_method(self) -> None:
        class Owner:
            def collate(self, samples: Any) -> Any:
                return GLOBAL(samples)

        assert [s.name for s in function_slots(Owner().collate)] == ["GLOBAL"]

    @pytest.mark.parametrize("fn", [len, list, functools.partial(torch_collate)])
    def test_others_have_none(self, fn: Any) -> None:
        assert function_slots(fn) == []


def everything() -> tuple[Any, list[Slot]]:
    """A dataset with a slot of every kind."""
    dataset: Any = closing_over(Double())
    dataset.transform, dataset.steps = Double(), [Double(), Shift()]
    dataset.pair, dataset.by_name = (Double(), Shift()), {"image": Double()}
    return dataset, [*find_slots(dataset), *find_slots(UsesGlobal())]


class TestUndone:
    @pytest.fixture
    def state(self) -> Any:
        dataset, slots = everything()
        assert len(slots) == 8
        attributes = dict(vars(dataset))
        contents = {name: list(v) for name, v in attributes.items() if isinstance(v, (list, tuple))}
        values = [slot.get() for slot in slots]

        def check() -> None:
            assert all(slot.get() is value for slot, value in zip(slots, values, strict=True))
            assert vars(dataset).keys() == attributes.keys()
            for name, value in attributes.items():
                assert vars(dataset)[name] is value, f"{name} is another object now"
            for name, items in contents.items():
                assert list(attributes[name]) == items

        return dataset, slots, check

    def test_after_spying(self, state: Any) -> None:
        dataset, slots, check = state
        before = dataset.transform
        with spied(slots, Recorder()):
            assert dataset.transform is not before
        check()

    def test_after_an_exception(self, state: Any) -> None:
        _, slots, check = state
        with pytest.raises(RuntimeError), spied(slots, Recorder()):
            raise RuntimeError
        check()

    def test_after_an_exception_of_a_transform(self) -> None:
        def fails(x: Any) -> Any:
            raise ValueError("cannot")

        dataset = Transformed(fails)
        with pytest.raises(ValueError, match="cannot"):
            take_apart(lambda: dataset[0], find_slots(dataset))
        assert dataset.transform is fails

    def test_when_one_slot_cannot_be_replaced(self, state: Any) -> None:
        _, slots, check = state

        def refuse(value: Any) -> None:
            raise TypeError("read-only")

        stubborn = Slot("stubborn", Double, refuse)
        with pytest.raises(TypeError, match="read-only"), spied([*slots, stubborn], Recorder()):
            pytest.fail("must not be reached")
        check()

    def test_modules_that_refuse_attributes_are_no_hindrance(self) -> None:
        class Augmenting(torch.nn.Module, Items):
            def __init__(self) -> None:
                torch.nn.Module.__init__(self)
                Items.__init__(self)
                self.augment = Double()

            def __getitem__(self, index: int) -> Any:
                return self.augment(self.raw(index))

        dataset = Augmenting()
        transform = dataset.augment
        take_apart(lambda: dataset[1], find_slots(dataset))
        assert dataset.augment is transform


# What user code does while a slot is replaced


class Switching:
    """Keeps its transform in an attribute, a list and a tuple."""

    def __init__(self) -> None:
        self.transform: Any = abs
        self.several: Any = [abs, abs]
        self.pair: Any = (abs, abs)

    def __getitem__(self, index: int) -> Any:
        return index

    def __len__(self) -> int:
        return 9


@pytest.mark.parametrize("name", ["transform", "several[1]", "pair[0]"])
def test_a_transform_that_user_code_puts_there_stays(name: str) -> None:
    dataset, theirs = Switching(), round
    slot = next(slot for slot in find_slots(dataset) if slot.name == name)
    with slot.replaced(len):
        assert slot.get() is len
        dataset.transform, dataset.several, dataset.pair = theirs, [theirs, theirs], (theirs, theirs)
    assert (dataset.transform, dataset.several, dataset.pair) == (theirs, [theirs, theirs], (theirs, theirs))


def test_a_list_that_grows_meanwhile_keeps_no_replacement() -> None:
    dataset = Switching()
    slot = next(slot for slot in find_slots(dataset) if slot.name == "several[1]")
    with slot.replaced(len):
        dataset.several.insert(0, round)
    assert dataset.several == [round, abs, abs]

"""Taking samples apart and making them again, for every form in which datasets call their transforms."""

from __future__ import annotations

import collections
import datetime
import enum
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pipediag
from pipediag.usercode.chain import take_apart
from pipediag.usercode.dissect import NotSeparable, RawSample
from pipediag.usercode.spying import Recorder, spied
from pipediag.usercode.transform_slots import find_slots

from ..things import (
    Bag,
    Double,
    DoubleInPlace,
    Frozen,
    Items,
    Pair,
    Record,
    Sample,
    Shift,
    Slotted,
    Transformed,
    ordered,
    same,
    scene,
)


class Kind(enum.Enum):
    CAT = 1


class Opaque:
    """Can be copied, and compares by identity only."""

    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    def copy(self) -> Opaque:
        return Opaque(self.x)


def apart(dataset: Any, index: int = 3) -> RawSample:
    return take_apart(lambda: dataset[index], find_slots(dataset)).outer


def replays_to_the_original(dataset: Any, index: int = 3) -> RawSample:
    """Take a sample apart, and check that each replay makes it as it was, without the dataset's code."""
    original = dataset[index]
    raw = apart(dataset, index)
    fetched = len(dataset.fetched)
    for _ in range(3):
        sample, copying = raw.replay()
        assert same(sample, original)
        assert copying >= 0
    assert len(dataset.fetched) == fetched
    assert same(dataset[index], original)
    return raw


def made_of(item: Callable[[Any, int], Any], **attributes: Any) -> Any:
    """A dataset with these attributes, whose samples the method ``item`` makes."""
    dataset = type("Dataset", (Items,), {"__getitem__": item})()
    vars(dataset).update(attributes)
    return dataset


Item = Callable[[Any, int], Any]


def flip(image: Any, target: Any) -> Any:
    return image.flip(0), {**target, "boxes": target["boxes"] * 2}


def normalized(self: Any, index: int) -> Any:
    sample = self.augment({"image": self.raw(index), "label": index})
    sample["image"] = self.normalize(sample["image"])
    return sample


def through_all(self: Any, index: int) -> Any:
    x = self.raw(index)
    for transform in self.transform:
        x = transform(x)
    return x, index


def by_keyword(self: Any, index: int) -> Any:
    found = self.transform(image=self.raw(index), mask=self.raw(index) + 1)
    return found["image"], found["mask"], index


def views_taken_out(self: Any, index: int) -> Any:
    first, second = self.transform(self.raw(index))
    return {"q": first, "k": second}


def of_a_type(self: Any, index: int) -> Any:
    """Some datasets check the type of their transform."""
    image = self.raw(index)
    return (self.transform(image) if isinstance(self.transform, Double) else image), index


def in_two_places(self: Any, index: int) -> Any:
    """As an auto-encoder's input and target."""
    image = self.transform(self.raw(index))
    return image, image


class TwoCrops:
    def __init__(self, base: Any) -> None:
        self.base = base

    def __call__(self, x: Any) -> Any:
        return [self.base(x), self.base(x)]


TWICE = Double()
ONE = ["transform"]
#: How a dataset makes a sample, its attributes, and the calls that are recorded.
FORMS: dict[str, tuple[Item, dict[str, Any], list[str]]] = {
    "the sample is the result": (lambda self, i: self.transform(self.raw(i)), {"transform": Double()}, ONE),
    "array": (lambda self, i: {"x": self.transform(self.raw(i).numpy()), "y": i}, {"transform": Double()}, ONE),
    "joint": (lambda self, i: (*self.transform(self.raw(i), {"boxes": torch.ones(4)}),), {"transform": flip}, ONE),
    "joint, returned as it is": (
        lambda self, i: self.transform(self.raw(i), i),
        {"transform": lambda image, label: (image * 2, label)},
        ONE,
    ),
    "keywords": (by_keyword, {"transform": lambda image, mask: {"image": image * 2, "mask": mask + 3}}, ONE),
    "dict in, dict out": (
        lambda self, i: self.transform({"image": self.raw(i), "label": i}),
        {"transform": lambda sample: {**sample, "image": sample["image"] * 2}},
        ONE,
    ),
    "two views": (
        lambda self, i: (self.transform(image := self.raw(i)), self.transform(image), i),
        {"transform": Double()},
        ONE * 2,
    ),
    "a list of two views": (lambda self, i: (self.transform(self.raw(i)), i), {"transform": TwoCrops(Double())}, ONE),
    "views taken out of their list": (views_taken_out, {"transform": lambda x: [x * 2, x + 1]}, ONE),
    "a chain in place of a dict": (
        normalized,
        {"augment": lambda s: {"image": s["image"] + 1, "label": s["label"]}, "normalize": Double()},
        ["augment", "normalize"],
    ),
    "two inputs from earlier calls": (
        lambda self, i: (self.mix(self.a(self.raw(i)), y=self.b(self.raw(i))), i),
        {"a": Double(), "b": Shift(), "mix": lambda x, y: x + y},
        ["a", "b", "mix"],
    ),
    "a list of transforms": (through_all, {"transform": [Double(), Shift()]}, ["transform[0]", "transform[1]"]),
    "one transform under two names": (
        lambda self, i: (self.transform(self.raw(i)), self.train(self.raw(i) + 5)),
        {"train": TWICE, "transform": TWICE},
        ["transform", "train"],
    ),
    "a type that the dataset asks for": (of_a_type, {"transform": Double()}, ONE),
    "a result in two places": (in_two_places, {"transform": Double()}, ONE),
    "a transform that changes nothing": (
        lambda self, i: (self.transform(self.raw(i)), i),
        {"transform": lambda x: x},
        ONE,
    ),
    "an enum for a target": (
        lambda self, i: (self.transform(self.raw(i)), self.target_transform(i)),
        {"transform": Double(), "target_transform": lambda index: Kind.CAT},
        ["transform", "target_transform"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_replays_to_the_original(form: str) -> None:
    item, attributes, names = FORMS[form]
    assert [call.name for call in replays_to_the_original(made_of(item, **attributes)).calls] == names


class TestForms:
    def test_each_replay_calls_each_transform_once(self) -> None:
        chain = {"resize": Double(), "augment": Shift(), "normalize": Double()}
        dataset = made_of(lambda self, i: (self.normalize(self.augment(self.resize(self.raw(i)))), i), **chain)
        raw = replays_to_the_original(dataset)
        assert [call.name for call in raw.calls] == list(chain)
        before = [transform.calls for transform in chain.values()]
        raw.replay()
        assert [transform.calls for transform in chain.values()] == [calls + 1 for calls in before]

    def test_random_transforms_draw_anew(self) -> None:
        raw = apart(Transformed(lambda x: x + torch.rand(())))
        values = {raw.replay()[0][0][0, 0].item() for _ in range(5)}
        assert len(values) == 5

    def test_a_result_in_two_places_is_one(self) -> None:
        (one, other), _ = apart(made_of(in_two_places, transform=lambda x: x + torch.rand(()))).replay()
        assert torch.equal(one, other)

    def test_image(self) -> None:
        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(Image.new("RGB", (4, 4), (index, 0, 0))), index

        raw = replays_to_the_original(made_of(item, transform=lambda image: image.rotate(90).resize((2, 2))))
        assert not raw.calls[0].mutates

    def test_image_of_a_file(self, tmp_path: Path) -> None:
        """Decoding a lazily opened file belongs to loading: the replay does not read the file again."""
        file = tmp_path / "x.png"
        Image.new("RGB", (4, 4), (7, 0, 0)).save(file)

        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(Image.open(file)), index

        dataset = made_of(item, transform=lambda image: image.resize((2, 2)))
        original = dataset[0]
        raw = apart(dataset)
        file.unlink()
        assert same(raw.replay()[0][0], original[0])
        assert not raw.calls[0].mutates

    def test_chain_is_fed_anew(self) -> None:
        """The second transform gets what the first has drawn this time."""

        random = {"first": lambda x: x + torch.rand(()), "second": lambda x: (x, x * 2)}
        raw = apart(made_of(lambda self, i: self.second(self.first(self.raw(i))), **random))
        for _ in range(3):
            (one, twice), _ = raw.replay()
            assert torch.equal(twice, one * 2)

    def test_one_transform_inside_another(self) -> None:
        """As torchvision's ``VisionDataset`` keeps them: the outer one is the stage."""

        dataset = made_of(lambda self, index: self.transforms(self.raw(index), index), transform=Double())
        dataset.transforms = lambda x, y: (dataset.transform(x), y)
        raw = replays_to_the_original(dataset)
        assert [call.name for call in raw.calls] == ["transforms"]

    @pytest.mark.parametrize("label", [7, "name", b"name", 2.5, True, None, 1 + 2j])
    def test_target_transform_returning_what_has_no_identity(self, label: Any) -> None:
        """A label of the sample must not be taken for the result because it happens to be the same object."""

        def item(self: Any, index: int) -> Any:
            return self.transform(self.raw(index)), label, self.target_transform(index)

        replays_to_the_original(made_of(item, transform=Double(), target_transform=lambda index: label))

    @pytest.mark.parametrize("beside", [Kind.CAT, Kind, Path("/x"), range(3), slice(2), datetime.date(2026, 1, 1)])
    def test_anything_may_stand_beside(self, beside: Any) -> None:
        def item(self: Any, index: int) -> Any:
            return self.transform(self.raw(index)), beside

        replays_to_the_original(made_of(item, transform=Double()))

    @pytest.mark.parametrize(
        "convert",
        [
            lambda x: x.to_sparse(),
            lambda x: scipy.sparse.csr_matrix(x.numpy()),
            lambda x: np.array([x.numpy(), None], dtype=object),
            lambda x: {1, 2, 3},
            lambda x: collections.deque([x]),
            lambda x: Opaque(x),
        ],
        ids=["sparse tensor", "scipy", "array of objects", "set", "deque", "opaque"],
    )
    def test_results_that_are_hard_to_compare(self, convert: Callable[[Any], Any]) -> None:
        """A result that cannot be compared does not count as changed."""

        dataset = made_of(lambda self, index: (self.transform(self.raw(index)), index), transform=convert)
        original = dataset[3]
        sample, _ = apart(dataset).replay()
        assert type(sample[0]) is type(original[0])
        assert sample[0] is not original[0]

    def test_inputs_that_refer_to_each_other(self) -> None:
        """Copying and comparing take time in proportion to the objects, not to the paths through them."""

        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(scene(600)), index

        dataset = made_of(item, transform=lambda whole: whole.image[7].image + 1)
        started = time.perf_counter()
        raw = apart(dataset)
        assert same(raw.replay()[0], dataset[3])
        assert raw.nbytes() >= 600 * 8
        assert time.perf_counter() - started < 2

    def test_an_object_that_refers_to_itself_may_stand_beside(self) -> None:
        node = Sample(None)
        node.label = {"parent": node}

        dataset = made_of(lambda self, index: (self.transform(self.raw(index)), node), transform=Double())
        sample, _ = apart(dataset).replay()
        assert torch.equal(sample[0], dataset[3][0])
        assert sample[1] is node

    def test_loading_by_path_is_no_transform(self, tmp_path: Path) -> None:
        file = tmp_path / "x"
        file.write_bytes(b"12")

        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(self.get(file))

        raw = replays_to_the_original(
            made_of(item, get=lambda path: torch.tensor(list(path.read_bytes())), transform=Double())
        )
        assert [call.name for call in raw.calls] == ["transform"]

    def test_the_samples_of_the_dataset_are_not_touched(self) -> None:
        """A dataset in memory returns the very objects that it keeps."""
        kept = {"image": torch.ones(2), "label": 3}

        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return kept | {"image": self.transform(kept["image"])}

        replays_to_the_original(made_of(item, transform=Double()))
        assert same(kept, {"image": torch.ones(2), "label": 3})


@pytest.mark.parametrize(
    "make",
    [
        Pair,
        Record,
        Frozen,
        Slotted,
        Sample,
        lambda x, y: {"image": x, "label": y},
        lambda x, y: ordered(label=y, image=x),
        lambda x, y: [y, (x, {"deep": [x]})],
        lambda x, y: (Sample(Record(x), y),),
    ],
    ids=["namedtuple", "dataclass", "frozen", "slots", "object", "dict", "ordered", "nested", "object in tuple"],
)
def test_sample_of_any_kind(make: Callable[[Any, Any], Any]) -> None:
    def item(self: Any, index: int) -> Any:
        return make(self.transform(self.raw(index)), index)

    replays_to_the_original(made_of(item, transform=Double()))


class Graph(Sample):
    """Such as PyG's ``Data``: it can be called, but it is data."""

    def __call__(self, *names: str) -> Any:
        return [getattr(self, name) for name in names]


def paint(picture: Any) -> Any:
    picture.putpixel((0, 0), (9, 9, 9))
    return picture


def rewrite(sample: Any) -> Any:
    sample["image"] = sample["image"] * 2
    sample["image"] += 1
    sample["new"] = sample.pop("old")
    return sample


def extend(boxes: Any) -> Any:
    boxes.append(torch.ones(1))
    return boxes


def double_attribute(sample: Any) -> Any:
    sample.image *= 2
    return sample


def replace_attribute(sample: Any) -> Any:
    sample.image = sample.image * 2
    return sample


def filled(index: int) -> torch.Tensor:
    return torch.full((64, 64), float(index))


#: What makes the input, and a transform that changes it.
IN_PLACE: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "tensor": (filled, DoubleInPlace()),
    "array": (lambda index: filled(index).numpy(), DoubleInPlace()),
    "picture": (lambda index: Image.new("RGB", (4, 4)), paint),
    "dict": (lambda index: {"image": filled(index), "old": index}, rewrite),
    "mapping of the user's": (lambda index: Bag(image=filled(index), old=index), rewrite),
    "list": (lambda index: [filled(index)], extend),
    "object": (lambda index: Sample(filled(index), index), replace_attribute),
    "object that can be called": (lambda index: Graph(filled(index), index), double_attribute),
}


class TestInPlace:
    """Transforms that change their input: it is copied for each use, and the copying is not theirs."""

    @pytest.mark.parametrize("name", IN_PLACE)
    def test_input_stays_pristine(self, name: str) -> None:
        make, change = IN_PLACE[name]

        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(make(index)), index

        raw = replays_to_the_original(made_of(item, transform=change))
        assert raw.calls[0].mutates
        for _ in range(3):
            _, copying = raw.replay()
            assert copying > 0
            assert same(raw.calls[0].args[0], make(3))

    def test_not_a_number_is_not_a_change(self) -> None:
        def item(self: Any, index: int) -> Any:
            self.fetched.append(index)
            return self.transform(torch.tensor([1.0, float("nan")])), index

        raw = apart(made_of(item, transform=lambda x: x.nan_to_num()))
        assert not raw.calls[0].mutates
        assert raw.replay()[1] == 0

    def test_a_chain_copies_its_beginning_only(self) -> None:
        chain = {"first": DoubleInPlace(), "second": DoubleInPlace()}
        raw = replays_to_the_original(made_of(lambda self, i: (self.second(self.first(self.raw(i))), i), **chain))
        assert [call.mutates for call in raw.calls] == [True, False]


class TestNotSeparable:
    """A sample that cannot be taken apart raises an error that names the marker."""

    @pytest.mark.parametrize(
        ("item", "attributes", "said"),
        [
            (lambda self, i: (self.raw(i), i), {}, ""),
            (lambda self, i: (self.raw(i), i), {"transform": Double()}, "no transform"),
            (
                lambda self, i: (self.transform(self.raw(i)) * 2, i),
                {"transform": Double()},
                "result of transform is changed after the call",
            ),
            (lambda self, i: (self.raw(i), self.transform(i)), {"transform": lambda index: index + 1}, ""),
        ],
        ids=["no transform", "one that is not called", "a result that is changed", "only numbers come out"],
    )
    def test_of_one_transform_or_none(self, item: Item, attributes: dict[str, Any], said: str) -> None:
        for index in (0, 5):
            with pytest.raises(NotSeparable, match=rf"{said}.*pipediag\.stage"):
                apart(made_of(item, **attributes), index)

    def test_one_of_two_is_changed_afterwards(self) -> None:
        class Slow(Double):
            """Too slow to be left to the loading."""

            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                time.sleep(0.002)
                return super().__call__(x)

        def item(self: Any, index: int) -> Any:
            return self.a(self.raw(index)), self.b(self.raw(index)) - 1

        with pytest.raises(NotSeparable, match="result of b is changed"):
            apart(made_of(item, a=Slow(), b=Slow()))


def with_a_key_added(self: Any, index: int) -> Any:
    """As detection datasets do with ``image_id``."""
    image, target = self.transform(self.raw(index), {"boxes": torch.ones(2, 4)})
    target["image_id"] = torch.tensor([index])
    return image, target


def with_an_attribute_set(self: Any, index: int) -> Any:
    sample = self.transform(Sample(self.raw(index)))
    sample.label = index
    return sample


def with_an_item_appended(self: Any, index: int) -> Any:
    views = self.transform(self.raw(index))
    views.append(torch.ones(1))
    return views, index


def scaled(self: Any, index: int) -> Any:
    x = self.transform(self.raw(index))
    x /= 255
    return x, index


@pytest.mark.parametrize(
    ("item", "transform"),
    [
        (with_a_key_added, lambda image, target: (image * 2, {"boxes": target["boxes"] + 1})),
        (with_an_attribute_set, lambda sample: Sample(sample.image * 2)),
        (with_an_item_appended, lambda x: [x * 2]),
        (scaled, Double()),
        (through_all, torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_the_dataset_does_with_a_result_is_not_lost(item: Item, transform: Any) -> None:
    """It changes it in place, or goes through the parts of a transform: a replay gives the same, or there is none."""
    dataset = made_of(item, transform=transform)
    original = dataset[3]
    try:
        sample, _ = apart(dataset).replay()
    except NotSeparable as reason:
        assert "pipediag.stage" in str(reason)
    else:
        assert same(sample, original)


class TestMarked:
    """``pipediag.stage`` in place of a transform that can be found."""

    def test_call(self) -> None:
        def prepare(raw: Any, shift: int = 0) -> Any:
            return raw * 2 + shift

        marked = pipediag.stage("augment")(prepare)
        raw = replays_to_the_original(made_of(lambda self, index: (marked(self.raw(index), shift=1), index)))
        assert [call.name for call in raw.calls] == ["augment"]

    def test_decorated_function(self) -> None:
        @pipediag.stage("augment")
        def prepare(raw: Any) -> Any:
            return raw * 2

        replays_to_the_original(made_of(lambda self, index: (prepare(self.raw(index)), index)))

    def test_decorated_method_copies_no_dataset(self) -> None:
        """The dataset itself is among the arguments: it may be huge, and hold what cannot be copied."""

        class Dataset(Items):
            def __init__(self) -> None:
                super().__init__()
                self.lock = threading.Lock()

            @pipediag.stage("augment")
            def prepare(self, raw: Any) -> Any:
                return raw * 2

            def __getitem__(self, index: int) -> Any:
                return self.prepare(self.raw(index)), index

        dataset = Dataset()
        raw = replays_to_the_original(dataset)
        assert raw.calls[0].args[0] is dataset
        assert not raw.calls[0].mutates

    def test_marked_inside_a_transform_that_is_found(self) -> None:
        raw = replays_to_the_original(Transformed(lambda x: pipediag.stage("inner")(Double())(x) + 1))
        assert [call.name for call in raw.calls] == ["transform"]


class TestSpy:
    """A stand-in behaves like the transform that it replaces."""

    def test_attributes(self) -> None:
        dataset = Transformed(Double())
        with spied(find_slots(dataset), Recorder()):
            assert dataset.transform.calls == 0

    @pytest.mark.parametrize("truth", [True, False])
    def test_truth(self, truth: bool) -> None:
        class Odd(Double):
            def __bool__(self) -> bool:
                return truth

        dataset = Transformed(Odd())
        with spied(find_slots(dataset), Recorder()):
            assert bool(dataset.transform) is truth

    def test_exceptions_leave_the_recorder_usable(self) -> None:
        def fails(x: Any) -> Any:
            raise ValueError

        recorder = Recorder()
        with pytest.raises(ValueError):
            recorder.call("t", fails, (1,), {})
        recorder.call("t", Double(), (1,), {})
        assert len(recorder.seen) == 1


def test_bytes_hold_everything_that_is_kept() -> None:
    """Inputs, and also the parts of the sample that no transform makes again."""

    def item(self: Any, index: int) -> Any:
        return self.transform(torch.zeros(1000)), torch.zeros(5000)

    assert apart(made_of(item, transform=lambda x: x[:10])).nbytes() >= 4 * 6000


def test_bytes_do_not_count_what_was_left_out() -> None:
    def item(self: Any, index: int) -> Any:
        return self.transform(torch.zeros(10)), index

    raw = apart(made_of(item, transform=lambda x: x.new_zeros(100_000)))
    assert raw.nbytes() < 4 * 10_000


# Any structure: every leaf is a transformed tensor or something plain, in containers of every kind.

CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "dict": lambda items: {f"k{i}": item for i, item in enumerate(items)},
    "ordered": lambda items: ordered(**{f"k{i}": item for i, item in enumerate(items)}),
    "pair": lambda items: Pair(items[0], items[1:]),
    "record": lambda items: Record(items[0], items[1:]),
    "object": lambda items: Sample(items[0], items[1:]),
}
TRANSFORMED = ("double", "shift", "in place", "chain", "views", "joint")
LEAF = st.sampled_from([*TRANSFORMED, "raw", "number", "text", "none", "array"])
SPEC = st.recursive(
    LEAF,
    lambda inner: st.tuples(st.sampled_from(sorted(CONTAINERS)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


class Built(Items):
    """A sample of the structure ``spec``, with a transform of each kind."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.spec = spec
        self.double, self.shift, self.in_place = Double(), Shift(), DoubleInPlace()
        self.two = lambda x: [x * 2, (x + 1, {"x": x - 1})]
        self.joint = lambda x, y: (x * y["factor"], {"factor": y["factor"], "seen": x + 1})

    def __getitem__(self, index: int) -> Any:
        self.count = float(index)
        return self.build(self.spec)

    def fresh(self) -> torch.Tensor:
        self.count += 1
        return torch.full((2,), self.count)

    def build(self, spec: Any) -> Any:
        if isinstance(spec, tuple):
            kind, items = spec
            return CONTAINERS[kind]([self.build(item) for item in items])
        makers: dict[str, Callable[[], Any]] = {
            "double": lambda: self.double(self.fresh()),
            "shift": lambda: self.shift(x=self.fresh()),
            "in place": lambda: self.in_place(self.fresh()),
            "chain": lambda: self.in_place(self.shift(self.double(self.fresh()))),
            "views": lambda: self.two(self.fresh()),
            "joint": lambda: self.joint(self.fresh(), {"factor": 3}),
            "raw": self.fresh,
            "number": lambda: 7,
            "text": lambda: "text",
            "none": lambda: None,
            "array": lambda: np.arange(3),
        }
        return makers[spec]()


def leaves_of(spec: Any) -> list[str]:
    return [leaf for item in spec[1] for leaf in leaves_of(item)] if isinstance(spec, tuple) else [spec]


@given(SPEC, st.integers(0, 63))
def test_any_sample(spec: Any, index: int) -> None:
    dataset = Built(spec)
    if not set(leaves_of(spec)) & set(TRANSFORMED):
        with pytest.raises(NotSeparable):
            apart(dataset, index)
        return
    replays_to_the_original(dataset, index)

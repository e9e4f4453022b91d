"""Batches of any structure: types and nesting are kept exactly, originals stay as they were."""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from pipediag.usercode import tree

from ..things import Bag, Encoding, Frozen, Graphs, Pair, Record, Sample, Slotted, ordered, same, scene

META = torch.device("meta")


class Nested:
    """An object that moves what it holds one level down, in place."""

    def __init__(self, **fields: torch.Tensor) -> None:
        self.fields = fields

    def to(self, device: torch.device) -> Nested:
        for key, value in self.fields.items():
            self.fields[key] = value.to(device)
        return self


def t(value: float = 1.0) -> torch.Tensor:
    return torch.full((3,), float(value))


def packed() -> PackedSequence:
    return pack_sequence([t(1), t(2)[:2]])


def default() -> collections.defaultdict[str, Any]:
    return collections.defaultdict(list, x=t(), n=4)


BATCHES: dict[str, Callable[[], Any]] = {
    "tensor": t,
    "tuple": lambda: (t(1), t(2)),
    "list": lambda: [t(1), "name", 3],
    "dict": lambda: {"x": t(1), "y": [t(2), None]},
    "ordered dict": lambda: ordered(b=t(1), a=t(2)),
    "default dict": default,
    "named tuple": lambda: Pair(t(1), 5),
    "dataclass": lambda: Record(t(1), t(2)),
    "frozen dataclass": lambda: Frozen(t(1), 3),
    "dataclass with slots": lambda: Slotted(t(1), (t(2),)),
    "empty": lambda: ((), [], {}),
    "nested": lambda: {"views": [Pair(t(1), (t(2), "a")), Record([t(3)])], "n": 2},
    "return type of torch": lambda: torch.max(torch.ones(2, 2), 0),
    "user dict": lambda: Encoding(ids=t(1), mask=t(2)),
    "user mapping": lambda: Bag(x=t(1)),
    "graph": lambda: Graphs(t(1), t(2)),
    "packed": packed,
    "user dict inside": lambda: (Encoding(ids=t(1)), t(2)),
    "user mapping inside": lambda: [Bag(x=t(1)), 1],
    "graph inside": lambda: (Graphs(t(1), t(2)), t(3)),
    "nested object": lambda: Nested(x=t(1)),
    "packed inside": lambda: (packed(), t(3)),
}


def structure(obj: Any) -> Any:
    """Types, all the way down."""
    if isinstance(obj, Bag):
        return Bag, {key: structure(value) for key, value in obj.items()}
    if isinstance(obj, (Graphs, Nested)):
        return type(obj), structure(vars(obj))
    if isinstance(obj, (tuple, list)):
        return type(obj), [structure(item) for item in obj]
    if isinstance(obj, (dict, collections.UserDict)):
        return type(obj), [(key, structure(value)) for key, value in obj.items()]
    if isinstance(obj, (Record, Frozen, Slotted)):
        return type(obj), structure(obj.image), structure(obj.label)
    return type(obj)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Bag):
        return type(b) is Bag and same(a.items_, b.items_)
    if isinstance(a, Nested):
        return type(b) is Nested and same(a.fields, b.fields)
    if isinstance(a, list):
        return type(b) is list and len(a) == len(b) and all(map(equal, a, b))
    return same(a, b)


def every_tensor(obj: Any) -> list[torch.Tensor]:
    """Tensors wherever they hide, found without the code under test."""
    if isinstance(obj, torch.Tensor):
        return [obj]
    if isinstance(obj, (tuple, list)):
        return [x for item in obj for x in every_tensor(item)]
    if isinstance(obj, dict):
        return every_tensor(list(obj.values()))
    if isinstance(obj, Slotted):
        return every_tensor([obj.image, obj.label])
    return every_tensor(vars(obj)) if hasattr(obj, "__dict__") else []


@pytest.fixture(params=list(BATCHES))
def batch(request: pytest.FixtureRequest) -> Any:
    return BATCHES[request.param]()


class TestEveryKindOfBatch:
    def test_move_keeps_structure_and_original(self, batch: Any) -> None:
        before, held = structure(batch), every_tensor(batch)
        kept = copy.deepcopy(batch)
        moved = tree.move(batch, META)
        assert structure(moved) == before
        data = [x for x in every_tensor(moved) if x.is_floating_point()]
        assert all(x.device == META for x in data)
        assert len(data) == sum(x.is_floating_point() for x in held)
        assert equal(batch, kept)
        assert all(a is b for a, b in zip(every_tensor(batch), held, strict=True))

    def test_clone_is_equal_and_shares_no_memory(self, batch: Any) -> None:
        held = every_tensor(batch)
        kept = copy.deepcopy(batch)
        clone = tree.clone(batch)
        assert structure(clone) == structure(kept)
        assert equal(clone, kept)
        assert equal(batch, kept)
        assert all(a is b for a, b in zip(every_tensor(batch), held, strict=True))
        assert {x.data_ptr() for x in every_tensor(clone)}.isdisjoint(x.data_ptr() for x in held)

    def test_versions_move_with_every_tensor(self, batch: Any) -> None:
        for tensor in every_tensor(batch):
            before = tree.versions(batch)
            assert tree.versions(batch) == before
            if tensor.is_floating_point():
                tensor.add_(1)
                assert tree.versions(batch) != before

    def test_bytes_are_at_least_the_tensors(self, batch: Any) -> None:
        held = sum(x.numel() * x.element_size() for x in every_tensor(batch))
        assert held <= tree.nbytes(batch) <= held + 32 * 8


def test_map_leaves_over_other_things() -> None:
    seen: list[Any] = []
    image, array = Image.new("RGB", (2, 2)), np.zeros(2)
    batch = (image, array, "text", None, 5, 2.5, True, b"bytes", {1, 2})
    mapped = tree.map_leaves(batch, lambda leaf: seen.append(leaf) or leaf)
    assert all(a is b for a, b in zip(mapped, batch, strict=True))
    assert all(a is b for a, b in zip(seen, batch, strict=True))


def test_containers_are_made_anew() -> None:
    batch: Any = {"a": [1, {"b": 2}]}
    loose = tree.map_leaves(batch, lambda leaf: leaf)
    loose["a"][1].clear()
    loose["a"].append(3)
    assert batch == {"a": [1, {"b": 2}]}


def test_what_does_not_move_is_passed_on() -> None:
    image, array = Image.new("L", (2, 2)), np.arange(3)
    moved = tree.move([image, array, "text", None, 7], META)
    assert moved[0] is image
    assert moved[1] is array
    assert moved[2:] == ["text", None, 7]
    assert tree.clone([image, array])[0] is image


def test_subclasses_of_tensors_stay_what_they_are() -> None:
    from torchvision import tv_tensors

    image = tv_tensors.Image(torch.zeros(3, 4, 4))
    assert type(tree.clone((image,))[0]) is tv_tensors.Image
    assert type(tree.move((image,), META)[0]) is tv_tensors.Image


def test_subclasses_of_containers() -> None:
    class Batch(list[Any]):
        size = 3

    class Box(dict[str, Any]):
        pass

    batch, box = Batch([t()]), Box(x=t())
    assert type(tree.clone(batch)) is Batch
    assert type(tree.clone({"b": box})["b"]) is Box
    assert box.keys() == {"x"}


def test_in_shared_memory() -> None:
    batch = {"x": t(), "name": "a"}
    shared = tree.in_shared_memory(batch)
    assert shared["x"].is_shared()
    assert not batch["x"].is_shared()
    assert same(shared, batch)


@pytest.mark.parametrize(
    "batch",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["sparse", "by rows", "nested", "jagged"],
)
def test_tensors_of_several_parts_can_be_sent(batch: torch.Tensor) -> None:
    """None of them has a storage that could be shared."""
    sent = pickle.loads(ForkingPickler.dumps(tree.in_shared_memory(batch)))
    assert [one.tolist() for one in sent.unbind()] if sent.is_nested else torch.equal(sent.to_dense(), torch.eye(3))


def test_versions_of_inference_tensors() -> None:
    with torch.inference_mode():
        assert tree.versions((t(), [t()])) == (0, 0)


def test_versions_tell_which() -> None:
    batch = (t(), t())
    batch[1].mul_(2)
    assert tree.versions(batch) == (0, 1)


@pytest.mark.parametrize(
    "leaf, size",
    [
        (torch.zeros(4, 4, dtype=torch.float16), 32),
        (torch.zeros(0), 0),
        (torch.eye(100).to_sparse(), 100 * (2 * 8 + 4)),
        (torch.eye(100).to_sparse_csr(), 101 * 8 + 100 * (8 + 4)),
        (torch.eye(100).to_sparse_csc(), 101 * 8 + 100 * (8 + 4)),
        (torch.eye(100).to_sparse_bsr((2, 2)), 51 * 8 + 50 * (8 + 16)),
        (np.zeros((2, 3)), 48),
        (np.float32(1), 4),
        (Image.new("RGB", (10, 20)), 600),
        (Image.new("L", (10, 20)), 200),
        ("abc", 3),
        (b"abcd", 4),
    ],
)
def test_bytes_exactly(leaf: Any, size: int) -> None:
    assert tree.nbytes(leaf) == size
    assert tree.nbytes([leaf, {"x": leaf}]) == 2 * size


@pytest.mark.parametrize("label", [3, 2.5, None, True])
def test_bytes_of_labels_are_little(label: Any) -> None:
    assert 0 <= tree.nbytes(label) <= 64


def test_objects_that_refer_to_each_other() -> None:
    """A scene's parts know their scene. Whatever a batch holds, looking at it must end."""
    batch = [scene(3), t()]
    assert tree.nbytes(batch) >= 12
    assert tree.versions(batch) == (0,)
    assert tree.clone(batch)[0] is batch[0]
    assert tree.move(batch, META)[1].device == META


def test_records_that_refer_to_themselves() -> None:
    record = Record(t())
    record.label = record
    assert [*tree.leaves([record])][1] is record
    assert tree.map_leaves([record], lambda leaf: leaf)[0] is not record


def test_bytes_of_the_users_objects() -> None:
    """They are kept in caches like everything else, so what they hold counts."""
    held = tree.nbytes(Sample(torch.zeros(1000), Sample([np.zeros(1000)])))
    assert 12_000 <= held <= 13_000


LEAVES = st.integers() | st.none() | st.text(max_size=3) | st.integers(0, 3).map(lambda n: torch.arange(n))
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Record, inner, inner)
    ),
    max_leaves=10,
)


@given(TREES)
def test_any_tree(batch: Any) -> None:
    assert same(tree.clone(batch), batch)
    assert same(tree.move(batch, torch.device("cpu")), batch)
    rebuilt = list(tree.leaves(tree.map_leaves(batch, lambda leaf: leaf)))
    assert all(a is b for a, b in zip(rebuilt, tree.leaves(batch), strict=True))

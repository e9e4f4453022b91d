"""What a batch holds: planted properties are found, and none that are absent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pipediag.ladder.probes import batchfacts
from pipediag.ladder.probes.batchfacts import copy_times, describe, describe_leaves, leaves_of, path_text
from pipediag.measure.device import Device
from pipediag.session import BatchFacts, Leaf, Padding

from ...things import Encoding, Graphs, Record, Sample


def of(*tensors: Tensor) -> Leaf:
    """Return the description of a batch that is a single tensor; further tensors are later batches."""
    (leaf,) = describe_leaves(tensors)
    return leaf


def pictures(low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, (8, 3, 32, 32))


class Strict(Tensor):
    """A subclass that raises from whatever is done with it, as MONAI's does if a batch is sliced."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "__get__" in str(func) or func.__name__ in ("numel", "element_size", "is_complex", "is_pinned", "dim"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise ValueError(func.__name__)


def test_a_subclass_is_looked_at_as_a_plain_tensor() -> None:
    batches = [pictures() for _ in range(2)]
    assert of(*(batch.as_subclass(Strict) for batch in batches)) == of(*batches)  # type: ignore[arg-type]


class TestPaths:
    @pytest.mark.parametrize(
        "batch, paths",
        [
            (torch.zeros(2), [""]),
            ((torch.zeros(2), [torch.zeros(3), 5]), ["[0]", "[1][0]"]),
            ({"image": torch.zeros(2), "name": "x"}, ["['image']"]),
            (Record(torch.zeros(2), torch.zeros(1)), [".image", ".label"]),
            (Sample(torch.zeros(2)), [".image"]),
            (Encoding(ids=torch.zeros(2)), ["['ids']"]),
            (Graphs(torch.zeros(2), torch.zeros(4)), [".x", ".edges"]),
            ("no tensor", []),
        ],
    )
    def test_paths_as_the_user_writes_them(self, batch: Any, paths: list[str]) -> None:
        assert [path_text(path) for path, _ in leaves_of(batch)] == paths

    def test_a_tensor_that_occurs_twice_counts_once(self) -> None:
        one = torch.zeros(2)
        assert len(leaves_of([one, one])) == 1

    def test_the_largest_of_many(self) -> None:
        found = leaves_of([torch.zeros(size) for size in range(1, 41)])
        assert [len(tensor) for _, tensor in found] == list(range(25, 41))


class TestShape:
    def test_facts(self) -> None:
        leaf = of(torch.ones(8, 5, dtype=torch.float16), torch.zeros(8, 7, dtype=torch.int64))
        assert (leaf.shape, leaf.dtype, leaf.itemsize, leaf.nbytes, leaf.pinned) == ([8, 5], "float16", 2, 80, False)
        assert leaf.low == 1.0, "the later batch's is of another type"

    def test_a_tensor_that_later_batches_lack(self) -> None:
        one, other = describe_leaves([{"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.zeros(2)}])
        assert (one.low, other.low) == (0.0, 1.0)

    def test_no_batches(self) -> None:
        assert describe_leaves([]) == []

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.eye(3).to_sparse(),
            torch.ones(3, dtype=torch.complex64),
            torch.empty(0, 3),
            torch.empty(3, device="meta"),
            torch.full((4,), float("nan")),
            torch.tensor([1.0, float("inf")]),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        ],
        ids=["sparse", "complex", "empty", "meta", "nan", "infinite", "nested"],
    )
    def test_values_that_cannot_be_examined(self, tensor: Tensor) -> None:
        leaf = describe_leaves([[tensor]])[0] if tensor.is_nested else of(tensor)
        assert (leaf.low, leaf.high, leaf.levels, leaf.padding) == (None, None, None, None)

    def test_values_of_a_subclass_that_refuses(self) -> None:
        """As a batch of MONAI's tensors does when it is indexed and its samples' metadata do not fit together."""

        class Refusing(Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func in (Tensor.__getitem__, Tensor.reshape, Tensor.min):
                    raise ValueError("inconsistent metadata")
                return super().__torch_function__(func, types, args, kwargs)

        leaf = of(torch.tensor([[0.25, 1.0], [0.5, 0.75]]).as_subclass(Refusing))
        assert (leaf.low, leaf.high) == (0.25, 1.0)

    def test_values_that_are_part_of_a_graph(self) -> None:
        assert of(torch.ones(4, requires_grad=True)).high == 1.0


MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
LABELS = torch.randint(0, 10, (16, 6))


def but_for_one(images: Tensor) -> Tensor:
    images[3, 1, 5, 5] = 0.5
    return images


class TestValues:
    @pytest.mark.parametrize(
        ("batches", "expected"),
        [
            ([pictures().float()], {"whole_numbers": True, "bytes_over_255": False, "levels": 256, "high": 255.0}),
            ([pictures().float() / 255], {"whole_numbers": False, "bytes_over_255": True, "levels": 256}),
            # half precision rounds them too much: the bytes cannot be restored exactly
            ([(pictures().float() / 255).half()], {"bytes_over_255": False, "levels": 256}),
            # every channel has its own levels
            ([(pictures().float() / 255 - MEAN) / STD], {"bytes_over_255": False, "levels": 256}),
            ([torch.rand(8, 3, 32, 32)], {"whole_numbers": False, "bytes_over_255": False, "levels": None}),
            ([but_for_one(pictures().float())], {"whole_numbers": False}),
            ([pictures().float(), torch.rand(8, 3, 32, 32)], {"levels": None}),
            ([pictures(0, 100).float(), pictures(100, 200).float()], {"levels": 200}),
            ([pictures(0, 200).float(), pictures(200, 400).float()], {"levels": None}),
            ([torch.rand(4, 5)], {"levels": None}),  # too few values to tell
            ([torch.randint(0, 19, (4, 64, 64))], {"low": 0.0, "high": 18.0, "whole_numbers": True, "levels": 19}),
            ([torch.rand(4, 64, 64) > 0.5], {"high": 1.0, "whole_numbers": True, "levels": 2, "one_hot": None}),
            ([one_hot(LABELS, 10)], {"one_hot": 10}),
            ([one_hot(LABELS, 10).float()], {"one_hot": 10}),
            ([one_hot(torch.randint(0, 5, (4, 9, 9)), 5).permute(0, 3, 1, 2).contiguous()], {"one_hot": 5}),
            ([torch.randint(0, 2, (16, 10))], {"one_hot": None}),  # several at once
        ],
    )
    def test_planted(self, batches: list[Tensor], expected: dict[str, Any]) -> None:
        leaf = of(*batches)
        assert {name: getattr(leaf, name) for name in expected} == expected

    def test_parts_of_a_large_tensor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whole samples, spread over the batch."""
        monkeypatch.setattr(batchfacts, "ELEMENTS", 100)
        batch = torch.zeros(40, 10)
        batch[39] = 7.0
        assert of(batch).high == 0.0
        batch[::4] = 7.0
        assert of(batch).high == 7.0
        assert of(torch.arange(1000.0)).high == 99.0


def padded(*lengths: int, to: int = 10, value: float = 0.0) -> Tensor:
    """Return rows with these numbers of ones, padded."""
    batch = torch.full((len(lengths), to), value)
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = torch.arange(1.0, length + 1)
    return batch


def corners(*sizes: int) -> Tensor:
    """Return pictures of these sizes, padded to the right and below."""
    batch = torch.zeros(len(sizes), 3, 10, 10)
    for image, size in zip(batch, sizes, strict=True):
        image[:, :size, :size] = torch.rand(3, size, size) + 0.1
    return batch


class TestPadding:
    @pytest.mark.parametrize(
        ("batches", "value", "share", "beyond"),
        [
            ([padded(2, 5, 8, 10)], 0.0, 0.375, 0.0),
            ([padded(2, 5, 8, 10).flip(1)], 0.0, 0.375, 0.0),  # at the beginning
            ([padded(2, 4, 3, 3)], 0.0, 0.7, 0.6),  # beyond the longest
            ([padded(2, 4, 3, 3, value=-100.0).long()], -100.0, 0.7, 0.6),
            ([padded(2, 5, 8, 9)[:, :, None].expand(-1, -1, 4).contiguous()], 0.0, 0.4, 0.1),
            ([corners(5, 10, 10, 5)], 0.0, 0.375, 0.0),
            ([padded(5, 5), padded(10, 10)], 0.0, 0.25, 0.25),
            ([padded(5, 5), padded(5, 5)], 0.0, 0.5, 0.5),
        ],
    )
    def test_found(self, batches: list[Tensor], value: float, share: float, beyond: float) -> None:
        assert of(*batches).padding == Padding(value, pytest.approx(share), pytest.approx(beyond))

    def test_most_samples_of_all_batches_are_full(self) -> None:
        assert of(padded(5, 10), padded(10, 10)).padding is None

    @pytest.mark.parametrize(
        "batch",
        [
            torch.rand(4, 10) + 0.1,
            torch.nn.functional.pad(torch.rand(4, 1, 8, 8) + 0.1, (2, 2, 2, 2)),
            torch.arange(10.0),
            torch.ones(4, 10),
            torch.nn.functional.pad(torch.rand(50, 99) + 0.1, (0, 1)),
            torch.nn.functional.pad(torch.rand(50, 9) + 0.1, (1, 0)),
        ],
        ids=[
            "full",
            "a margin all around",
            "no samples",
            "all constant",
            "next to nothing",
            "a token at the beginning",
        ],
    )
    def test_not(self, batch: Tensor) -> None:
        assert of(batch).padding is None

    def test_batches_of_other_dimensions(self) -> None:
        assert of(padded(2, 5, 8), torch.rand(2, 3, 4)).padding is None


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 0.002
        return self.seconds


class Elsewhere(Device):
    """A simulated device: everything is copied on the CPU."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.is_cpu = False
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1


class TestCopies:
    def test_timed_between_synchronizations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batchfacts, "pin_memory", lambda batch: batch)
        device, facts = Elsewhere(), BatchFacts()
        copy_times(facts, (torch.ones(4), "name"), device, FakeClock())
        assert (facts.copy_ms, facts.pinned_copy_ms, facts.device_copy_ms) == (2.0, 2.0, 2.0)
        assert device.synchronized == 3 * 2 * 3

    @pytest.mark.parametrize("too_large", [False, True])
    def test_memory_that_cannot_be_pinned(self, monkeypatch: pytest.MonkeyPatch, too_large: bool) -> None:
        def fails(batch: Any) -> Any:
            raise RuntimeError("no more of it")

        if too_large:
            monkeypatch.setattr(batchfacts, "_PINNED_BYTES", 8)
        else:
            monkeypatch.setattr(batchfacts, "pin_memory", fails)
        facts = BatchFacts()
        copy_times(facts, torch.ones(4), Elsewhere(), FakeClock())
        assert facts.pinned_copy_ms is None and facts.device_copy_ms is not None

    def test_nothing_to_copy_on_the_cpu(self) -> None:
        facts = describe([torch.ones(4)], Device(torch.device("cpu")), FakeClock())
        assert (facts.copy_ms, len(facts.leaves)) == (None, 1)

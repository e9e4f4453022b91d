"""What a batch holds: planted properties are found, and none that are absent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

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
        leaf = of(torch.ones(8, 5, dtype=torch.float16))
        assert (leaf.shape, leaf.dtype, leaf.itemsize, leaf.nbytes, leaf.pinned) == ([8, 5], "float16", 2, 80, False)

    def test_of_the_first_batch(self) -> None:
        assert of(torch.ones(8, 5), torch.ones(8, 7)).shape == [8, 5]

    def test_a_tensor_that_later_batches_lack(self) -> None:
        one, other = describe_leaves([{"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.zeros(2)}])
        assert (one.low, other.low) == (0.0, 1.0)

    def test_another_type_in_a_later_batch(self) -> None:
        assert of(torch.ones(4), torch.zeros(4, dtype=torch.int64)).low == 1.0

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


class TestValues:
    def test_whole_numbers(self) -> None:
        leaf = of(pictures().float())
        assert (leaf.whole_numbers, leaf.bytes_over_255, leaf.levels) == (True, False, 256)
        assert (leaf.low, leaf.high) == (0.0, 255.0)

    def test_bytes_over_255(self) -> None:
        leaf = of(pictures().float() / 255)
        assert (leaf.whole_numbers, leaf.bytes_over_255, leaf.levels) == (False, True, 256)

    def test_in_half_precision(self) -> None:
        """Half precision rounds them too much: the bytes cannot be restored exactly."""
        leaf = of((pictures().float() / 255).half())
        assert not leaf.bytes_over_255
        assert leaf.levels == 256

    def test_normalised(self) -> None:
        """Every channel has its own levels."""
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        leaf = of((pictures().float() / 255 - mean[:, None, None]) / std[:, None, None])
        assert (leaf.bytes_over_255, leaf.levels) == (False, 256)

    def test_real_floats(self) -> None:
        leaf = of(torch.rand(8, 3, 32, 32))
        assert (leaf.whole_numbers, leaf.bytes_over_255, leaf.levels) == (False, False, None)

    def test_one_value_among_many(self) -> None:
        """So not all values are bytes."""
        images = pictures().float()
        images[3, 1, 5, 5] = 0.5
        assert not of(images).whole_numbers

    def test_in_any_of_the_batches(self) -> None:
        assert of(pictures().float(), torch.rand(8, 3, 32, 32)).levels is None

    def test_levels_add_up_over_batches(self) -> None:
        assert of(pictures(0, 100).float(), pictures(100, 200).float()).levels == 200
        assert of(pictures(0, 200).float(), pictures(200, 400).float()).levels is None

    def test_too_few_values_to_tell(self) -> None:
        assert of(torch.rand(4, 5)).levels is None

    def test_integers(self) -> None:
        leaf = of(torch.randint(0, 19, (4, 64, 64)))
        assert (leaf.low, leaf.high, leaf.whole_numbers, leaf.levels) == (0.0, 18.0, True, 19)

    def test_bools(self) -> None:
        leaf = of(torch.rand(4, 64, 64) > 0.5)
        assert (leaf.low, leaf.high, leaf.whole_numbers, leaf.levels, leaf.one_hot) == (0.0, 1.0, True, 2, None)

    def test_one_hot(self) -> None:
        labels = torch.randint(0, 10, (16, 6))
        assert of(torch.nn.functional.one_hot(labels, 10)).one_hot == 10
        assert of(torch.nn.functional.one_hot(labels, 10).float()).one_hot == 10

    def test_one_hot_in_the_second_dimension(self) -> None:
        masks = torch.nn.functional.one_hot(torch.randint(0, 5, (4, 9, 9)), 5).permute(0, 3, 1, 2)
        assert of(masks.contiguous()).one_hot == 5

    def test_several_at_once(self) -> None:
        assert of(torch.randint(0, 2, (16, 10))).one_hot is None

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


class TestPadding:
    def test_at_the_end(self) -> None:
        assert of(padded(2, 5, 8, 10)).padding == Padding(0.0, pytest.approx(0.375), 0.0)

    def test_at_the_beginning(self) -> None:
        assert of(padded(2, 5, 8, 10).flip(1)).padding == Padding(0.0, pytest.approx(0.375), 0.0)

    def test_beyond_the_longest(self) -> None:
        assert of(padded(2, 4, 3, 3)).padding == Padding(0.0, pytest.approx(0.7), pytest.approx(0.6))

    def test_by_another_value(self) -> None:
        found = of(padded(2, 4, 3, 3, value=-100.0).long()).padding
        assert found is not None and found.value == -100.0

    def test_of_vectors(self) -> None:
        found = of(padded(2, 5, 8, 9)[:, :, None].expand(-1, -1, 4).contiguous()).padding
        assert found is not None and found.share == pytest.approx(0.4)

    def test_of_pictures(self) -> None:
        """Padded to the right and below."""
        batch = torch.zeros(4, 3, 10, 10)
        for image, size in zip(batch, (5, 10, 10, 5), strict=True):
            image[:, :size, :size] = torch.rand(3, size, size) + 0.1
        found = of(batch).padding
        assert found is not None and found.share == pytest.approx(0.375)

    def test_over_batches(self) -> None:
        assert of(padded(5, 5), padded(10, 10)).padding == Padding(0.0, pytest.approx(0.25), pytest.approx(0.25))
        assert of(padded(5, 10), padded(10, 10)).padding is None  # most samples are full
        assert of(padded(5, 5), padded(5, 5)).padding == Padding(0.0, pytest.approx(0.5), pytest.approx(0.5))

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

    def test_memory_that_cannot_be_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(batch: Any) -> Any:
            raise RuntimeError("no more of it")

        monkeypatch.setattr(batchfacts, "pin_memory", fails)
        facts = BatchFacts()
        copy_times(facts, torch.ones(4), Elsewhere(), FakeClock())
        assert facts.pinned_copy_ms is None
        assert facts.device_copy_ms is not None

    def test_a_batch_too_large_for_pinning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batchfacts, "_PINNED_BYTES", 8)
        facts = BatchFacts()
        copy_times(facts, torch.ones(4), Elsewhere(), FakeClock())
        assert facts.pinned_copy_ms is None

    def test_nothing_to_copy_on_the_cpu(self) -> None:
        facts = describe([torch.ones(4)], Device(torch.device("cpu")), FakeClock())
        assert (facts.copy_ms, len(facts.leaves)) == (None, 1)

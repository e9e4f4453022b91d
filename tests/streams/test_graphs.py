"""A captured stage gives the same bits as without a graph; if it would not, it is not captured."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipediag.errors import UsageError
from pipediag.streams.pipeline import StagePipeline

from ..devices import GPU

pytestmark = GPU

COUNT = 50


def images(count: int = COUNT, size: int = 32, batch: int = 4) -> list[Tensor]:
    """Return images of which no two are alike, not even in the mean."""
    generator = torch.Generator().manual_seed(7)
    return [torch.rand(batch, 3, size, size, generator=generator) * (1 + n / 10) for n in range(count)]


def same(ours: Any, theirs: Any) -> bool:
    """Return whether structures of any kind are equal in types and bits."""
    if isinstance(theirs, Tensor):
        return bool(ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs.cpu()))
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def run(batches: Iterable[Any], work: Callable[[Any], Any], gpu: torch.device, graphs: bool = True) -> tuple[Any, str]:
    """Return what a stage gives for the batches, and the note on it."""
    pipeline = StagePipeline(batches, [work], gpu, graphs=graphs)
    made = list(pipeline)
    return made, pipeline.notes[0]


def check(batches: list[Any], work: Callable[[Any], Any], gpu: torch.device) -> str:
    """Check that the stage gives the same with and without graphs; return the note on it with graphs."""
    made, note = run(batches, work, gpu)
    plain, _ = run(batches, work, gpu, graphs=False)
    assert len(made) == len(batches)
    assert same(made, plain), note
    return note


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, 5)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.scale = 1.0

    def forward(self, batch: Tensor) -> Tensor:
        made = self.head(self.layers(batch - self.mean).mean((2, 3))) * self.scale
        assert isinstance(made, Tensor)
        return made


def encoder(gpu: torch.device, seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    model = Encoder()
    model.to(gpu).eval().requires_grad_(False)
    return model


# ---- bit by bit


@pytest.mark.parametrize("outside", [None, torch.bfloat16, torch.float16], ids=["", "loop in bf16", "loop in f16"])
@pytest.mark.parametrize("inside", [None, torch.bfloat16], ids=["", "stage in bf16"])
def test_an_encoder(inside: torch.dtype | None, outside: torch.dtype | None, gpu: torch.device) -> None:
    model = encoder(gpu)

    def work(batch: Tensor) -> Any:
        if inside is None:
            return model(batch)
        with torch.autocast("cuda", dtype=inside):
            return model(batch)

    def loop(graphs: bool) -> tuple[Any, str]:
        if outside is None:
            return run(images(), work, gpu, graphs)
        with torch.autocast("cuda", dtype=outside):
            return run(images(), work, gpu, graphs)

    (made, note), (plain, _) = loop(True), loop(False)
    assert ": captured in a CUDA graph for one kind of batch" in note
    assert same(made, plain)
    assert made[0].dtype == (inside or outside or torch.float32)
    assert len({tuple(batch.flatten().tolist()) for batch in made}) == COUNT, "batches are alike"


def test_autocast_that_begins_between_epochs(gpu: torch.device) -> None:
    model = encoder(gpu)
    pipeline = StagePipeline(images(20), [model], gpu)
    in_full = list(pipeline)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        in_half = list(pipeline)
        expected, _ = run(images(20), model, gpu, graphs=False)
    assert {batch.dtype for batch in in_full} == {torch.float32}
    assert same(in_half, expected)


def test_several_stages_that_are_captured(gpu: torch.device) -> None:
    one, other = encoder(gpu), nn.Sequential(nn.Linear(5, 5), nn.GELU()).to(gpu).requires_grad_(False)
    stages = [one, lambda batch: batch.softmax(1), other]
    pipeline = StagePipeline(images(), stages, gpu)
    assert same(list(pipeline), list(StagePipeline(images(), stages, gpu, graphs=False)))
    assert all(": captured" in note for note in pipeline.notes), pipeline.notes


def test_a_short_batch_runs_without_a_graph(gpu: torch.device) -> None:
    model = encoder(gpu)
    batches = [*images(12), *images(1, batch=3)]
    assert ": captured in a CUDA graph for one kind" in check(batches, model, gpu)
    pipeline = StagePipeline(batches, [model], gpu)
    expected = [model(batch.to(gpu)) for batch in batches]
    for _ in range(4):
        for ours, theirs in zip(pipeline, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("sizes", [(32, 24), (32, 24, 16, 40, 48)])
def test_shapes_that_change(sizes: tuple[int, ...], gpu: torch.device) -> None:
    batches = [images(1, sizes[step % len(sizes)])[0] + step for step in range(60)]
    note = check(batches, encoder(gpu), gpu)
    assert ": captured in a CUDA graph for 2 kinds of batch" in note


def test_shapes_that_never_repeat(gpu: torch.device) -> None:
    note = check([torch.rand(2, 3, 8 + step, 9) for step in range(30)], encoder(gpu), gpu)
    assert ": runs as it is: too few batches of one kind" in note


# ---- random numbers


def test_random_numbers_of_the_device_are_fresh_and_the_same(gpu: torch.device) -> None:
    """Those of the stage and of the loop keep their order under a seed."""

    def work(batch: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(batch, 0.5, training=True), torch.randn_like(batch) + batch

    def loop(graphs: bool) -> tuple[list[Any], list[Tensor], str]:
        torch.manual_seed(11)
        pipeline = StagePipeline([torch.ones(4, 5)] * COUNT, [work], gpu, graphs=graphs)
        made, drawn = [], []
        for batch in pipeline:
            made.append(batch)
            drawn.append(torch.rand(3, device=gpu))
        return made, drawn, pipeline.notes[0]

    made, drawn, note = loop(True)
    plain, drawn_too, _ = loop(False)
    assert ": captured" in note
    assert same(made, plain) and same(drawn, drawn_too)
    for part in (0, 1):
        assert len({tuple(batch[part].flatten().tolist()) for batch in made}) == COUNT
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == COUNT


@pytest.mark.parametrize(
    ("draw", "whose"),
    [(random.random, "Python's"), (lambda: float(torch.rand(())), "torch's"), (np.random.rand, "numpy's")],
)
def test_random_numbers_of_the_host_are_not_frozen(draw: Callable[[], float], whose: str, gpu: torch.device) -> None:
    def loop(graphs: bool) -> tuple[Any, str]:
        random.seed(1)
        torch.manual_seed(1)
        np.random.seed(1)
        return run([torch.ones(2)] * 20, lambda batch: batch * draw(), gpu, graphs)

    (made, note), (plain, _) = loop(True), loop(False)
    assert same(made, plain)
    assert len({float(batch[0]) for batch in made}) == 20
    assert f": runs as it is: it draws random numbers on the host ({whose})" in note


# ---- what cannot be captured


def waiting(batch: Tensor) -> Tensor:
    return batch * (2 if batch.sum().item() > 0 else 3)


def test_a_stage_that_waits_for_the_device_is_not_captured(gpu: torch.device) -> None:
    note = check([torch.full((3,), (-1.0) ** step) for step in range(20)], waiting, gpu)
    assert ": runs as it is: capturing it failed" in note


def test_a_stage_that_gives_a_tensor_on_the_host_is_not_captured(gpu: torch.device) -> None:
    def counted(batch: Tensor) -> tuple[Tensor, Tensor]:
        return batch + 1, torch.tensor(batch.numel())

    note = check([torch.ones(3)] * 20, counted, gpu)
    assert ": runs as it is" in note and "host" in note


def test_a_stage_that_fails_only_while_it_is_captured(gpu: torch.device) -> None:
    def work(batch: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not now")
        return batch + 1

    note = check([torch.ones(3) * step for step in range(20)], work, gpu)
    assert ": runs as it is: capturing it failed: ValueError: not now" in note


class TestAfterAFailedCapture:
    """Everything else continues as if no capture had been tried."""

    def test_random_numbers_follow_their_seed(self, gpu: torch.device) -> None:
        def drawn() -> list[float]:
            torch.manual_seed(5)
            values: list[float] = []
            for _ in range(3):
                values += torch.rand(4, device=gpu).tolist() + F.dropout(torch.ones(4, device=gpu)).tolist()
            return values

        before = drawn()
        run([torch.ones(3)] * 8, waiting, gpu)
        assert drawn() == before
        assert len(set(before)) > 10

    def test_a_stage_that_was_captured_before_draws_on(self, gpu: torch.device) -> None:
        """It draws from the generator that the loop seeds, and no number twice."""

        def noise(batch: Tensor) -> Tensor:
            return torch.rand_like(batch)

        def loop(pipeline: StagePipeline) -> list[Any]:
            torch.manual_seed(6)
            made: list[Any] = []
            for batch in pipeline:
                made += [batch, torch.rand(8, device=gpu)]
            return made

        pipeline = StagePipeline([torch.ones(8)] * 12, [noise], gpu)
        first = loop(pipeline)
        assert ": captured" in pipeline.notes[0]
        run([torch.ones(3)] * 8, waiting, gpu)
        again = loop(pipeline)
        assert same(again, loop(pipeline))
        assert same(again, first)
        assert len({tuple(numbers.tolist()) for numbers in again}) == len(again)

    def test_other_stages_are_captured(self, gpu: torch.device) -> None:
        run([torch.ones(3)] * 8, waiting, gpu)
        assert ": captured" in check(images(12), encoder(gpu), gpu)
        stages = [encoder(gpu), waiting, torch.neg]
        pipeline = StagePipeline(images(12), stages, gpu)
        assert same(list(pipeline), list(StagePipeline(images(12), stages, gpu, graphs=False)))
        assert [": captured" in note for note in pipeline.notes] == [True, False, True], pipeline.notes

    def test_memory_is_given_back(self, gpu: torch.device) -> None:
        """While the allocator considers a capture active, it keeps every block that two streams have used."""
        pipeline = StagePipeline([torch.ones(1 << 20)] * 20, [waiting], gpu)
        reserved = []
        for _ in range(10):
            list(pipeline)
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
        assert reserved[-1] <= reserved[1] + (64 << 20), reserved

    def test_memory_may_be_emptied(self, gpu: torch.device) -> None:
        run([torch.ones(1 << 20)] * 8, waiting, gpu)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.memory_snapshot()
        assert torch.ones(3, device=gpu).sum() == 3


# ---- what a graph must not freeze


def test_labels_and_names_are_those_of_the_batch(gpu: torch.device) -> None:
    model = encoder(gpu)
    batches = [
        {"image": image, "label": torch.tensor([step]), "name": f"{step}.png"} for step, image in enumerate(images(20))
    ]

    def work(batch: dict[str, Any]) -> dict[str, Any]:
        return {"features": model(batch["image"]), "label": batch["label"], "name": batch["name"]}

    check(batches, work, gpu)
    unnamed = [{**batch, "name": "none"} for batch in batches]
    assert ": captured" in check(unnamed, work, gpu)


def test_parts_of_a_batch_that_are_views_or_given_twice(gpu: torch.device) -> None:
    def work(batch: tuple[Tensor, Tensor]) -> Any:
        image, label = batch
        flipped = image.flip(-1)
        return label.squeeze(1), image[:, :1], flipped, (flipped, flipped[:2]), label, image.permute(0, 2, 3, 1)

    batches = [(image, torch.full((4, 1), step)) for step, image in enumerate(images(20))]
    assert ": captured" in check(batches, work, gpu)


def test_writes_into_one_tensor_do_not_reach_another(gpu: torch.device) -> None:
    """The results of a graph share no memory, neither within a batch nor between batches."""
    pipeline = StagePipeline(images(20), [lambda batch: (batch + 1, batch + 2)], gpu)
    kept = list(pipeline)
    copies = [(one.clone(), other.clone()) for one, other in kept]
    for one, _ in kept[:-1]:
        one.zero_()
    assert torch.equal(kept[-1][0], copies[-1][0])
    assert all(torch.equal(kept[n][1], copies[n][1]) for n in range(20))


def test_a_stage_that_writes_into_its_batch(gpu: torch.device) -> None:
    def work(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0].mul_(2).sub_(1), batch[1]

    check([(image, torch.tensor([step])) for step, image in enumerate(images(20))], work, gpu)


def test_a_stage_whose_writes_change_nothing_at_first(gpu: torch.device) -> None:
    """The batches of the first runs are in range; later ones are not."""

    def clamped(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0].clamp_(max=1.0), batch[1]

    batches = [(image * (50 if n > 10 else 0.1), torch.tensor([n])) for n, image in enumerate(images(20))]
    check(batches, clamped, gpu)


def test_batches_of_the_same_tensors_under_other_names(gpu: torch.device) -> None:
    batches = [{"source" if step % 3 else "target": torch.full((4,), float(step))} for step in range(40)]
    check(batches, lambda batch: {name: value + 1 for name, value in batch.items()}, gpu)
    swapped = [{"a": one, "b": one + 1} if n % 3 else {"b": one + 1, "a": one} for n, one in enumerate(images(40))]
    check(swapped, lambda batch: (batch["a"] * 2, batch["b"]), gpu)
    nested = [(one, (one + 1, one + 2)) if n % 3 else ((one, one + 1), one + 2) for n, one in enumerate(images(40))]
    check(nested, lambda batch: batch[0] if isinstance(batch[0], Tensor) else batch[1] * 2, gpu)


class Nodes:
    """Moves by its own method, as batches of graphs and of tokens do; the next batch reuses its memory."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def to(self, device: Any, non_blocking: bool = False) -> Nodes:
        return Nodes(self.values.to(device, non_blocking=non_blocking))


def test_objects_that_move_themselves(gpu: torch.device) -> None:
    def batches() -> Iterator[Nodes]:
        for step in range(200):
            yield Nodes(torch.full((4,), float(step)))

    pipeline = StagePipeline(batches(), [lambda batch: batch.values * 2], gpu)
    assert [float(made[0]) for made in pipeline] == [2.0 * step for step in range(200)]
    pipeline = StagePipeline(batches(), [lambda batch: batch], gpu)
    assert [float(made.values[0]) for made in pipeline] == [float(step) for step in range(200)]


def test_arrays_and_objects_that_the_stage_reads_on_the_host(gpu: torch.device) -> None:
    """An array for each batch, often at the address of an old one; and one object that changes from batch to batch."""

    def arrays() -> Iterator[Any]:
        for step in range(200):
            yield torch.ones(4), np.array([step])

    pipeline = StagePipeline(arrays(), [lambda batch: batch[0] * int(batch[1][0])], gpu)
    assert [float(made[0]) for made in pipeline] == [float(step) for step in range(200)]

    class Settings:
        strength = 0

    def changing() -> Iterator[Any]:
        settings = Settings()
        for step in range(50):
            settings.strength = step // 10
            yield torch.ones(4), settings

    pipeline = StagePipeline(changing(), [lambda batch: batch[0] * batch[1].strength], gpu)
    assert [float(made[0]) for made in pipeline] == [float(step // 10) for step in range(50)]


def test_numbers_of_other_types_are_other_batches(gpu: torch.device) -> None:
    values: list[Any] = [1, 1.0, True]
    batches = [(torch.ones(2) * step, values[step % 3]) for step in range(30)]
    made, _ = run(batches, lambda batch: (batch[0] + 1, batch[1]), gpu)
    assert [type(value) for _, value in made] == [type(values[step % 3]) for step in range(30)]


def test_a_batch_of_names_does_not_fill_the_memory_of_the_host(gpu: torch.device) -> None:
    """Kinds of batches that never come again are forgotten."""

    def batches() -> Iterator[Any]:
        for step in range(200):
            yield torch.ones(2), f"{step:0100000d}"

    pipeline = StagePipeline(batches(), [lambda batch: batch[0]], gpu)
    tracemalloc.start()
    try:
        count = sum(1 for _ in pipeline)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 200
    assert held < 10_000_000


# ---- what changes between epochs


def changed_values(model: Encoder) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def other_tensors(model: Encoder) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}, assign=True)
    model.requires_grad_(False)


def other_module(model: Encoder) -> None:
    torch.manual_seed(8)
    model.head = nn.Linear(8, 5).to(model.head.weight.device).requires_grad_(False)


def other_parameter(model: Encoder) -> None:
    model.head.weight = nn.Parameter(model.head.weight * 3, requires_grad=False)


def other_buffer(model: Encoder) -> None:
    model.mean = model.mean * 2


def moved_away_and_back(model: Encoder) -> None:
    device = model.head.weight.device
    model.to("cpu")
    with torch.no_grad():
        model.head.weight.mul_(2)
    model.to(device)


def other_layout(model: Encoder) -> None:
    model.to(memory_format=torch.channels_last)
    model.head.weight.mul_(2)


def other_setting(model: Encoder) -> None:
    model.scale = 3.0


def more_of_the_model(model: Encoder) -> None:
    model.layers.append(nn.Tanh())


@pytest.mark.parametrize(
    "change",
    [
        changed_values,
        other_tensors,
        other_module,
        other_parameter,
        other_buffer,
        moved_away_and_back,
        other_layout,
        other_setting,
        more_of_the_model,
    ],
)
def test_a_stage_that_is_changed_between_epochs(change: Callable[[Encoder], None], gpu: torch.device) -> None:
    model = encoder(gpu)
    pipeline = StagePipeline(images(12), [model], gpu)
    first = list(pipeline)
    assert ": captured" in pipeline.notes[0]
    change(model)
    again = list(pipeline)
    for ours, theirs in zip(again, run(images(12), model, gpu, graphs=False)[0], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not any(torch.allclose(one, other) for one, other in zip(first, again, strict=True))
    list(pipeline)
    assert ": captured" in pipeline.notes[0], "it is not captured again"


def test_weights_that_change_during_an_epoch_are_refused_under_a_graph(gpu: torch.device) -> None:
    model = encoder(gpu)
    pipeline = StagePipeline(images(20), [model], gpu)
    batches = iter(pipeline)
    for _ in range(10):
        next(batches)
    assert ": captured" in pipeline.notes[0]
    model.head.weight.mul_(2)
    with pytest.raises(UsageError, match="change while the loop runs"):
        list(batches)


# ---- beside other threads


@contextmanager
def busy(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Repeat ``work`` in another thread inside the context; yield the errors that it raises."""
    over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        over.set()
        thread.join()


def test_capturing_while_another_thread_uses_the_device(gpu: torch.device) -> None:
    """It does what pinning and fetching threads do: page-locked memory, blocks of new sizes, copies, waits."""
    stream = torch.cuda.Stream(gpu)
    sizes = itertools.cycle(range(1000, 10_000_000, 1111))

    def work() -> None:
        pinned = torch.ones(next(sizes)).pin_memory()
        with torch.cuda.stream(stream):
            there = pinned.to(gpu, non_blocking=True) + 1
        stream.synchronize()
        assert float(there[0]) == 2

    with busy(work) as errors:
        for seed in range(5):
            assert ": captured" in check(images(12), encoder(gpu, seed), gpu)
    assert errors == []


def test_launches_of_another_thread_are_no_part_of_the_graph(gpu: torch.device) -> None:
    stream = torch.cuda.Stream(gpu)

    def work() -> None:
        with torch.cuda.stream(stream):
            torch.ones(100, device=gpu).mul_(3)
        stream.synchronize()

    def noise(batch: Tensor) -> Tensor:
        return batch + torch.rand_like(batch)

    with busy(work) as errors:
        made, note = run([torch.zeros(64)] * 20, noise, gpu)
    assert ": captured" in note and errors == []
    assert len({tuple(batch.tolist()) for batch in made}) == 20

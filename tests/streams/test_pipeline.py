"""A pipeline takes, gives and refuses the same on the CPU and on a GPU."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.transforms import v2

from pipediag import offload
from pipediag.errors import UsageError
from pipediag.streams.feed import fetches_ahead
from pipediag.streams.pipeline import StagePipeline
from pipediag.usercode import tree

from ..devices import GPU

ROOT = Path(__file__).parents[2]


def numbers(count: int = 6) -> list[Tensor]:
    return [torch.full((4, 3), float(number)) for number in range(count)]


def same(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> bool:
    return all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


# ---- what it takes


def test_stages_run_in_their_order_whatever_the_iterable(device: torch.device) -> None:
    class Iterated:
        def __iter__(self) -> Iterator[Tensor]:
            yield from numbers()

    class Streamed(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from numbers()

    tensors = torch.stack(numbers())
    expected = [(batch + 1) * 2 for batch in numbers()]
    loaders: list[Iterable[Any]] = [
        numbers(),
        Iterated(),
        DataLoader(Streamed(), batch_size=None),
        DataLoader(Streamed(), batch_size=None, num_workers=1),
        DataLoader(tensors, batch_size=None),
        DataLoader(tensors, batch_size=None, num_workers=2),
        DataLoader(tensors, batch_size=None, num_workers=2, pin_memory=device.type == "cuda"),
    ]
    for loader in loaders:
        pipeline = StagePipeline(loader, [lambda batch: batch + 1, lambda batch: batch * 2], device)
        for _ in range(2):
            assert same(pipeline, expected)
    assert same(StagePipeline((n for n in numbers()), [lambda batch: batch + 1], device), [n + 1 for n in numbers()])


def test_an_endless_loader(device: torch.device) -> None:
    pipeline = StagePipeline(itertools.cycle(numbers(3)), [lambda batch: batch + 1], device)
    taken = [batch for batch, _ in zip(pipeline, range(50), strict=False)]
    assert same(taken, [numbers(3)[step % 3] + 1 for step in range(50)])


def test_without_stages_batches_are_moved(device: torch.device) -> None:
    batches = list(StagePipeline(numbers(), [], device))
    assert same(batches, numbers())
    assert all(batch.device.type == device.type for batch in batches)


def test_a_stage_that_moves_its_batch_itself(device: torch.device) -> None:
    assert same(StagePipeline(numbers(), [lambda batch: batch.to(device) + 1], device), [n + 1 for n in numbers()])


Pair = namedtuple("Pair", "images labels")


@dataclass
class Sample:
    images: Tensor
    names: list[str]


class Graph:
    """Moves by its own method, as batches of graphs and of tokens do."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        return Graph(self.nodes.to(device, non_blocking=non_blocking))


class Tokens(dict):  # type: ignore[type-arg]
    """A library's mapping."""


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.tensor([n]),
        lambda n: (torch.tensor([n]), f"file {n}.png"),
        lambda n: [torch.tensor([n]), [torch.tensor([n, n]), None]],
        lambda n: {"images": torch.tensor([n]), "names": [f"{n}.png"], "deep": {"n": n, "x": torch.tensor([n])}},
        lambda n: OrderedDict(b=torch.tensor([n]), a=torch.tensor([-n])),
        lambda n: Pair(torch.tensor([n]), torch.tensor([n, n])),
        lambda n: Sample(torch.tensor([n]), [f"{n}.png"]),
        lambda n: Graph(torch.tensor([n])),
        lambda n: (Graph(torch.tensor([n])), torch.tensor([n])),
        lambda n: Tokens(ids=torch.tensor([n])),
        lambda n: (torch.tensor([n]), np.array([n, n])),
        lambda n: (torch.tensor([n]), n),
        lambda n: (torch.eye(3).to_sparse() * n, torch.tensor([n])),
        lambda n: torch.nn.utils.rnn.pack_sequence([torch.ones(2) * n, torch.ones(1)]),
    ],
)
def test_batches_of_every_structure(make: Callable[[int], Any], device: torch.device) -> None:
    """A stage that returns its batch, for far more batches than it takes to capture a graph."""
    count = 20
    for graphs in (True, False):
        pipeline = StagePipeline([make(n) for n in range(count)], [lambda batch: batch], device, graphs=graphs)
        for batch, expected in zip(pipeline, map(make, range(count)), strict=True):
            assert type(batch) is type(expected)
            for ours, theirs in zip(tree.tensors(batch), tree.tensors(expected), strict=True):
                assert torch.equal(dense(ours).cpu(), dense(theirs))
            mine, want = values(batch), values(expected)
            assert mine == want


def dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def values(batch: Any) -> list[Any]:
    leaves = [leaf for leaf in tree.leaves(batch) if not isinstance(leaf, Tensor) and not tree.moves_itself(leaf)]
    return [leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]


def test_the_users_loader_is_not_changed(device: torch.device) -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2, num_workers=1)
    before = dict(vars(loader))
    list(StagePipeline(loader, [lambda batch: batch], device))
    assert vars(loader) == before


def test_attributes_are_the_loaders(device: torch.device) -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)
    pipeline = StagePipeline(loader, [lambda batch: batch], device)
    assert len(pipeline) == 3 and pipeline.batch_size == 4 and pipeline.dataset is loader.dataset
    with pytest.raises(AttributeError):
        pipeline.what_no_loader_has  # noqa: B018


class Images(Dataset[Tensor]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.full((3, 8, 8), index, dtype=torch.uint8))


def test_a_pipeline_of_a_pipeline_runs_the_stages_of_both(device: torch.device) -> None:
    moved = offload(DataLoader(Images(v2.CenterCrop(4)), batch_size=2), device, samples=4)
    assert moved.plan.pieces
    for loader in (numbers(), moved):
        inner = StagePipeline(loader, [lambda batch: batch + 1], device)
        outer = StagePipeline(inner, [lambda batch: batch * 2], device)
        assert same(outer, [(batch.cpu() + 1) * 2 for batch in loader])


def test_a_loader_around_ours_keeps_its_own_iterator(device: torch.device) -> None:
    """Such as one that ends epochs early, and takes all attributes from the loader inside."""

    class Limited:
        def __init__(self, loader: Any) -> None:
            self._loader = loader

        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(iter(self._loader), 2)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loader, name)

    inner = offload(DataLoader(torch.stack(numbers()), batch_size=1), device)
    assert len(list(StagePipeline(Limited(inner), [lambda batch: batch], device))) == 2


def test_moved_code_that_has_changed_since_its_proof_is_left_to_the_workers(device: torch.device) -> None:
    class Gain:
        def __init__(self) -> None:
            self.gain = torch.tensor([0.5, 2.0, 4.0]).view(3, 1, 1)

        def __call__(self, image: Tensor) -> Tensor:
            return image * self.gain

    gain = Gain()
    loader = DataLoader(Images(v2.Compose([v2.CenterCrop(4), v2.ToDtype(torch.float32), gain])), batch_size=4)
    moved = offload(loader, device)
    assert moved.plan.pieces[0].moves[-1] == "Gain", moved.plan.reasons
    pipeline = StagePipeline(moved, [lambda batch: batch + 1], device)
    assert same(pipeline, [batch + 1 for batch in loader])
    gain.gain = torch.tensor([8.0, 0.25, 1.0]).view(3, 1, 1)
    assert same(pipeline, [batch + 1 for batch in loader])
    assert not moved.unrecorded


# ---- what it draws


def drawing_loader(workers: int, **settings: Any) -> DataLoader[Any]:
    class Drawn(Dataset[Tensor]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Tensor:
            return torch.rand(2) + random.random() + index

    return DataLoader(Drawn(), batch_size=2, num_workers=workers, **settings)


class FromTheLoopsGenerator(Sampler[int]):
    """Draws when it is asked, as a user's own sampler may."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(12):
            yield int(torch.randint(12, ()))

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"sampler": FromTheLoopsGenerator()}])
def test_random_numbers_come_as_without_a_pipeline(
    settings: dict[str, Any], workers: int, device: torch.device
) -> None:
    """Those of the samples and of the sampler, and those of the loop between them."""

    def seen(loader: Iterable[Any]) -> list[Any]:
        torch.manual_seed(4)
        random.seed(4)
        result: list[Any] = []
        for _ in range(2):
            for batch in loader:
                result += [batch.cpu(), torch.rand(1), torch.tensor(random.random())]
        return result

    plain = drawing_loader(workers, **settings)
    theirs = seen(plain)
    for stages in ([], [lambda batch: batch], [lambda batch: batch, nn.Dropout(0.0)]):
        assert all(map(torch.equal, seen(StagePipeline(plain, stages, device)), theirs))


class Mine(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        return 4


DATA = TensorDataset(torch.arange(4.0))


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [
        ({}, True),
        ({"shuffle": True}, True),
        ({"batch_size": None}, True),
        ({"persistent_workers": True}, True),
        ({"sampler": RandomSampler(DATA)}, True),
        ({"sampler": SubsetRandomSampler([0, 1])}, True),
        ({"sampler": WeightedRandomSampler([0.5, 0.5], 2)}, True),
        ({"sampler": DistributedSampler(DATA, 2, 0)}, True),
        ({"sampler": Mine()}, False),
        ({"sampler": [0, 1, 2]}, False),
        ({"batch_sampler": [[0, 1], [2, 3]], "batch_size": 1}, False),
        ({"batch_sampler": torch.utils.data.BatchSampler(Mine(), 2, False), "batch_size": 1}, False),
        ({"num_workers": 0}, False),
    ],
)
def test_batches_are_fetched_ahead_where_no_draw_changes_by_it(settings: dict[str, Any], ahead: bool) -> None:
    assert fetches_ahead(DataLoader(DATA, **{"num_workers": 2, **settings})) == ahead


def test_other_iterables_are_not_fetched_ahead() -> None:
    assert not fetches_ahead(numbers())


# ---- what it refuses


def test_what_is_no_stage(device: torch.device) -> None:
    with pytest.raises(UsageError, match="callable"):
        StagePipeline(numbers(), [3], device)  # type: ignore[list-item]
    for depth in (0, float("nan"), 1.5, True):
        with pytest.raises(UsageError, match="at least 1"):
            StagePipeline(numbers(), [], device, depth=depth)  # type: ignore[arg-type]


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device"):
        StagePipeline(numbers(), [], "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_loader_for_another_device() -> None:
    moved = offload(DataLoader(torch.stack(numbers()), batch_size=1), "cpu")
    with pytest.raises(UsageError, match="cpu"):
        StagePipeline(moved, [], "cuda")


def encoder(*layers: nn.Module, device: torch.device) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), *layers).to(device).requires_grad_(False)


def refused(stage: Callable[[Any], Any], device: torch.device) -> str:
    with pytest.raises(UsageError) as error:
        list(StagePipeline(numbers(), [stage], device))
    return str(error.value)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.BatchNorm1d(3), "BatchNorm1d (1)"),
        (nn.Dropout(0.5), "Dropout (1)"),
        (nn.Sequential(nn.Sequential(nn.AlphaDropout(0.1))), "AlphaDropout (1.0.0)"),
        (nn.RReLU(), "RReLU (1)"),
    ],
)
def test_modules_that_do_something_else_in_train_mode(layer: nn.Module, name: str, device: torch.device) -> None:
    model = encoder(layer, device=device)
    for stage in (model, lambda batch: model(batch)):
        said = refused(stage, device)
        assert name in said and "train mode" in said and ".eval()" in said and "leave the stage in the loop" in said
    model.eval()
    expected = [model(batch.to(device)).cpu() for batch in numbers()]
    for made, want in zip(StagePipeline(numbers(), [model], device), expected, strict=True):
        assert torch.equal(made.cpu(), want)


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.InstanceNorm1d(4), nn.LayerNorm(3)])
def test_modules_that_do_the_same_in_train_mode(layer: nn.Module, device: torch.device) -> None:
    assert len(list(StagePipeline(numbers(), [encoder(layer, device=device)], device))) == 6


def test_an_augmentation_may_draw_in_train_mode(device: torch.device) -> None:
    """A module without weights is meant to drop at random."""
    ones = [torch.ones(64, 64)] * 8
    dropped = torch.stack([batch.cpu() for batch in StagePipeline(ones, [nn.Dropout(0.5)], device)])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not any(torch.equal(dropped[0], later) for later in dropped[1:])


def test_a_module_that_is_set_to_train_mode_during_an_epoch(device: torch.device) -> None:
    model = encoder(nn.Dropout(0.5), device=device).eval()
    batches = iter(StagePipeline(numbers(20), [model], device))
    for _ in range(8):
        next(batches)
    model.train()
    with pytest.raises(UsageError, match="train mode"):
        list(batches)


def test_weights_that_require_a_gradient(device: torch.device) -> None:
    model = nn.Linear(3, 3).to(device)
    said = refused(model, device)
    assert "Linear" in said and "requires_grad_(False)" in said and "leave it in the loop" in said

    def under_no_grad(batch: Tensor) -> Any:
        with torch.no_grad():
            return model(batch)

    assert len(list(StagePipeline(numbers(), [under_no_grad], device))) == 6
    with torch.no_grad():
        assert len(list(StagePipeline(numbers(), [model], device))) == 6


@pytest.mark.parametrize("after", [1, 10])
def test_weights_that_the_loop_trains(after: int, device: torch.device) -> None:
    """They are refused at the optimizer's first step, which comes late if gradients are accumulated."""
    model = encoder(device=device)
    batches = iter(StagePipeline(numbers(20), [model], device))
    for _ in range(after):
        next(batches)
    model[0].weight.add_(1)
    with pytest.raises(UsageError, match="weights of the stage Sequential change while the loop runs"):
        list(batches)


def test_weights_may_change_between_epochs(device: torch.device) -> None:
    model = encoder(device=device)
    pipeline = StagePipeline(numbers(8), [model], device)
    for _ in range(3):
        assert same(pipeline, [model(batch.to(device)).cpu() for batch in numbers(8)])
        model[0].weight.add_(1)


def test_a_refusal_comes_at_its_batch(device: torch.device) -> None:
    """The loop has received the batches before it."""
    model = encoder(device=device)
    batches: list[Tensor] = []
    with pytest.raises(UsageError):
        for batch in StagePipeline(numbers(20), [model], device):
            batches.append(batch)
            if len(batches) == 3:
                model[0].weight.mul_(2)
    assert 3 <= len(batches) <= 5
    model[0].weight.div_(2)
    assert same(batches, [model(batch.to(device)).cpu() for batch in numbers(len(batches))])


def test_a_compiled_stage_is_compiled_once(device: torch.device) -> None:
    """Watching its first run neither splits its graph nor compiles it again."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    model = encoder(nn.ReLU(), nn.Linear(3, 2), device=device).eval()
    compiled = torch.compile(model, backend=backend)
    made = list(StagePipeline(numbers(8), [compiled], device, graphs=False))
    assert same(made, [model(batch.to(device)).cpu() for batch in numbers(8)])
    torch.compiler.reset()
    assert len(graphs) == 1


# ---- first in its process


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
class TestFirst:
    pytestmark = GPU

    def test_nothing_has_touched_the_device_before(self, device: str) -> None:
        program = f"""
            import torch
            from pipediag.streams.pipeline import StagePipeline
            pipeline = StagePipeline([torch.ones(3)] * 9, [lambda batch: batch + 1], "{device}")
            print(sum(float(batch.sum()) for batch in pipeline), pipeline.notes)
        """
        lines = "\n".join(line.strip() for line in program.splitlines())
        done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
        assert done.stdout.startswith("54.0") and ": captured" in done.stdout, done.stderr


# ---- its work is labelled in the user's own trace


def labels(loader: Any) -> Counter[str]:
    """How often each of our labels occurs in the trace of one epoch."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert len(list(loader)) == 6
    ours = (event for event in profiler.events() if event.is_user_annotation)
    return Counter(event.name for event in ours if event.name.startswith("pipediag"))


def test_an_offloaded_loader_and_a_stage_are_labelled() -> None:
    offloaded = offload(DataLoader(Images(v2.RandomHorizontalFlip()), batch_size=2), "cpu", samples=4)
    assert offloaded.plan.pieces
    waits = {"pipediag: wait for batch": 7}  # the last one finds the end of the epoch
    assert labels(offloaded) == {**waits, "pipediag: replay": 6}

    def brighter(batch: Tensor) -> Tensor:
        return batch + 1

    stages = StagePipeline(DataLoader(Images(v2.RandomHorizontalFlip()), batch_size=2), [brighter], "cpu")
    assert labels(stages) == {**waits, "pipediag: copy": 6, "pipediag: stage brighter": 6}

"""No batch is read before it is ready, and none is overwritten before it has been read: 500 steps at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from pipediag.remedy import OffloadedLoader, offload
from pipediag.streams.pipeline import StagePipeline

from ..devices import GPU
from . import mistakes
from .checker import MILLISECOND, Batch, Found, Known, drive, late

pytestmark = GPU

STEPS = 500

CONSUMERS = pytest.mark.parametrize("consumer", ["behind", "ahead"])


def driven(consumer: str, loader: Any, truth: Callable[[int], Any], **settings: Any) -> Found:
    """Drive a loader. Behind: the host drops a batch long before it is read. Ahead: the loop reads it at once."""
    if consumer == "behind":
        return drive(loader, truth, behind=MILLISECOND, **settings)
    with late(MILLISECOND // 4) as sleeps:
        found = drive(loader, truth, **settings)
    assert len(sleeps) >= found.steps, "nothing was late"
    return found


# ---- the checker finds mistakes


def page_locked(length: int) -> list[Batch]:
    """Lock pages before anything is launched: locking them may wait for the device, and hide a mistake."""
    known = Known(length)
    return [tuple(tensor.pin_memory() for tensor in known[number]) for number in range(length)]


@pytest.mark.parametrize("prefetcher", [mistakes.as_published, mistakes.unrecorded])
def test_memory_that_is_freed_too_early_is_found(prefetcher: mistakes.Prefetcher, gpu: torch.device) -> None:
    found = drive(prefetcher(page_locked(40), gpu), Known(40, gpu).__getitem__, behind=20 * MILLISECOND)
    assert len(found.wrong) > found.steps // 2, found


@pytest.mark.parametrize("prefetcher", [mistakes.unawaited, mistakes.refilled])
def test_memory_that_is_read_or_written_too_early_is_found(prefetcher: mistakes.Prefetcher, gpu: torch.device) -> None:
    with late(10 * MILLISECOND):
        found = drive(prefetcher(page_locked(40), gpu), Known(40, gpu).__getitem__)
    assert len(found.wrong) > found.steps // 2, found


@CONSUMERS
def test_a_prefetcher_without_a_mistake_passes(consumer: str, gpu: torch.device) -> None:
    found = driven(consumer, mistakes.right(page_locked(100), gpu), Known(100, gpu).__getitem__)
    assert found == Found(100, [])


# ---- stages


def inverted(batch: Batch) -> Batch:
    """Return new images and features, and the same labels."""
    images, features, labels = batch
    return 255 - images, features * 2 + 1, labels


def flipped(batch: Batch) -> Batch:
    """Return the same images, and new features and labels."""
    images, features, labels = batch
    return images, features.flip(0), labels + 7


def mixed(batch: Batch) -> Batch:
    """Make intermediate results."""
    images, features, labels = batch
    halves = images // 2
    return halves + images // 4, (features - 3) / 4, (labels * 2 + halves.view(-1)[:64]) % 100_000


WORKS = (inverted, flipped, mixed)


def staged(length: int, device: torch.device, stages: int) -> Callable[[int], Batch]:
    known = Known(length, device)

    def truth(number: int) -> Batch:
        batch = known[number]
        for work in WORKS[:stages]:
            batch = work(batch)
        return batch

    return truth


def known_loader(workers: int, length: int = STEPS) -> DataLoader[Any]:
    return DataLoader(Known(length), batch_size=None, num_workers=workers)


@CONSUMERS
@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "as it is"])
@pytest.mark.parametrize(("stages", "workers"), [(1, 2), (2, 2), (2, 0), (3, 2)])
def test_stages(stages: int, workers: int, graphs: bool, consumer: str, gpu: torch.device) -> None:
    pipeline = StagePipeline(known_loader(workers), WORKS[:stages], gpu, graphs=graphs)
    assert driven(consumer, pipeline, staged(STEPS, gpu, stages)) == Found(STEPS, [])
    assert len(pipeline.notes) == stages
    assert all((": captured" in note) == graphs for note in pipeline.notes), pipeline.notes


@CONSUMERS
@pytest.mark.parametrize("workers", [0, 2])
def test_no_stages(workers: int, consumer: str, gpu: torch.device) -> None:
    pipeline = StagePipeline(known_loader(workers), [], gpu)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 0)) == Found(STEPS, [])


@CONSUMERS
def test_the_deepest_pipeline(consumer: str, gpu: torch.device) -> None:
    pipeline = StagePipeline(known_loader(2), WORKS, gpu, depth=16)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 3)) == Found(STEPS, [])


@CONSUMERS
@pytest.mark.parametrize("number", [1, 3], ids=["a stream of its own", "changing streams"])
def test_a_consumer_on_other_streams(number: int, consumer: str, gpu: torch.device) -> None:
    streams = [torch.cuda.Stream(gpu) for _ in range(number)]
    pipeline = StagePipeline(known_loader(2), [inverted], gpu)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 1), streams=streams) == Found(STEPS, [])


@CONSUMERS
def test_old_batches_stay_as_they_were(consumer: str, gpu: torch.device) -> None:
    pipeline = StagePipeline(known_loader(2), [inverted, flipped], gpu)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 2), keep=50) == Found(STEPS, [])


@CONSUMERS
def test_a_stage_that_writes_into_its_batch(consumer: str, gpu: torch.device) -> None:
    def in_place(batch: Batch) -> Batch:
        images, features, labels = batch
        return images.bitwise_not_(), features.add_(3), labels

    pipeline = StagePipeline(known_loader(2), [in_place, flipped], gpu)
    known = Known(STEPS, gpu)
    found = driven(consumer, pipeline, lambda number: flipped(in_place(known[number])))
    assert found == Found(STEPS, [])


@CONSUMERS
def test_a_loop_that_writes_into_its_batch(consumer: str, gpu: torch.device) -> None:
    """The loader keeps nothing in the memory of its batches."""

    def written_into(pipeline: StagePipeline) -> Iterator[Any]:
        for batch in pipeline:
            yield tuple(tensor.add_(1) for tensor in batch)

    pipeline = StagePipeline(known_loader(2), [flipped], gpu)
    truth = staged(STEPS, gpu, 0)
    found = driven(
        consumer, written_into(pipeline), lambda number: tuple(tensor + 1 for tensor in flipped(truth(number)))
    )
    assert found == Found(STEPS, [])


# ---- where the batches come from


@CONSUMERS
def test_an_iterable_whose_batches_are_on_the_device_already(consumer: str, gpu: torch.device) -> None:
    """They are made on the loop's stream, which may not have reached that work yet."""
    known = Known(STEPS, gpu)

    def made_late() -> Iterator[Any]:
        for number in range(STEPS):
            torch.cuda._sleep(MILLISECOND // 4)
            yield known[number]

    pipeline = StagePipeline(made_late(), [inverted], gpu)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 1)) == Found(STEPS, [])


@CONSUMERS
def test_a_pipeline_of_a_pipeline(consumer: str, gpu: torch.device) -> None:
    inner = StagePipeline(known_loader(2), [inverted], gpu)
    pipeline = StagePipeline(inner, [flipped], gpu)
    assert driven(consumer, pipeline, staged(STEPS, gpu, 2)) == Found(STEPS, [])


@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "as it is"])
def test_weights_that_the_loop_has_changed_between_two_epochs(graphs: bool, gpu: torch.device) -> None:
    """A stage's stream begins only after the work that the loop had launched."""
    layer = nn.Linear(64, 64, bias=False, device=gpu).requires_grad_(False)
    identity = torch.eye(64, device=gpu)
    pipeline = StagePipeline(known_loader(0, 8), [lambda batch: layer(batch[1] % 1024)], gpu, graphs=graphs)
    known = Known(8, gpu)
    wrong = torch.zeros(20, dtype=torch.int32, device=gpu)
    for epoch in range(20):
        torch.cuda._sleep(20 * MILLISECOND)
        layer.weight.copy_(identity * epoch)
        for number, made in enumerate(pipeline):
            wrong[epoch] += torch.ne(made, known[number][1] % 1024 * epoch).any()
    assert wrong.tolist() == [0] * 20


# ---- offload

PIXELS = (torch.arange(3 * 96 * 96) % 241).to(torch.uint8).view(3, 96, 96)


class Images(Dataset[Any]):
    def __init__(self, transform: Any, length: int) -> None:
        self.transform = transform
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(PIXELS + index % 256), index


def bytes_only() -> Any:
    """Every bit of the result is the CPU's."""
    return v2.Compose([v2.RandomCrop(64), v2.RandomHorizontalFlip()])


def in_floats() -> Any:
    links = [v2.ToDtype(torch.float32), v2.RandomCrop(64), v2.RandomRotation(30.0), v2.GaussianBlur(5)]
    return v2.Compose([*links, v2.Normalize([1.0, 2.0, 3.0], [60.0, 70.0, 80.0])])


@dataclass
class Chain:
    """A loader's transforms, their plan, and the batches of an epoch under the seed 0."""

    offloaded: OffloadedLoader
    batches: list[Any]


def images_loader(transform: Any, workers: int, length: int) -> DataLoader[Any]:
    return DataLoader(Images(transform, length), batch_size=4, num_workers=workers)


def in_sequence(offloaded: OffloadedLoader, device: torch.device) -> Iterator[Any]:
    """Yield its batches, each complete before the next begins."""
    for sent in offloaded.feed.begin():
        ready = offloaded.feed.arrive(sent)
        torch.cuda.synchronize(device)
        yield ready.batch


@pytest.fixture(scope="module", params=[bytes_only, in_floats], ids=lambda chain: chain.__name__)
def plan(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    transform = request.param()
    made = offload(images_loader(transform, 0, 200), "cuda", samples=16)
    assert made.plan.pieces, made.plan.reasons
    return transform, made.plan


@pytest.fixture(scope="module", params=[0, 2], ids=["no workers", "workers"])
def chain(request: pytest.FixtureRequest, plan: tuple[Any, Any]) -> Chain:
    transform, made = plan
    device = torch.device("cuda", torch.cuda.current_device())
    length = 4 * STEPS
    offloaded = OffloadedLoader(images_loader(transform, request.param, length), made, device)
    torch.manual_seed(0)
    batches = list(in_sequence(offloaded, device))
    torch.manual_seed(0)
    for ours, theirs in zip(batches[:20], images_loader(transform, request.param, length), strict=False):
        off = ((ours[0].cpu().double() - theirs[0].double()).abs() > 1e-4).double().mean()
        assert off <= (1e-3 if theirs[0].is_floating_point() else 0)
        assert torch.equal(ours[1].cpu(), theirs[1])
    return Chain(offloaded, batches)


@CONSUMERS
def test_offload(chain: Chain, consumer: str, gpu: torch.device) -> None:
    torch.manual_seed(0)
    found = driven(consumer, chain.offloaded, chain.batches.__getitem__)
    assert found == Found(len(chain.batches), [])
    assert chain.offloaded.unrecorded == 0, chain.offloaded.why


@CONSUMERS
def test_offload_then_a_stage(chain: Chain, consumer: str, gpu: torch.device) -> None:
    def work(batch: Any) -> Any:
        return batch[0] * 2, batch[1]

    pipeline = StagePipeline(chain.offloaded, [work], gpu)
    torch.manual_seed(0)
    found = driven(consumer, pipeline, lambda number: work(chain.batches[number]))
    assert found == Found(len(chain.batches), [])
    assert ": captured" in pipeline.notes[0], pipeline.notes


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_offload_while_the_loop_captures_graphs(mode: str, gpu: torch.device) -> None:
    """Torch's allocator forgets the streams that are recorded during a capture, in whichever thread."""
    offloaded = offload(images_loader(bytes_only(), 2, 240), gpu, samples=8)
    assert offloaded.plan.moves, offloaded.plan.reasons
    torch.manual_seed(0)
    batches = list(in_sequence(offloaded, gpu))
    feed, native, side = offloaded.feed, offloaded.feed.arrive, torch.cuda.Stream(gpu)

    def replayed_late(sent: Any) -> Any:
        with torch.cuda.stream(feed._replaying):
            torch.cuda._sleep(4 * MILLISECOND)
        return native(sent)

    def capturing() -> Iterator[Any]:
        for batch in offloaded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side, capture_error_mode=mode):
                _ = torch.zeros(8, device=gpu) + 1
                time.sleep(0.01)  # other batches arrive meanwhile
            yield batch

    feed.arrive = replayed_late
    torch.manual_seed(0)
    assert driven("ahead", capturing(), batches.__getitem__) == Found(len(batches), [])


def test_offload_for_a_consumer_that_changes_streams_and_keeps_old_batches(chain: Chain, gpu: torch.device) -> None:
    torch.manual_seed(0)
    streams = [torch.cuda.Stream(gpu) for _ in range(2)]
    found = driven("behind", chain.offloaded, chain.batches.__getitem__, streams=streams, keep=50)
    assert found == Found(len(chain.batches), [])


@CONSUMERS
@pytest.mark.parametrize("after", [[], [v2.ToDtype(torch.float32), v2.Normalize([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])]])
def test_several_epochs_of_offload_at_once(after: list[Any], consumer: str, gpu: torch.device) -> None:
    """Two threads launch on the same streams, in any order."""
    transform = v2.Compose([v2.CenterCrop(64), v2.RandomHorizontalFlip(1.0), *after])
    offloaded = offload(images_loader(transform, 2, 4 * STEPS), gpu, samples=8)
    assert offloaded.plan.pieces, offloaded.plan.reasons
    batches = list(in_sequence(offloaded, gpu))
    both = zip(offloaded, offloaded, strict=True)
    assert driven(consumer, both, lambda number: (batches[number], batches[number])) == Found(STEPS, [])

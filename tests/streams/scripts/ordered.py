"""Run loops on an imagined device, keep a ledger of every access to its memory, and print findings as JSON.

    python ordered.py --all
    python ordered.py --few    # one of each kind

For each scenario: the list of mistakes. Scenarios whose names begin with "wrong:" are loops with a mistake, and
pipediag's own code with one thing taken out: there the ledger must find something.
"""

# ruff: noqa: E402
from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.streams import imagined, mistakes
from tests.streams.ledger import pretend

DEVICE = imagined.Device()
LEDGER = pretend(DEVICE)  # before any module imports a name from torch.cuda

from pipediag import offload
from pipediag.remedy.loader import OffloadedLoader
from pipediag.streams import executor, stage
from pipediag.streams import to_device as replayed
from pipediag.streams.branches import fork_join
from pipediag.streams.handover import Ready
from pipediag.streams.pipeline import StagePipeline
from pipediag.usercode import tree

GPU = torch.device("cuda", 0)
COUNT = 10  # enough for graphs to be captured and used


class Batches(Dataset[Any]):
    """Whole batches: images, features, labels."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        if number >= COUNT:
            raise IndexError(number)
        return torch.full((2, 3, 4), number % 256, dtype=torch.uint8), torch.full((2, 4), float(number)), torch.ones(2)


class Images(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4 * COUNT

    def __getitem__(self, number: int) -> Any:
        return self.transform(torch.full((3, 12, 12), number % 256, dtype=torch.uint8)), number % 10


def loop(
    batches: Iterable[Any],
    streams: int = 0,
    keep: int = 0,
    most: int = 1000,
    use: Callable[[Any], Any] = lambda batch: [tensor * 2 for tensor in tree.tensors(batch)],
) -> None:
    """A training loop: it reads its batches on one stream, or on several in turn, and may keep old ones."""
    own = [imagined.Stream() for _ in range(streams)] or [DEVICE.default]
    kept: list[Any] = []
    iterator = iter(batches)
    for _, stream in zip(range(most), itertools.cycle(own), strict=False):
        with torch.cuda.stream(stream):
            batch = next(iterator, None)
            if batch is None:
                return
            use(batch)
        kept.append(batch)
        del kept[: len(kept) - keep], batch


def loader(workers: int) -> DataLoader[Any]:
    return DataLoader(Batches(), batch_size=None, num_workers=workers)


# ---- stages


def inverted(batch: Any) -> Any:
    images, features, labels = batch
    return 255 - images, features * 2 + 1, labels


def in_place(batch: Any) -> Any:
    images, features, labels = batch
    return images, features.mul_(3), labels + 1


def stages(workers: int, count: int, graphs: bool) -> None:
    pipeline = StagePipeline(loader(workers), [inverted, in_place, inverted][:count], GPU, graphs=graphs)
    loop(pipeline, streams=3, keep=4)
    for one, other in zip(pipeline, pipeline, strict=True):
        (one[1] + other[1]).sum()
    if workers == 0:
        loop(pipeline, most=3)
        loop(pipeline, use=lambda batch: batch[1].add_(1))


def on_the_device_already() -> None:
    data = Batches()
    loop(StagePipeline(([part.to(GPU) + 1 for part in data[number]] for number in range(COUNT)), [inverted], GPU))


def pipeline_of_a_pipeline() -> None:
    for workers in (0, 1):
        loop(StagePipeline(StagePipeline(loader(workers), [inverted], GPU), [in_place], GPU))


def weights_changed_between_epochs() -> None:
    layer = nn.Linear(4, 4).to(GPU).requires_grad_(False)
    for graphs in (False, True):
        pipeline = StagePipeline(loader(0), [lambda batch: layer(batch[1])], GPU, graphs=graphs)
        for _ in range(3):
            layer.weight.mul_(2)
            loop(pipeline)


def training() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(GPU).eval().requires_grad_(False)
    decoder = nn.Linear(4, 2).to(GPU)
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1, momentum=0.9)

    def step(features: Tensor) -> None:
        optimizer.zero_grad()
        decoder(features).square().sum().backward()
        optimizer.step()

    loop(StagePipeline(loader(1), [lambda batch: encoder(batch[1])], GPU), use=step)


def branches() -> None:
    parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]).to(GPU).requires_grad_(False)

    def work(batch: Any) -> Any:
        return torch.cat(fork_join([*parts, lambda features: features + 1], batch[1]))

    for graphs in (False, True):
        loop(StagePipeline(loader(0), [work], GPU, graphs=graphs))
    loop(loader(0), use=lambda batch: work([part.to(GPU) for part in batch]).sum())
    loop(loader(0), use=lambda batch: torch.cat(fork_join([work, work], [part.to(GPU) for part in batch])).sum())
    loop(loader(0), use=lambda batch: failing_branch(batch[1].to(GPU)))


def failing_branch(features: Tensor) -> None:
    """The branches before the error, and that which raises it, have launched work."""
    made = torch.zeros_like(features), torch.zeros_like(features)

    def fails(features: Tensor) -> None:
        made[1].copy_(features)
        raise ValueError

    with suppress(ValueError):
        fork_join([made[0].copy_, fails], features)
    (made[0] + made[1]).sum()


# ---- offload


class Gain:
    """A user's own code, which moves."""

    def __init__(self) -> None:
        self.gain = torch.tensor([0.5, 2.0, 4.0]).view(3, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        return image * self.gain


def mixed(samples: Any) -> Any:
    return v2.MixUp(num_classes=10)(*default_collate(samples))


FLOATS = v2.ToDtype(torch.float32, scale=True)
CHAINS: dict[str, list[Any]] = {
    "the same for all": [v2.CenterCrop(8), v2.RandomHorizontalFlip(1.0), FLOATS],
    "flips": [v2.RandomCrop(8), v2.RandomHorizontalFlip()],
    "jitter and erasing": [v2.RandomResizedCrop(8), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomErasing(0.5), FLOATS],
    "drawn fields": [v2.ElasticTransform(20.0, sigma=1.0), FLOATS, v2.GaussianNoise()],
    "code of the user's": [v2.RandomCrop(8), v2.ToDtype(torch.float32), Gain()],
}


def offloaded(links: list[Any], **settings: Any) -> None:
    def images(**more: Any) -> DataLoader[Any]:
        return DataLoader(Images(v2.Compose(links)), batch_size=4, **settings, **more)

    plan = offload(images(), GPU, samples=8).plan
    assert plan.pieces, plan.reasons
    LEDGER.take()  # findings of the proof, which runs on one stream, do not matter
    for more in ({}, {"num_workers": 1, "persistent_workers": True}):
        made = OffloadedLoader(images(**more), plan, GPU)
        loop(made, streams=3, keep=4)
        loop(made, most=3)
        loop(StagePipeline(made, [lambda batch: (batch[0] * 2, batch[1])], GPU))
    made = OffloadedLoader(images(num_workers=1), plan, GPU)
    for one, other in zip(made, made, strict=True):
        (one[0] + other[0]).sum()


# ---- loops that read batches on their own stream


class Prefetching:
    """Like timm's ``PrefetchLoader``, of which earlier releases, like NVIDIA's apex, do not wait for the consumer."""

    def __init__(self, loader: Iterable[Any], waits: bool) -> None:
        self.loader = loader
        self.waits = waits
        self.stream = torch.cuda.Stream(GPU)

    def __iter__(self) -> Iterator[Any]:
        made = None
        for images, labels in self.loader:
            if self.waits:
                self.stream.wait_stream(torch.cuda.current_stream(GPU))
            with torch.cuda.stream(self.stream):
                moved = images.to(GPU, non_blocking=True), labels.to(GPU, non_blocking=True)
                following = moved[0].to(torch.float32).sub_(1.0), moved[1]
            del images, labels, moved
            if made is not None:
                yield made
            torch.cuda.current_stream(GPU).wait_stream(self.stream)
            made = following
        yield made


def read_apart(waits: bool) -> None:
    for workers in (0, 1):
        images = DataLoader(Images(v2.RandomCrop(8)), batch_size=4, num_workers=workers)
        for transforms in (True, False):
            made = offload(images, GPU, samples=8, transforms=transforms)
            LEDGER.take()
            for _ in Prefetching(made, waits):
                pass


# ---- mistakes


def prefetcher(made: mistakes.Prefetcher) -> None:
    loop(made([Batches()[number] for number in range(COUNT)], GPU))


@contextmanager
def handing_over(hand_over: Callable[[Ready, Any], Any]) -> Iterator[None]:
    """Make pipediag hand batches over from stream to stream in another way, inside the context."""
    native = executor.hand_over
    executor.hand_over = stage.hand_over = hand_over
    try:
        yield
    finally:
        executor.hand_over = stage.hand_over = native


def without_waiting(ready: Ready, stream: Any) -> Any:
    for tensor in tree.tensors(ready.batch):
        tensor.record_stream(stream)
    return ready.batch


def without_telling(ready: Ready, stream: Any) -> Any:
    stream.wait_event(ready.event)
    return ready.batch


def handed_over(hand_over: Callable[[Ready, Any], Any]) -> None:
    with handing_over(hand_over):
        loop(StagePipeline(loader(0), [inverted], GPU))


def arrived_during_a_capture() -> None:
    """Batches arrive in their thread while the loop captures a graph."""
    made = offload(DataLoader(Images(v2.Compose(CHAINS["flips"])), batch_size=4), GPU, samples=8)
    LEDGER.take()
    with LEDGER.captured_elsewhere():
        ready = [made.feed.arrive(sent) for sent in made.feed.begin()]
    assert isinstance(made.feed, replayed.ToDevice) and len(ready) == COUNT


def replayed_without_keeping() -> None:
    """The memory of a packed batch is not kept until the other stream has read it."""
    native = replayed._Read.until
    replayed._Read.until = lambda self, event, memory: None  # type: ignore[method-assign]
    try:
        arrived_during_a_capture()
    finally:
        replayed._Read.until = native  # type: ignore[method-assign]


SCENARIOS: dict[str, Callable[[], None]] = {
    "right": lambda: prefetcher(mistakes.right),
    **{
        f"{count} stages, {workers} workers, {'captured' if graphs else 'as they are'}": (
            lambda workers=workers, count=count, graphs=graphs: stages(workers, count, graphs)
        )
        for count in (0, 1, 3)
        for workers, graphs in ((0, False), (0, True), (1, True))
    },
    "batches that are on the device already": on_the_device_already,
    "a pipeline of a pipeline": pipeline_of_a_pipeline,
    "weights changed between epochs": weights_changed_between_epochs,
    "training on a frozen encoder": training,
    "branches": branches,
    **{f"offload: {name}": lambda links=links: offloaded(links) for name, links in CHAINS.items()},
    "batches that arrive during a capture": arrived_during_a_capture,
    "offload: mixing": lambda: offloaded([v2.RandomCrop(8), FLOATS], collate_fn=mixed),
    "a loop that prefetches": lambda: read_apart(True),
    "a loop that prefetches without waiting": lambda: read_apart(False),
    "wrong: as published": lambda: prefetcher(mistakes.as_published),
    "wrong: unrecorded": lambda: prefetcher(mistakes.unrecorded),
    "wrong: unawaited": lambda: prefetcher(mistakes.unawaited),
    "wrong: handed over without waiting": lambda: handed_over(without_waiting),
    "wrong: handed over without telling the allocator": lambda: handed_over(without_telling),
    "wrong: replayed without keeping the memory": replayed_without_keeping,
}


#: Scenarios that resemble others.
SIMILAR = {
    *(name for name in SCENARIOS if "stages" in name and not name.startswith(("1 stages, 0", "3 stages, 1"))),
    *(f"offload: {name}" for name in ("the same for all", "flips", "jitter and erasing", "code of the user's")),
    "offload: mixing", "a loop that prefetches", "a pipeline of a pipeline",
}  # fmt: skip


def main(few: bool) -> None:
    found = {}
    with LEDGER.watched():
        for name, scenario in SCENARIOS.items():
            if few and name in SIMILAR:
                continue
            scenario()
            found[name] = LEDGER.take()
            torch.cuda.synchronize()
            LEDGER.take()
    print(json.dumps(found))


if __name__ == "__main__":
    main("--few" in sys.argv)

"""A run of an iterable dataset under the remedy gives the plain loader's batches, checked and given up or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, default_collate, get_worker_info
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy.finding import shown_by_batches
from pipediag.replay.plan import Piece, Plan

from .test_remedied_run import WORKERS, Lines, Run, Still, alike, batches_of, stand_in

SAMPLES = 60


def numbers(samples: int = SAMPLES) -> range:
    info = get_worker_info()
    return range(info.id, samples, info.num_workers) if info else range(samples)


def pixels(number: int) -> Tensor:
    return torch.full((3, 8, 8), 4 * number, dtype=torch.uint8) + torch.arange(8, dtype=torch.uint8)


class Chain(IterableDataset[Any]):
    """Its samples are shared by the workers; the last batches are incomplete."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(6), v2.ToDtype(torch.float32)])
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for number in numbers(self.samples):
            yield self.transform(pixels(number)), number


class OfOneWorker(Chain):
    """All its samples are the last worker's."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for number in range(SAMPLES if info is None or info.id == info.num_workers - 1 else 0):
            yield self.transform(pixels(number)), number


class OwnIterator(Chain):
    """It goes on where it stands, so it cannot be tried in another process."""

    def __iter__(self) -> Iterator[Any]:
        self.numbers = iter(numbers())
        return self

    def __next__(self) -> Any:
        number = next(self.numbers)
        return self.transform(pixels(number)), number


class Calls(IterableDataset[Any]):
    """Plain code, and a buffer that shuffles what it has made."""

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for number in numbers():
            image = F.horizontal_flip(pixels(number)) if random.random() < 0.5 else pixels(number)
            held.append((F.normalize(F.crop(image, number % 3, 1, 6, 6) / 255, [0.5], [0.2]), number))
            if len(held) > 5:
                yield held.pop(random.randrange(len(held)))
        yield from held


class InBatches(Calls):
    """It makes its batches itself."""

    def __iter__(self) -> Iterator[Any]:
        samples = list(super().__iter__())
        for k in range(0, len(samples), 4):
            yield default_collate(samples[k : k + 4])


class Keeps(Chain):
    """Adds to a sample what it made of the one before, which may have been recorded for an earlier batch."""

    def __iter__(self) -> Iterator[Any]:
        before = torch.zeros(3, 6, 6)
        for image, number in super().__iter__():
            yield (image + before if number > 30 else image), number
            before = image


STREAMS: dict[str, Callable[[], Any]] = {
    "chain": Chain,
    "chained": lambda: ChainDataset([Chain(20), Chain(40)]),
    "of one worker": OfOneWorker,
    "own iterator": OwnIterator,
    "calls": Calls,
    "in batches": InBatches,
    "keeps": Keeps,
}
#: Why nothing moves of some.
STAY = {
    "keeps": "keeps what its transforms have made",
    **dict.fromkeys(("calls", "in batches"), "cannot be made again, and no transforms of torchvision's were found"),
}
EACH = pytest.mark.parametrize("name", STREAMS)


def make(name: str, workers: int, persistent: bool = False) -> DataLoader[Any]:
    size = None if name == "in batches" else 4
    return DataLoader(STREAMS[name](), size, num_workers=workers, persistent_workers=persistent)


def stand_for(name: str, workers: int, persistent: bool, said: Lines, **settings: Any) -> Run:
    return stand_in(make(name, workers, persistent), said, **{"known": None, "finds": True, **settings})


@EACH
@WORKERS
def test_its_batches_are_the_plain_loaders(name: str, workers: int, persistent: bool) -> None:
    said = Lines()
    stand = stand_for(name, workers, persistent, said, clock=Still(), every=3, after=0.0)
    random.seed(5)
    ours = batches_of(stand.loader, stand)
    drawn = random.random()
    random.seed(5)
    assert alike(ours, batches_of(make(name, workers, persistent), None)) and drawn == random.random()
    assert not stand.course.given_up and not said
    if name in STAY:
        assert STAY[name] in stand.offloaded.plan.reasons[0] and not stand.offloaded.recorded
        return
    assert stand.links and stand.offloaded.recorded, stand.offloaded.plan
    assert stand.offloaded.certificate is not None and stand.offloaded.certificate.passed
    assert stand._check.checked
    assert not stand.offloaded.unrecorded


@EACH
@WORKERS
def test_giving_up_goes_on_with_the_next_sample(name: str, workers: int, persistent: bool) -> None:
    said = Lines()
    stand = stand_for(name, workers, persistent, said)
    random.seed(5)
    ours = batches_of(stand.loader, stand, lambda *now: stand.give_up("a test") if now == (2, 5) else None)
    random.seed(5)
    assert alike(ours, batches_of(make(name, workers, persistent), None))
    assert bool(stand.offloaded.recorded) == (name not in STAY) and said == ["back to the plain loader: a test"]


def test_what_its_first_batches_can_show() -> None:
    assert shown_by_batches(make("chain", 2)) and shown_by_batches(make("own iterator", 0))
    assert not shown_by_batches(make("calls", 2)), "its code calls what may move"


@WORKERS
@pytest.mark.parametrize("name", ["chain", "of one worker", "own iterator", "keeps"])
def test_a_known_plan_is_certified_by_its_first_batches(name: str, workers: int, persistent: bool) -> None:
    plan = Plan(pieces=(Piece((0,), 0, ("RandomHorizontalFlip", "RandomCrop", "ToDtype")),))
    stand = stand_for(name, workers, persistent, Lines(), planned=plan, finds=False)
    assert stand.offloaded.certificate is None
    assert alike(batches_of(stand.loader, stand), batches_of(make(name, workers, persistent), None))
    proof = stand.offloaded.certificate
    assert proof is not None and proof.passed and proof.samples > proof.unrecorded
    assert stand.offloaded.recorded and not stand.course.given_up
    assert bool(stand.offloaded.unrecorded) == (name == "keeps")

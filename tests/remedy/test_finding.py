"""A loader's own first batches show what moves: they are the plain ones, and the user's code runs once for each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tabulate
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision.transforms import v2

from pipediag.remedy import spotcheck
from pipediag.remedy.finding import Known, _is_of_another_library, shown_by_batches, why_stream_stays
from pipediag.remedy.remedied_run import RemediedRun
from pipediag.replay.certify.certifying import Verdict
from pipediag.replay.certify.differences import Difference
from pipediag.replay.plan import Plan

NATIVE: Callable[[Any], Any] = DataLoader._get_iterator
SAMPLES, BATCH = 96, 8


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spotcheck, "FIRST", 16)


def as_it_is(image: Any) -> Any:
    return image


class Images(Dataset[tuple[Tensor, int]]):
    """Images after transforms of torchvision's, and ``after`` them the dataset's own code."""

    def __init__(self, *links: Any, after: Callable[[Any], Any] = as_it_is) -> None:
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomErasing(p=0.5), *links])
        self.load_after = after  # by its name no transform
        self.calls = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.calls += 1
        pixels = (torch.arange(192) * (index + 1) % 251).to(torch.uint8).reshape(3, 8, 8)
        return self.load_after(self.transform(pixels)), index


class Followed:
    """Epochs of a loader under a run that finds its plan by itself, each perhaps of another loader."""

    def __init__(self, loader: DataLoader[Any], known: Known | None = None) -> None:
        self.told: list[Plan] = []
        self.said: list[str] = []
        self.run = RemediedRun(
            loader,
            torch.device("cpu"),
            NATIVE,
            contextlib.nullcontext,
            self.said.append,
            known=known,
            finds=True,
            told=lambda run: self.told.append(run.offloaded.plan),
        )
        self.loader = loader

    @property
    def moved(self) -> list[str]:
        return [name for name, _ in self.run.links]

    def epochs(self, number: int = 2) -> list[Tensor]:
        return epochs(self.loader, lambda: self.run.iterator(self.loader), number)


def epochs(loader: DataLoader[Any], begin: Callable[[], Iterator[Any]], number: int = 2) -> list[Tensor]:
    """Return all tensors of some epochs, and the state of the generator after them."""
    torch.manual_seed(5)
    seen: list[Tensor] = []
    kept: Any = None
    for _ in range(number):
        if kept is not None and loader.persistent_workers:
            kept._reset(loader)
        else:
            kept = begin()
        seen += [part.to_dense().clone() for batch in kept for part in batch]
    return [*seen, torch.get_rng_state()]


def made(dataset: Dataset[Any], workers: int = 0, persistent: bool = False) -> DataLoader[Any]:
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=persistent)


def plainly(loader: DataLoader[Any], number: int = 2) -> list[Tensor]:
    return epochs(loader, lambda: NATIVE(loader), number)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_batches_draws_and_calls_are_the_plain_ones(workers: int, persistent: bool) -> None:
    ours, theirs = Images(), Images()
    followed = Followed(made(ours, workers, persistent))
    assert followed.run.offloaded.finds and not followed.moved and not ours.calls
    assert equal(followed.epochs(), plainly(made(theirs, workers, persistent)))
    offloaded = followed.run.offloaded
    assert followed.moved == ["RandomHorizontalFlip", "RandomErasing"] and offloaded.recorded and not followed.said
    assert offloaded.certificate is not None and offloaded.certificate.passed and offloaded.certificate.samples == 16
    assert followed.told == [offloaded.plan]
    assert ours.calls == theirs.calls


def test_a_loop_that_writes_into_its_batches() -> None:
    """They are compared later, as the workers made them."""

    def halved(loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> list[Tensor]:
        torch.manual_seed(5)
        return [images.float().mul_(0.5).sum() + images.zero_().sum() for _ in range(2) for images, _ in begin()]

    followed, loader = Followed(made(Images())), made(Images())
    ours = halved(followed.loader, lambda: followed.run.iterator(followed.loader))
    assert ours == halved(loader, lambda: NATIVE(loader))
    assert followed.moved and followed.run.offloaded.recorded and not followed.said


def test_nothing_moves() -> None:
    dataset = Images(v2.AugMix())
    followed = Followed(made(dataset))
    assert equal(followed.epochs(), plainly(made(Images(v2.AugMix()))))
    (plan,) = followed.told
    assert not plan.pieces and any("AugMix" in reason for reason in plan.reasons)
    assert not followed.run.course.given_up and not followed.said and dataset.calls == 2 * SAMPLES


def bright(image: Tensor) -> Tensor:
    return image if float(image.float().mean()) > 0 else image.flip(2)


def test_code_that_reads_pixels_is_left_alone() -> None:
    dataset = Images(after=bright)
    followed = Followed(made(dataset))
    assert equal(followed.epochs(), plainly(made(Images(after=bright))))
    assert "mean would need the pixels" in followed.run.course.given_up and len(followed.said) == 1
    assert dataset.calls == 2 * SAMPLES and followed.run.offloaded.unrecorded == 8


def thresholded(image: Tensor) -> Tensor:
    return image > 100


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_code_after_the_transforms_is_tried_before_the_next_epoch(workers: int, persistent: bool) -> None:
    """A recorded image that a transform gives cannot be compared; one that plain code's calls give can."""
    ours, theirs = Images(after=thresholded), Images(after=thresholded)
    followed = Followed(made(ours, workers, persistent))
    assert equal(followed.epochs(3), plainly(made(theirs, workers, persistent), 3))
    offloaded = followed.run.offloaded
    assert offloaded.plan.begins and offloaded.recorded and not offloaded.unrecorded, offloaded.why
    assert ours.calls == theirs.calls and followed.told == [offloaded.plan] and not followed.said


def test_a_function_with_other_pixels_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    certify, seen = spotcheck.certify, []

    def first_fails(first: Any, plan: Plan, device: torch.device) -> Any:
        proof = certify(first, plan, device)
        seen.append(plan)
        wrong = Verdict("erase", 1, Difference(9.0, 0.5, False))
        return replace(proof, ops=(*proof.ops, wrong)) if len(seen) == 1 else proof

    monkeypatch.setattr(spotcheck, "certify", first_fails)
    links = v2.RandomVerticalFlip(), v2.RandomHorizontalFlip()
    followed = Followed(made(Images(*links)))
    assert equal(followed.epochs(3), plainly(made(Images(*links)), 3))
    assert followed.moved == ["RandomVerticalFlip", "RandomHorizontalFlip"] and followed.run.offloaded.recorded
    assert [plan.refused for plan in seen] == [frozenset(), {"erase"}] and not followed.said


def test_a_loader_that_is_made_again_goes_on_with_the_comparison() -> None:
    """An epoch of each is too short for it."""
    known, seen = Known(), []
    theirs = made(Subset(Images(), range(24)))
    for _ in range(3):
        followed = Followed(made(Subset(Images(), range(24))), known)
        seen.append(followed.run.offloaded.finds)
        assert equal(followed.epochs(1), plainly(theirs, 1))
    assert seen == [True, False, False] and followed.run.offloaded.recorded == 3


class TypesAsked(Images):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label + (type(image) is not Tensor)


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from range(8)


def by_type(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples if type(image) is Tensor])


class WithSparse(Images):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), torch.eye(3).to_sparse()


def first_sparse(samples: list[Any]) -> Any:
    return torch.stack([image for image, _, _ in samples]), samples[0][2]


def test_tensors_without_memory_of_their_own() -> None:
    ours, theirs = (DataLoader(WithSparse(), BATCH, collate_fn=first_sparse) for _ in range(2))
    followed = Followed(ours)
    assert equal(followed.epochs(), plainly(theirs)) and not followed.run.offloaded.finds


def test_two_iterators_of_a_loader_side_by_side() -> None:
    def pairs(begin: Callable[[], Iterator[Any]]) -> list[Tensor]:
        torch.manual_seed(5)
        return [part.clone() for both in zip(begin(), begin(), strict=True) for batch in both for part in batch]

    followed, theirs = Followed(made(Images(), workers=2)), made(Images(), workers=2)
    ours = pairs(lambda: followed.run.iterator(followed.loader))
    assert equal(ours, pairs(lambda: NATIVE(theirs)))
    assert followed.run.offloaded.recorded and not followed.run.course.given_up


def plain_only(image: Any) -> Any:
    return image if type(image) is Tensor else image.flip(2)


def by_a_helper(image: Any) -> Any:
    return plain_only(image)


class Helper:
    def check(self, image: Any) -> Any:
        return image if image.__class__ is Tensor else image.flip(2)


class ByAnObject(Images):
    def __init__(self) -> None:
        super().__init__()
        self.helper = [Helper()]

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return self.helper[0].check(image), label


def by_another_library(image: Any) -> Any:
    return tabulate.tabulate([[image]])


@dataclasses.dataclass(order=True)
class Held:
    image: Tensor

    def first(self) -> Tensor:
        return self.image


def held(image: Any) -> Any:
    return Held(image).first()


class Exact(Held):
    def __eq__(self, other: object) -> bool:
        return other.__class__ is Tensor


def held_exactly(image: Any) -> Any:
    return Exact(image).first()


def test_a_dataclass_compares_its_objects_without_asking_for_an_images_type() -> None:
    assert shown_by_batches(made(Images(after=held)))
    assert not shown_by_batches(made(Images(after=held_exactly)))


def test_types_that_are_asked_for_behind_the_datasets_own_methods() -> None:
    assert not shown_by_batches(made(Images(after=by_a_helper)))
    assert not shown_by_batches(made(Images(after=functools.partial(by_a_helper))))
    assert not shown_by_batches(made(ByAnObject()))
    assert not shown_by_batches(made(Images(after=lambda image: plain_only(image))))
    assert not shown_by_batches(made(Images(after=by_another_library)))


@pytest.mark.parametrize(
    ("after", "tells"),
    [
        (lambda image: image if image is not None else 0, False),
        (lambda image: image is True, False),
        (lambda image: image is SAMPLES, True),
        (lambda image: [one for one in [image] if one is not image], True),
        (lambda image: vars(image), True),
    ],
)
def test_comparing_images_by_identity_tells_recorded_ones(after: Any, tells: bool) -> None:
    assert shown_by_batches(made(Images(after=after))) is not tells


def test_what_is_tried_beforehand() -> None:
    assert not shown_by_batches(made(Images(after=lambda image: v2.functional.horizontal_flip(image))))
    assert shown_by_batches(made(Images())) and shown_by_batches(made(Subset(Images(), range(9))))
    assert not shown_by_batches(made(Images(thresholded)))
    assert not shown_by_batches(made(TypesAsked())) and not shown_by_batches(made(Subset(TypesAsked(), range(9))))
    assert not shown_by_batches(DataLoader(Images(), BATCH, collate_fn=by_type))
    assert not shown_by_batches(DataLoader(Numbers(), BATCH))


class Stream(IterableDataset[Any]):
    """Samples of a library's transform, or of the user's, and what comes after it."""

    def __init__(self, transform: Any, after: Any = None) -> None:
        self.transform, self.load_after = transform, after

    def __iter__(self) -> Iterator[Any]:
        yield self.load_after(self.transform(SAMPLES[0][0]))


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (Stream(None), "no transforms of torchvision's were found"),
        (Stream(thresholded), "its transform thresholded (tests/remedy/test_finding.py:"),
        (Stream(v2.RandomHorizontalFlip(), by_type), "by_type (tests/remedy/test_finding.py:"),
        (Stream(v2.RandomHorizontalFlip(), by_another_library), "its code can call tabulate"),
    ],
)
def test_what_keeps_a_stream_is_named(stream: Stream, why: str) -> None:
    assert f"and {why}" in why_stream_stays(DataLoader(stream, BATCH))


def test_objects_that_are_called_are_of_their_library() -> None:
    assert _is_of_another_library(pytest.mark.slow), "an object with __call__"
    assert not _is_of_another_library(np.add) and not _is_of_another_library(functools.partial(np.sort))

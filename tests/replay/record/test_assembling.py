"""Collate functions that copy images into the rows of their own tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from pipediag.remedy import offload
from pipediag.usercode import paths


class Pictures(Dataset[Any]):
    def __init__(self, *links: Any) -> None:
        self.transform = T.Compose([T.RandomCrop(12), T.RandomHorizontalFlip(), T.PILToTensor(), *links])

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        pixels = np.random.default_rng(index).integers(0, 256, (16, 20, 3), dtype=np.uint8)
        return self.transform(PIL.Image.fromarray(pixels)), index


def copied(batch: Any) -> Any:
    """Collate as timm 1.0 does."""
    images = torch.zeros((len(batch), *batch[0][0].shape), dtype=torch.uint8)
    for row in range(len(batch)):
        images[row].copy_(batch[row][0])
    return images, torch.tensor([label for _, label in batch], dtype=torch.int64)


def added(batch: Any) -> Any:
    images, labels = torch.zeros((len(batch), *batch[0][0].shape), dtype=torch.uint8), torch.zeros(len(batch))
    for row, (image, label) in enumerate(batch):
        images[row] += image
        labels[row] = label
    return images, labels


def by_index(batch: Any) -> Any:
    images = torch.empty((len(batch), 3, 12, 12), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row] = image
    return {"images": images, "labels": [label for _, label in batch]}


def in_views(batch: Any) -> Any:
    images = torch.full((len(batch), 3, 12, 12), 7, dtype=torch.uint8)
    for row, (image, _) in zip(images, batch, strict=True):
        row[..., : image.shape[-2], : image.shape[-1]].copy_(image, non_blocking=True)
    return images


def of_two_views(batch: Any) -> Any:
    images = torch.zeros((2 * len(batch), 3, 12, 12), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row].copy_(image)
        images[row + len(batch)].copy_(image)
    return images


def of_other_size(batch: Any) -> Any:
    images = torch.zeros((len(batch), 3, 14, 14), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row, :, 1:13, 1:13].copy_(image)
    return images


def one_too_few(batch: Any) -> Any:
    images = torch.zeros((len(batch) + 1, 3, 12, 12), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row].copy_(image)
    return images


@pytest.mark.parametrize("collate", [copied, added, by_index, in_views, of_two_views, of_other_size, one_too_few])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_equal_the_plain_loaders(collate: Callable[[Any], Any], workers: int) -> None:
    loader = DataLoader(Pictures(), 6, num_workers=workers, collate_fn=collate)
    torch.manual_seed(1)
    expected = list(loader)
    remedied = offload(loader, "cpu")
    assert remedied.plan.pieces, str(remedied.plan)
    assert remedied.certificate is not None and remedied.certificate.passed
    torch.manual_seed(1)
    made = list(remedied)
    assert remedied.unrecorded == 0
    assert paths.same(made, expected)


def scaled(batch: Any) -> Any:
    images, labels = copied(batch)
    return images / 255, labels


def as_numpy(batch: Any) -> Any:
    return copied(batch)[0].numpy()


def detached(batch: Any) -> Any:
    return copied(batch)[0].detach() + 1


def in_part(batch: Any) -> Any:
    images, labels = copied(batch)
    return images[:-1], labels


def mean(batch: Any) -> Any:
    images = torch.zeros((1, 3, 12, 12), dtype=torch.uint8)
    for image, _ in batch:
        images[0] += image
    return images


def to_another_type(batch: Any) -> Any:
    images = torch.zeros((len(batch), 3, 12, 12), dtype=torch.float32)
    for row, (image, _) in enumerate(batch):
        images[row].copy_(image)
    return images


def over_ones(batch: Any) -> Any:
    images = torch.ones((len(batch), 3, 12, 12), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row] += image
    return images


KEPT: dict[int, torch.Tensor] = {}


def reused(batch: Any) -> Any:
    images = KEPT.setdefault(len(batch), torch.empty((len(batch), 3, 12, 12), dtype=torch.uint8))
    for row, (image, _) in enumerate(batch):
        images[row] = image
    return images


@pytest.mark.parametrize(
    "collate",
    [scaled, as_numpy, detached, in_part, mean, to_another_type, over_ones, reused],
)
def test_other_collate_functions_move_nothing(collate: Callable[[Any], Any]) -> None:
    loader = DataLoader(Pictures(), 6, collate_fn=collate)
    remedied = offload(loader, "cpu")
    assert not remedied.plan.pieces
    assert "collate function" in str(remedied.plan) or "stack" in str(remedied.plan), str(remedied.plan)
    torch.manual_seed(1)
    expected = list(loader)
    torch.manual_seed(1)
    assert paths.same(list(remedied), expected)


def twice(batch: Any) -> Any:
    images = torch.zeros((len(batch), 3, 12, 12), dtype=torch.uint8)
    for row, (image, _) in enumerate(batch):
        images[row] += image
        images[row] += image
    return images


def over_another(batch: Any) -> Any:
    images, _ = copied(batch)
    images[0, :, 2:6].copy_(batch[1][0][:, 2:6])
    return images.float().mean(), images


@pytest.mark.parametrize(
    "late", [scaled, as_numpy, detached, in_part, mean, to_another_type, over_ones, twice, over_another]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_turns_out_to_be_another_is_collated_once(late: Callable[[Any], Any], workers: int) -> None:
    calls, of_late = torch.zeros(1).share_memory_(), torch.zeros(1).share_memory_()

    def collate(batch: Any) -> Any:
        calls.add_(1)
        return late(batch) if of_late and batch[0][1] in (6, 18) else copied(batch)

    loader = DataLoader(Pictures(), 6, num_workers=workers, collate_fn=collate)
    remedied = offload(loader, "cpu")
    assert remedied.plan.pieces
    of_late.fill_(1)
    made = {}
    for loaded in (loader, remedied):
        calls.zero_()
        torch.manual_seed(1)
        made[loaded] = list(loaded)
        assert calls == len(loader)
    assert remedied.unrecorded == 2
    assert paths.same(made[remedied], made[loader])

"""Whole policies of torchvision and timm on pictures give equal batches and the same random state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import PIL.Image
import PIL.ImageFilter
import pytest
import torch
import torchvision.transforms as v1
from torch.utils.data import Dataset
from torchvision.transforms import InterpolationMode, v2

from pipediag.remedy import OffloadedLoader, offload

from .sameness import Images, check_same, loader, moved, picture_of_any_size, seen

SAMPLES = 32


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def grey_picture(index: int) -> PIL.Image.Image:
    return picture_of_any_size(index).convert("L")


def check(links: Any, device: torch.device, make: Any = picture_of_any_size) -> OffloadedLoader:
    """Check that all links move, and that every function that they call is certified as equal."""

    def dataset() -> Dataset[Any]:
        return Images(v1.Compose(links), make, SAMPLES)

    offloaded = offload(loader(dataset(), num_workers=1), device)
    assert moved(offloaded) == [" ".join(type(link).__name__ for link in links)], offloaded.plan.reasons
    assert offloaded.certificate is not None
    assert all(verdict.difference.equal for verdict in offloaded.certificate.ops)
    again = OffloadedLoader(loader(dataset()), offloaded.plan, device)
    check_same(seen(again, 2, seed=1), seen(loader(dataset()), 2, seed=1), device, 0)
    assert again.unrecorded == 0, again.why
    return offloaded


MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
HOW = pytest.mark.parametrize(
    ("interpolation", "fill"),
    [
        (InterpolationMode.NEAREST, None),
        (InterpolationMode.BILINEAR, [1.0, 2.9, 200.0]),
        (InterpolationMode.BICUBIC, 7),
    ],
    ids=["nearest", "bilinear", "bicubic"],
)


@HOW
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
@MODULES
def test_policies(module: ModuleType, name: str, interpolation: Any, fill: Any, device: torch.device) -> None:
    policy = getattr(module, name)(interpolation=interpolation, fill=fill)
    check([v1.RandomResizedCrop(32), policy, module.PILToTensor()], device)


@HOW
@MODULES
def test_warps(module: ModuleType, interpolation: Any, fill: Any, device: torch.device) -> None:
    how = {"interpolation": interpolation, "fill": 0 if fill is None else fill}
    warps = [
        module.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5, **how),
        module.RandomRotation(50, **how),
        module.RandomPerspective(**how),
    ]
    check([module.RandomResizedCrop(32), *warps, module.PILToTensor()], device)


@MODULES
def test_grey_pictures(module: ModuleType, device: torch.device) -> None:
    check([module.RandomCrop(28), module.RandAugment(4), module.PILToTensor()], device, grey_picture)


@MODULES
def test_augmix_stays(module: ModuleType, device: torch.device) -> None:
    dataset = Images(v1.Compose([v1.RandomCrop(28), module.AugMix(), v1.PILToTensor()]), picture_of_any_size, SAMPLES)
    assert moved(offload(loader(dataset), device)) == ["PILToTensor"]


# ---- timm


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_augment": "rand-m9-mstd0.5-inc1"},
        {"auto_augment": "rand-m9-n3-mstd0.5-inc1", "interpolation": "bicubic", "train_crop_mode": "rkrc"},
        {"auto_augment": "rand-m7-mstd0.5", "use_prefetcher": True},
        {"auto_augment": "original-mstd0.5", "vflip": 0.3},
        {"auto_augment": "rand-m5-mstd0.5-inc1", "re_prob": 0.7, "re_count": 3},
        {"re_prob": 0.7, "re_mode": "rand"},
        {"re_prob": 0.7, "re_mode": "pixel"},
        {"auto_augment": "3a", "color_jitter": 0.3},
        {"color_jitter": 0.4, "grayscale_prob": 0.2},
        {"is_training": False, "crop_mode": "border"},
        {"is_training": False, "crop_pct": 0.9},
    ],
    ids=lambda settings: str(settings.get("auto_augment", settings)),
)
def test_transforms_of_timm(settings: dict[str, Any], device: torch.device) -> None:
    data = pytest.importorskip("timm.data")
    check(data.create_transform(32, **{"is_training": True, **settings}).transforms, device)


def test_other_transforms_of_timm(device: torch.device) -> None:
    transforms = pytest.importorskip("timm.data.transforms")
    links = [
        transforms.TrimBorder(2),
        transforms.ResizeKeepRatio((30, 26), interpolation="random", random_scale_prob=0.5, random_aspect_prob=0.5),
        transforms.RandomCropOrPad((34, 24), padding_mode="reflect"),
        transforms.CenterCropOrPad((30, 30), fill=(1, 2, 3)),
        transforms.ToTensor(torch.uint8),
    ]
    check(links, device)


def test_augmix_of_timm_stays(device: torch.device) -> None:
    """It mixes arrays."""
    data = pytest.importorskip("timm.data")
    chain = data.create_transform(32, is_training=True, auto_augment="augmix-m5-w4-d2")
    assert moved(offload(loader(Images(chain, picture_of_any_size, SAMPLES)), device)) == ["MaybeToTensor Normalize"]


# ---- Pillow itself


class BlurredAsInMoCo:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        radius = float(torch.empty(()).uniform_(0.1, 2.0))
        return sample.filter(PIL.ImageFilter.GaussianBlur(radius=radius))


def test_code_that_calls_pillow(device: torch.device) -> None:
    check([v1.RandomCrop(28), BlurredAsInMoCo(), v1.RandomHorizontalFlip(), v1.PILToTensor()], device)

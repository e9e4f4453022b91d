"""``offload`` gives the plain loader's batches and draws."""

from __future__ import annotations

import gc
import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F2
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate
from torchvision import tv_tensors
from torchvision.datasets.vision import VisionDataset
from torchvision.transforms import v2

from pipediag.errors import UsageError
from pipediag.remedy import OffloadedLoader, offload
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.record.tape import Tape
from pipediag.streams.handover import Ready
from pipediag.streams.to_device import ToDevice
from pipediag.usercode import tree

from .sameness import (
    HEIGHT,
    WIDTH,
    Images,
    check_same,
    check_same_batch,
    draws,
    floats,
    grey,
    image,
    loader,
    moved,
    of_any_size,
    picture,
    picture_of_any_size,
    pixels,
    seen,
    stayed,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
MEAN, STD = [0.48, 0.45, 0.4], [0.23, 0.22, 0.25]


@dataclass
class Case:
    """A pipeline: a function that makes its dataset, and the links that move and stay."""

    dataset: Callable[[], Dataset[Any]]
    moves: list[str]
    stays: list[str]
    level: float | None  # see check_same
    settings: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1


CASES: list[Any] = []
#: One case of each kind of pipeline and loader; the others are slow tests.
QUICK = {
    "simclr", "rand_augment_and_erasing", "segmentation", "detection", "key_points", "imagenet_from_pictures",
    "pictures_that_stay_in_the_sample", "older_ones_on_tensors", "five_crops", "mix_up", "images_of_any_size",
    "grey_images", "functions_of_v2", "subsets_and_concatenations", "vision_dataset_with_two_transforms", "arithmetic",
    "arithmetic_in_place", "colour_matrices", "a_chain_that_ends_flat",
    "target_transform", "no batching", "two epochs of the same workers", "shuffled by its own generator",
}  # fmt: skip


def case(
    *moves: str,
    stays: tuple[str, ...] | None = None,
    level: float | None = None,
    epochs: int = 1,
    marks: Sequence[pytest.MarkDecorator] = (),
    name: str = "",
    **settings: Any,
) -> Callable[[Callable[[], Dataset[Any]]], Callable[[], Dataset[Any]]]:
    """Make a test of a function that makes a dataset; ``moves`` and ``stays`` name the links of each transform."""

    def add(dataset: Callable[[], Dataset[Any]]) -> Callable[[], Dataset[Any]]:
        staying = [""] * len(moves) if stays is None else list(stays)
        made = Case(dataset, list(moves), staying, level, settings, epochs)
        called = name or dataset.__name__
        slow = [] if called in QUICK else [pytest.mark.slow]
        CASES.append(pytest.param(made, id=called, marks=[*slow, *marks]))
        return dataset

    return add


@pytest.mark.parametrize("case", CASES)
def test_batches_and_draws_are_the_plain_loaders(case: Case, device: torch.device) -> None:
    offloaded = offload(_loader(case, 2), device)
    assert moved(offloaded) == case.moves, offloaded.plan.reasons
    assert stayed(offloaded) == case.stays, offloaded.plan.reasons
    for workers in (2, 0):
        theirs = seen(_loader(case, workers), case.epochs)
        again = OffloadedLoader(_loader(case, workers), offloaded.plan, device)
        check_same(seen(again, case.epochs), theirs, device, case.level)
        assert again.unrecorded == 0, again.why


@pytest.mark.parametrize("samples", [0, float("nan"), True, "64"])
def test_samples_are_a_whole_number(samples: Any) -> None:
    with pytest.raises(UsageError, match="samples must be a whole number of at least 1"):
        offload(DataLoader(torch.zeros(2)), "cpu", samples=samples)


def _loader(case: Case, workers: int) -> DataLoader[Any]:
    settings = {**case.settings, "num_workers": workers}
    if not workers:
        settings.pop("persistent_workers", None)
    if "generator" in settings:
        settings["generator"] = torch.Generator().manual_seed(settings["generator"])
    return loader(case.dataset(), **settings)


def to_floats(*links: Any, chain: Callable[..., Any] = v2.Compose) -> Any:
    """A chain with the usual end: floats, normalized."""
    return chain([*links, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


ENDS = "ToDtype Normalize"
#: The size of a level of a byte after that; a jitter before may double it, up to three times.
LEVEL = 1 / 255 / 0.22


# ---- self-supervised


class TwoViews:
    """As in the code of SimCLR and MoCo."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, sample: Any) -> list[Any]:
        return [self.transform(sample), self.transform(sample)]


def simclr_chain() -> Any:
    jitter = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    blur = v2.RandomApply([v2.GaussianBlur(5, (0.1, 2.0))], p=0.5)
    links = (v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2), blur)
    return v2.Compose([*links, v2.ToDtype(torch.float32, scale=True)])


@case("TwoViews", level=8 / 255)
def simclr() -> Dataset[Any]:
    return Images(TwoViews(simclr_chain()))


@case("RandomResizedCrop RandomHorizontalFlip RandomApply RandomGrayscale RandomApply ToDtype", level=8 / 255)
def simclr_with_views_made_by_the_dataset() -> Dataset[Any]:
    class Views(Images):
        def __getitem__(self, index: int) -> Any:
            raw = self.make_image(index)
            return self.transform(raw), self.transform(raw), draws()

    return Views(simclr_chain(), image)


@case("TwoViews", level=8 * LEVEL)
def moco_v2() -> Dataset[Any]:
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    blur = v2.RandomApply([v2.GaussianBlur(7, [0.1, 2.0])], p=0.5)
    crop = v2.RandomResizedCrop(24, scale=(0.2, 1.0))
    return Images(TwoViews(to_floats(crop, jitter, v2.RandomGrayscale(p=0.2), blur, v2.RandomHorizontalFlip())), image)


# ---- policies


@case(f"RandomResizedCrop RandomHorizontalFlip RandAugment {ENDS} RandomErasing", level=8 * LEVEL)
def rand_augment_and_erasing() -> Dataset[Any]:
    links = (v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandAugment(3, 11))
    return Images(v2.Compose([to_floats(*links), v2.RandomErasing(0.5, value="random")]), image, length=24)


@case(f"AutoAugment {ENDS}", level=8 * LEVEL)
def auto_augment() -> Dataset[Any]:
    return Images(to_floats(v2.AutoAugment()), length=24)


@case(f"AutoAugment {ENDS}", level=8 * LEVEL)
def auto_augment_for_svhn() -> Dataset[Any]:
    return Images(to_floats(v2.AutoAugment(v2.AutoAugmentPolicy.SVHN, fill=[1, 2, 3])), image, length=24)


@case(f"TrivialAugmentWide {ENDS}", level=8 * LEVEL)
def trivial_augment_wide() -> Dataset[Any]:
    return Images(to_floats(v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)), image, length=24)


@case(f"RandomChoice RandomOrder {ENDS}", level=8 * LEVEL)
def random_choice_and_order() -> Dataset[Any]:
    choice = v2.RandomChoice([v2.RandomSolarize(100, p=1), v2.RandomPosterize(3, p=1), v2.RandomEqualize(p=1)])
    order = v2.RandomOrder([v2.RandomRotation(20), v2.RandomInvert(), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3)])
    return Images(to_floats(choice, order), length=16)


# ---- samples with several parts


class Segmentation(Images):
    """Samples ``(image, mask)``, transformed together."""

    def __init__(self, transform: Any, dtype: torch.dtype = torch.uint8, channels: tuple[int, ...] = (1,)) -> None:
        super().__init__(transform)
        self.dtype, self.channels = dtype, channels

    def mask(self, index: int) -> tv_tensors.Mask:
        generator = torch.Generator().manual_seed(index)
        shape = (*self.channels, HEIGHT, WIDTH)
        return tv_tensors.Mask(
            torch.randint(0, 2 if self.dtype == torch.bool else 9, shape, generator=generator).to(self.dtype)
        )

    def __getitem__(self, index: int) -> Any:
        return (*self.transform(image(index), self.mask(index)), draws())


def joint_chain() -> Any:
    geometry = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandomAffine(15, (0.1, 0.1), fill=7)]
    kinds = {tv_tensors.Image: torch.float32, "others": None}
    return v2.Compose([*geometry, v2.ColorJitter(0.3, 0.3), v2.ToDtype(kinds, scale=True), v2.Normalize(MEAN, STD)])


JOINT = "RandomResizedCrop RandomHorizontalFlip RandomAffine ColorJitter ToDtype Normalize"


@case(JOINT, level=4 * LEVEL)
def segmentation() -> Dataset[Any]:
    return Segmentation(joint_chain())


@case(JOINT, level=4 * LEVEL)
def segmentation_with_masks_of_int64_without_channels() -> Dataset[Any]:
    return Segmentation(joint_chain(), torch.int64, ())


@case("RandomResizedCrop")
def segmentation_with_masks_of_int64_resized() -> Dataset[Any]:
    return Segmentation(v2.Compose([v2.RandomResizedCrop(32)]), torch.int64, ())


@case("RandomCrop RandomVerticalFlip RandomRotation RandomPerspective ElasticTransform")
def segmentation_with_masks_of_int64() -> Dataset[Any]:
    warps = [v2.RandomRotation(30), v2.RandomPerspective(), v2.ElasticTransform()]
    return Segmentation(v2.Compose([v2.RandomCrop(36), v2.RandomVerticalFlip(), *warps]), torch.int64)


@case("RandomCrop RandomVerticalFlip RandomRotation RandomPerspective ElasticTransform")
def segmentation_with_masks_of_bool() -> Dataset[Any]:
    fill = {tv_tensors.Image: 127, tv_tensors.Mask: 1}
    crop = v2.RandomCrop(36, padding=4, fill=fill)
    warps = [v2.RandomRotation(30, fill=fill), v2.RandomPerspective(fill=fill), v2.ElasticTransform(fill=fill)]
    return Segmentation(v2.Compose([crop, v2.RandomVerticalFlip(), *warps]), torch.bool, (3,))


@case(JOINT, level=4 * LEVEL)
def segmentation_in_dicts() -> Dataset[Any]:
    class Dicts(Segmentation):
        def __getitem__(self, index: int) -> Any:
            sample = {"image": image(index), "mask": self.mask(index), "index": index}
            return {**self.transform(sample), "draws": draws()}

    return Dicts(joint_chain())


class Detection(Images):
    """Samples ``(image, target)`` with boxes and labels, and with a mask for each object if ``masks``."""

    masks = False

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        corners = torch.rand(3, 2, generator=generator) * 20
        boxes = torch.cat([corners, corners + 4 + 12 * torch.rand(3, 2, generator=generator)], 1)
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH))
        target = {"boxes": boxes, "labels": torch.arange(3)}
        if self.masks:
            target["masks"] = tv_tensors.Mask(pixels(index))
        return (*self.transform(image(index), target), draws())


def as_lists(samples: Any) -> Any:
    return tuple(zip(*samples, strict=True))


DETECTION = "RandomPhotometricDistort RandomZoomOut RandomIoUCrop RandomHorizontalFlip"


@case(f"{DETECTION} ToDtype SanitizeBoundingBoxes", level=8 / 255, collate_fn=as_lists)
def detection() -> Dataset[Any]:
    fill = {tv_tensors.Image: (123, 117, 104), "others": 0}
    links = [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=fill), v2.RandomIoUCrop(), v2.RandomHorizontalFlip()]
    ends = [v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), v2.SanitizeBoundingBoxes()]
    return Detection(v2.Compose([*links, *ends]))


@case("RandomZoomOut RandomIoUCrop RandomHorizontalFlip ScaleJitter", collate_fn=as_lists)
def detection_with_masks() -> Dataset[Any]:
    links = [v2.RandomZoomOut(), v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.ScaleJitter((48, 48), (0.8, 1.2))]
    made = Detection(v2.Compose(links))
    made.masks = True
    return made


@case("RandomHorizontalFlip ScaleJitter ToDtype ToPureTensor", collate_fn=as_lists)
def detection_that_ends_in_plain_tensors() -> Dataset[Any]:
    links = [v2.RandomHorizontalFlip(), v2.ScaleJitter((48, 48), (0.8, 1.2)), v2.ToDtype(torch.float32)]
    return Detection(v2.Compose([*links, v2.ToPureTensor()]))


@case("ScaleJitter RandomZoomOut RandomShortestSize RandomResize", collate_fn=as_lists)
def sizes_of_their_own() -> Dataset[Any]:
    links = [
        v2.ScaleJitter((48, 48), (0.7, 1.4)),
        v2.RandomZoomOut(side_range=(1, 1.5)),
        v2.RandomShortestSize([30, 36]),
    ]
    return Images(v2.Compose([*links, v2.RandomResize(20, 30)]), image)


@case(
    "RandomHorizontalFlip RandomRotation RandomResizedCrop ToDtype",
    level=1 / 255,
    marks=[pytest.mark.skipif(not hasattr(tv_tensors, "KeyPoints"), reason="this torchvision has no key points")],
)
def key_points() -> Dataset[Any]:
    class Points(Images):
        def __getitem__(self, index: int) -> Any:
            points = torch.rand(5, 2, generator=torch.Generator().manual_seed(index)) * 40
            points = tv_tensors.KeyPoints(points, canvas_size=(HEIGHT, WIDTH))
            return (*self.transform(image(index), points), draws())

    links = [v2.RandomHorizontalFlip(), v2.RandomRotation(30), v2.RandomResizedCrop(24)]
    return Points(v2.Compose([*links, v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)]))


# ---- transforms of v1


@case("RandomCrop RandomHorizontalFlip ToTensor Normalize")
def cifar_from_pictures() -> Dataset[Any]:
    links = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return Images(v1.Compose(links), picture)


@case("RandomResizedCrop RandomHorizontalFlip ToTensor Normalize")
def imagenet_from_pictures() -> Dataset[Any]:
    links = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return Images(v1.Compose(links), picture_of_any_size, length=16)


def test_resized_pictures_are_certified_as_equal(device: torch.device) -> None:
    certificate = offload(loader(imagenet_from_pictures(), num_workers=1), device).certificate
    assert certificate is not None
    (resized,) = [verdict for verdict in certificate.ops if verdict.name == "resized_crop"]
    assert resized.samples == 16 and resized.difference.equal


@case("RandomResizedCrop RandomApply RandomGrayscale RandomHorizontalFlip PILToTensor", level=0)
def simclr_from_pictures() -> Dataset[Any]:
    jitter = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    links = [v2.RandomResizedCrop(24), jitter, v2.RandomGrayscale(0.2), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    return Images(v2.Compose(links), picture_of_any_size, length=24)


@case("RandomResizedCrop RandomVerticalFlip PILToTensor", level=0)
def pictures_resized_bicubically() -> Dataset[Any]:
    crop = v2.RandomResizedCrop((30, 20), (0.3, 1.0), (0.3, 3.0), interpolation=v2.InterpolationMode.BICUBIC)
    return Images(v2.Compose([crop, v2.RandomVerticalFlip(), v2.PILToTensor()]), picture_of_any_size, length=16)


@case("Resize RandomCrop RandomHorizontalFlip ToTensor")
def grey_pictures_resized_and_cut() -> Dataset[Any]:
    resize = v1.Resize(34, interpolation=v1.InterpolationMode.LANCZOS)
    links = [resize, v1.RandomCrop(32, padding=2), v1.RandomHorizontalFlip(), v1.ToTensor()]
    return Images(v1.Compose(links), lambda index: picture_of_any_size(index).convert("L"), length=16)


def of_rows(samples: list[dict[str, Any]]) -> Any:
    return torch.stack([sample["pixels"] for sample in samples]), [sample["index"] for sample in samples]


class Rows(Images):
    """A table whose transform adds the pixels to each row: the picture itself stays in the sample."""

    def __init__(self, links: list[Any]) -> None:
        chain = v1.Compose(links)

        def prepared(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, "pixels": chain(row["image"].convert("RGB"))}

        super().__init__(prepared, length=16)

    def __getitem__(self, index: int) -> Any:
        return {**self.transform({"image": picture(index)}), "index": index}


@case("prepared", collate_fn=of_rows)
def pictures_that_stay_in_the_sample() -> Dataset[Any]:
    return Rows([v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])


@case("RandomResizedCrop PILToTensor", level=0)
def pictures_whose_nearest_pixels_are_picked() -> Dataset[Any]:
    crop = v2.RandomResizedCrop(24, interpolation=v2.InterpolationMode.NEAREST)
    return Images(v2.Compose([crop, v2.PILToTensor()]), picture_of_any_size, length=16)


@case("RandomResizedCrop AutoAugment RandomHorizontalFlip ToTensor Normalize RandomErasing")
def imagenet_with_a_policy_from_pictures() -> Dataset[Any]:
    links = [v1.RandomResizedCrop(24), v1.AutoAugment(), v1.RandomHorizontalFlip(), v1.ToTensor()]
    return Images(v1.Compose([*links, v1.Normalize(MEAN, STD), v1.RandomErasing()]), picture)


@case("Resize CenterCrop ToImage ToDtype Normalize")
def evaluation_from_pictures() -> Dataset[Any]:
    links = [v2.Resize(30), v2.CenterCrop(24), v2.ToImage(), *to_floats().transforms]
    return Images(v2.Compose(links), picture_of_any_size)


@case("ToImage RandomResizedCrop RandomHorizontalFlip ColorJitter ToDtype Normalize", level=4 * LEVEL)
def pictures_made_tensors_first() -> Dataset[Any]:
    links = (v2.ToImage(), v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4))
    return Images(to_floats(*links), picture)


@case("RandomCrop RandomHorizontalFlip ColorJitter RandomGrayscale ConvertImageDtype Normalize", level=4 * LEVEL)
def older_ones_on_tensors() -> Dataset[Any]:
    links = [v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    ends = [v1.RandomGrayscale(0.3), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]
    return Images(v1.Compose([*links, *ends]))


@case("RandomAffine RandomPerspective RandomRotation RandomEqualize RandomAdjustSharpness", level=2)
def more_older_ones_on_tensors() -> Dataset[Any]:
    bilinear = v1.InterpolationMode.BILINEAR
    warps = [v1.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 10), v1.RandomPerspective(interpolation=bilinear)]
    colours = [v1.RandomEqualize(), v1.RandomAdjustSharpness(2)]
    return Images(v1.Compose([*warps, v1.RandomRotation(30, bilinear, fill=9), *colours]), length=16)


@case("Resize GaussianBlur ElasticTransform RandomErasing")
def older_ones_on_floats() -> Dataset[Any]:
    links = [v1.Resize((30, 31), antialias=True), v1.GaussianBlur(5), v1.ElasticTransform(20.0), v1.RandomErasing(1.0)]
    return Images(v1.Compose(links), floats)


@case(
    "RandAugment TrivialAugmentWide AutoAugment ConvertImageDtype",
    level=8 / 255,
    marks=[pytest.mark.xfail(strict=True, reason="the older sharpness and saturation blend bytes in another order")],
)
def older_policies_on_tensors() -> Dataset[Any]:
    policies = [v1.RandAugment(), v1.TrivialAugmentWide(), v1.AutoAugment()]
    return Images(v1.Compose([*policies, v1.ConvertImageDtype(torch.float32)]), length=24)


# ---- the examples


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@case("ToDtype RandomCrop Resize RandomRotation GaussianBlur Normalize")
def example_augmentations() -> Dataset[Any]:
    module = example("augmentations")
    return Subset(module.FakeImages(64, module.augmentations(64)), range(10))


@case("ConvertColor Scale", stays=("PILToTensor RandomCrop RandomMask",))
def example_caching_article() -> Dataset[Any]:
    pytest.importorskip("scipy")
    module = example("caching_article")
    links = [v1.PILToTensor(), v1.RandomCrop(24), module.RandomMask(), module.ConvertColor(), module.Scale()]
    return module.FakeImages(10, 40, v1.Compose(links))  # type: ignore[no-any-return]


# ---- special transforms


@case("FiveCrop RandomHorizontalFlip stacked")
def five_crops() -> Dataset[Any]:
    def stacked(crops: Any) -> Tensor:
        return torch.stack(crops)

    return Images(v2.Compose([v2.FiveCrop(20), v2.RandomHorizontalFlip(), stacked]), image)


@case("TenCrop Lambda")
def ten_crops_of_pictures() -> Dataset[Any]:
    def stacked(crops: Any) -> Tensor:
        return torch.stack([v1.ToTensor()(crop) for crop in crops])

    return Images(v1.Compose([v1.TenCrop((20, 24), vertical_flip=True), v1.Lambda(stacked)]), picture)


class Mixed:
    """A collate function that mixes the batch."""

    def __init__(self, mix: Callable[..., Any]) -> None:
        self.mix = mix

    def __call__(self, samples: Any) -> Any:
        images, labels, after = default_collate(samples)
        return *self.mix(images, labels), after, draws()


@case(f"RandomResizedCrop {ENDS}", level=LEVEL, collate_fn=Mixed(v2.MixUp(num_classes=10)))
def mix_up() -> Dataset[Any]:
    return Images(to_floats(v2.RandomResizedCrop(24)))


@case(f"RandomResizedCrop {ENDS}", level=LEVEL, collate_fn=Mixed(v2.CutMix(num_classes=10)))
def cut_mix() -> Dataset[Any]:
    return Images(to_floats(v2.RandomResizedCrop(24)))


EITHER = v2.RandomChoice([v2.CutMix(num_classes=20), v2.MixUp(num_classes=20)])


@case("RandomCrop ToDtype", collate_fn=Mixed(EITHER))
def one_mix_or_the_other() -> Dataset[Any]:
    return Images(v2.Compose([v2.RandomCrop(24), v2.ToDtype(torch.float32, scale=True)]), length=20)


@case("ElasticTransform RandomErasing", level=1)
def elastic_bytes() -> Dataset[Any]:
    return Images(v2.Compose([v2.ElasticTransform(30.0, fill=3), v2.RandomErasing(1.0, value=(1, 2, 3))]), image)


@case("ToDtype GaussianNoise GaussianNoise")
def noise() -> Dataset[Any]:
    return Images(
        v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise(), v2.GaussianNoise(0.1, 0.3, False)])
    )


@case("RandomPhotometricDistort RandomChannelPermutation", level=4)
def photometric_distort() -> Dataset[Any]:
    return Images(v2.Compose([v2.RandomPhotometricDistort(p=0.7), v2.RandomChannelPermutation()]), image, length=16)


@case(f"RandomCrop RandomHorizontalFlip {ENDS}")
def images_of_any_size() -> Dataset[Any]:
    return Images(to_floats(v2.RandomCrop(24), v2.RandomHorizontalFlip()), of_any_size)


@case(f"RandomResizedCrop ColorJitter {ENDS}", level=4 * LEVEL)
def images_of_any_size_resized() -> Dataset[Any]:
    return Images(to_floats(v2.RandomResizedCrop(24), v2.ColorJitter(0.4, hue=0.1)), of_any_size)


@case(f"ColorJitter RandomRotation Resize {ENDS}", level=8 * LEVEL)
def images_of_any_size_changed_before_they_are_alike() -> Dataset[Any]:
    return Images(to_floats(v2.ColorJitter(0.4), v2.RandomRotation(20, expand=True), v2.Resize((24, 25))), of_any_size)


@case("RandomResizedCrop ColorJitter GaussianBlur Normalize")
def images_of_floats() -> Dataset[Any]:
    links = [v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4, 0.2), v2.GaussianBlur(3), v2.Normalize(MEAN, STD)]
    return Images(v2.Compose(links), floats)


@case("RandomResizedCrop RandomAffine ColorJitter ToDtype Normalize", level=4 / 255 / 0.3)
def grey_images() -> Dataset[Any]:
    links = [v2.RandomResizedCrop(24), v2.RandomAffine(20, fill=128), v2.ColorJitter(0.4, 0.4, 0.4, 0.2)]
    return Images(v2.Compose([*links, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1], [0.3])]), grey)


@case("RandomCrop RandomHorizontalFlip GaussianBlur ToDtype", level=1 / 255)
def images_that_lie_channels_last() -> Dataset[Any]:
    def from_an_array(index: int) -> Tensor:
        return torch.from_numpy(pixels(index).permute(1, 2, 0).contiguous().numpy()).permute(2, 0, 1)

    links = [v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.GaussianBlur(3)]
    return Images(v2.Compose([*links, v2.ToDtype(torch.float32, scale=True)]), from_an_array)


# ---- the user's own code


class Shaken:
    """The user's own class that calls functions with parameters drawn from ``random``."""

    def __init__(self, functions: Any) -> None:
        self.functions = functions

    def __call__(self, sample: Any) -> Any:
        F = self.functions
        height, width = sample.shape[-2:] if isinstance(sample, Tensor) else sample.size[::-1]
        sample = F.crop(sample, random.randrange(height - 24), random.randrange(width - 24), 24, 24)
        if random.random() < 0.5:
            sample = F.hflip(sample)
        sample = F.rotate(sample, random.uniform(-30, 30), fill=[5])
        return F.adjust_brightness(sample, random.uniform(0.5, 1.5))


@case("Shaken ToDtype")
def functions_of_v2() -> Dataset[Any]:
    return Images(v2.Compose([Shaken(F2), v2.ToDtype(torch.float32)]))


@case("Shaken ToDtype")
def functions_of_v1() -> Dataset[Any]:
    return Images(v2.Compose([Shaken(F1), v2.ToDtype(torch.float32)]))


@case("shaken")
def a_function() -> Dataset[Any]:
    def shaken(sample: Any) -> Any:
        return F2.adjust_hue(F2.rotate(sample, float(torch.empty(1).uniform_(-9, 9))), random.uniform(-0.5, 0.5))

    return Images(shaken, floats)


def powered(sample: Tensor) -> Tensor:
    return (2 - sample.clamp(0.1, 0.9) ** random.uniform(0.5, 2)) / torch.tensor(STD)[:, None, None]


@case("RandomHorizontalFlip powered Lambda RandomVerticalFlip")
def arithmetic() -> Dataset[Any]:
    halved = v2.Lambda(lambda sample: 0.5 * sample - 1 + float(torch.rand(())))
    return Images(v2.Compose([v2.RandomHorizontalFlip(), powered, halved, v2.RandomVerticalFlip()]), floats)


@case("RandomVerticalFlip", stays=("RandomInvert in_place",))
def arithmetic_in_place() -> Dataset[Any]:
    """The link may use its image again, so that it is not recorded."""

    def in_place(sample: Tensor) -> Tensor:
        kept = sample.contiguous()
        return sample.mul_(0.5) if random.random() < 0.5 else kept

    return Images(v2.Compose([v2.RandomInvert(1.0), in_place, v2.RandomVerticalFlip()]), floats)


def graded(sample: Tensor) -> Tensor:
    """Mix the channels of some samples, by a matrix of their own."""
    matrix = torch.eye(3) + 0.2 * torch.rand(3, 3)
    if random.random() < 0.3:
        return sample
    return (matrix @ sample.reshape(3, -1)).reshape(sample.shape) - torch.tensor(MEAN)[:, None, None]


@case("RandomCrop graded Lambda RandomHorizontalFlip Lambda")
def colour_matrices() -> Dataset[Any]:
    warm = v2.Lambda(lambda sample: torch.einsum("oc,chw->ohw", torch.ones(3, 3).tril(), sample))
    grey = v2.Lambda(lambda sample: torch.tensordot(torch.tensor([[0.3, 0.6, 0.1]]), sample, dims=1))
    return Images(v2.Compose([v2.RandomCrop(24), graded, warm, v2.RandomHorizontalFlip(), grey]), floats)


@case("RandomHorizontalFlip")
def a_chain_that_ends_flat() -> Dataset[Any]:
    """It stays, and the other one moves nevertheless."""

    class Both(Images):
        def __init__(self) -> None:
            super().__init__(v2.Compose([v2.RandomHorizontalFlip()]), floats)
            self.flat = v2.Compose([v2.RandomVerticalFlip(), v2.Lambda(lambda sample: sample.flatten(1))])

        def __getitem__(self, index: int) -> Any:
            return self.transform(self.make_image(index)), self.flat(self.make_image(index)), draws()

    return Both()


@case("RandomCrop RandomHorizontalFlip ConvertImageDtype")
def sequential() -> Dataset[Any]:
    return Images(nn.Sequential(v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ConvertImageDtype(torch.float32)))


@case(f"RandomCrop RandomHorizontalFlip RandomRotation {ENDS}")
def nested_chains() -> Dataset[Any]:
    inner = v2.Compose([v2.RandomHorizontalFlip(), v2.Compose([v2.RandomRotation(9)])])
    return Images(v2.Compose([v2.RandomCrop(24), inner, to_floats()]))


@case(f"RandomCrop {ENDS}", f"CenterCrop RandomHorizontalFlip {ENDS}")
def subsets_and_concatenations() -> Dataset[Any]:
    one = Images(to_floats(v2.RandomCrop(24)))
    other = Images(to_floats(v2.CenterCrop(24), v2.RandomHorizontalFlip()), image)
    return ConcatDataset([Subset(one, [1, 3, 5, 2]), other])


class Vision(VisionDataset):
    """A dataset that takes transforms in both of torchvision's ways."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        sample, target = image(index), tv_tensors.Mask(pixels(index, channels=1) // 32)
        assert self.transforms is not None
        return (*self.transforms(sample, target), draws())


@case("StandardTransform", level=1 / 255)
def vision_dataset_with_two_transforms() -> Dataset[Any]:
    chain = v2.Compose([v2.RandomResizedCrop(24), v2.ToDtype(torch.float32, scale=True)])
    return Vision("", transform=chain, target_transform=v2.RandomCrop(24))


@case("RandomCrop RandomHorizontalFlip RandomErasing")
def vision_dataset_with_a_joint_transform() -> Dataset[Any]:
    return Vision("", transforms=v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.RandomErasing(1.0)]))


@case("RandomCrop", "<lambda>")
def target_transform() -> Dataset[Any]:
    class Targets(Images):
        target_transform = None

        def __getitem__(self, index: int) -> Any:
            assert self.target_transform is not None
            return self.transform(pixels(index)), self.target_transform(image(index)), draws()

    made = Targets(v2.RandomCrop(24))
    made.target_transform = lambda target: F2.vertical_flip(target)
    return made


# ---- loaders


def flipped() -> Dataset[Any]:
    return Images(to_floats(v2.RandomCrop(24), v2.RandomHorizontalFlip()), length=11)


FLIPPED = f"RandomCrop RandomHorizontalFlip {ENDS}"


SETTINGS: dict[str, dict[str, Any]] = {
    "no batching": {"batch_size": None},
    "the short last batch left out": {"drop_last": True},
    "two epochs of the same workers": {"persistent_workers": True, "epochs": 2},
    "two epochs": {"epochs": 2},
    "shuffled": {"shuffle": True},
    "shuffled by its own generator": {"shuffle": True, "generator": 3, "epochs": 2},
    "batches of one": {"batch_size": 1},
    "a batch that is a tensor": {"collate_fn": lambda samples: torch.stack([sample[0] for sample in samples])},
}
for name, settings in SETTINGS.items():
    case(FLIPPED, name=name, **settings)(flipped)


# ---- everything else


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_the_loop_between_iter_and_next(workers: int, device: torch.device) -> None:
    def begun(batches: Any) -> Any:
        torch.manual_seed(0)
        iterator = iter(batches)
        return draws()[0], next(iterator)[0].cpu()

    theirs = begun(loader(flipped(), num_workers=workers))
    ours = begun(offload(loader(flipped(), num_workers=workers), device))
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


def test_making_the_plan_leaves_the_generators_alone(device: torch.device) -> None:
    torch.manual_seed(5)
    random.seed(5)
    want = draws()
    torch.manual_seed(5)
    random.seed(5)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    made = loader(flipped(), shuffle=True, generator=generator)
    from numpy import random as numpy_random

    kept = numpy_random.get_state()
    offload(made, device)
    assert torch.equal(generator.get_state(), before)
    assert numpy_random.get_state()[1].tolist() == kept[1].tolist()
    assert draws()[:2] == want[:2]


def test_a_loop_that_ends_early_and_begins_again(device: torch.device) -> None:
    def first_twice(batches: Any) -> list[Tensor]:
        torch.manual_seed(0)
        return [next(iter(batches))[0].cpu() for _ in range(2)]

    ours = first_twice(offload(loader(flipped(), num_workers=2), device))
    theirs = first_twice(loader(flipped(), num_workers=2))
    for mine, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, want)


def test_batches_are_freed_without_a_collection(device: torch.device) -> None:
    """Neither recording and packing, which happen here without workers, nor replaying leaves a cycle of references."""
    chain = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    made = offload(loader(Images(chain, length=24)), device)
    list(made)  # what is prepared once may leave cycles
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        list(made)
        gc.collect()
        kept = [type(one) for one in gc.garbage if isinstance(one, (Tensor, Packed, Tape))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert made.recorded == 12
    assert kept == []


def test_what_a_batch_holds_itself_is_not_kept_by_other_code() -> None:
    """On a device, the collate function's own lists are copied, and hold the recorded images until it has arrived."""
    chain = v2.Compose([v2.RandomCrop(24), v2.ToDtype(torch.float32)])
    made = offload(loader(Images(chain, length=24)), "cpu")
    feed, brought = made.feed, list[Any]()
    assert isinstance(feed, ToDevice)
    feed.arrive = lambda sent: Ready(brought.append(type(sent)))  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        for sent in feed.begin():
            feed.bring(sent)
    assert brought == [Packed] * 18 and not feed.failed


def with_a_sparse_tensor(samples: Any) -> Any:
    return default_collate(samples), torch.eye(3).to_sparse()


class Halved:
    def __call__(self, images: Tensor) -> Tensor:
        return images * 0.5


@pytest.mark.parametrize("collate", [default_collate, with_a_sparse_tensor])
@pytest.mark.parametrize("own", [[], [torch.stack, Halved(), v2.RandomVerticalFlip(1.0)]], ids=["library's", "own"])
def test_what_a_trial_meets(own: list[Any], collate: Any, device: torch.device) -> None:
    """Tensors that are not compared by their memory, and code of the user's that gets several images at once."""

    def plain() -> DataLoader[Any]:
        chain = v2.Compose([v2.FiveCrop(8) if own else v2.RandomCrop(8), *own])
        return loader(Images(chain, floats, length=24), collate_fn=collate)

    made = offload(plain(), device)
    assert not any("Error" in reason for reason in made.plan.reasons)
    ours, theirs = seen(made), seen(plain())
    assert made.recorded, (made.plan.reasons, made.why)
    for mine, want in zip(ours.batches, theirs.batches, strict=True):
        check_same_batch(next(tree.leaves(mine)), next(tree.leaves(want)), device)


class TurnedByHand:
    def __call__(self, image: Tensor) -> Tensor:
        return v2.functional.rotate(image, random.uniform(-20, 20))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("turn", [v2.RandomRotation(20), TurnedByHand()], ids=["class", "by hand"])
def test_epochs_that_begin_under_autocast(turn: Any, workers: int, device: torch.device) -> None:
    """A forked worker inherits autocast for the CPU, which rounds the grid of a rotation."""
    made = offload(loader(Images(turn, floats, length=24), num_workers=workers), device)
    assert made.plan.moves
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = seen(made), seen(loader(Images(turn, floats, length=24), num_workers=workers))
    check_same(ours, theirs, device)
    assert made.recorded == 0 < made.unrecorded
    seen(made)
    assert made.recorded > 0


def test_the_loader_itself_is_not_changed(device: torch.device) -> None:
    made = loader(flipped())
    before = dict(vars(made))
    transform = made.dataset.transform  # type: ignore[attr-defined]
    list(offload(made, device))
    assert vars(made) == before
    assert made.dataset.transform is transform  # type: ignore[attr-defined]


def test_attributes_are_the_loaders(device: torch.device) -> None:
    made = loader(flipped())
    offloaded = offload(made, device)
    assert len(offloaded) == len(made) == 3
    assert offloaded.dataset is made.dataset
    assert offloaded.batch_size == 4
    assert offloaded.sampler is made.sampler


def test_two_results_share_no_memory(device: torch.device) -> None:
    def twice(sample: Any) -> Any:
        return F2.crop(sample, 0, 0, HEIGHT, WIDTH), F2.crop(sample, 0, 0, HEIGHT, WIDTH)

    (one, other), *_ = next(iter(offload(loader(Images(twice)), device)))
    one.zero_()
    assert other.any()

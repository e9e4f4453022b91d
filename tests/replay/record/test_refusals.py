"""Transforms that cannot move stay, with the right pixels and draws, and the plan says why."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
import torch
import torchvision.transforms as v1
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import OffloadedLoader, offload
from pipediag.remedy.summary import why_nothing
from pipediag.replay.plan import Plan

from ...remedy.sameness import Images, check_same, draws, floats, image, loader, moved, picture, pixels, seen

Make = Callable[[], Dataset[Any]]
CHAIN = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip()])

#: Most loaders make samples in workers, which run the same code.
WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


def check_against_plain(
    dataset: Make, device: torch.device, workers: int = 0, epochs: int = 1, level: float | None = None, **settings: Any
) -> OffloadedLoader:
    """Check that the batches, and the draws after each sample and epoch, are the plain loader's."""
    settings = {**settings, "num_workers": workers}
    theirs = seen(loader(dataset(), **settings), epochs)
    offloaded = offload(loader(dataset(), **settings), device)
    check_same(seen(offloaded, epochs), theirs, device, level)
    return offloaded


def between(link: Any, make: Callable[[int], Any] = floats) -> Make:
    """A dataset with ``link`` in the middle of a chain that could move without it."""
    before, after = [v2.RandomHorizontalFlip()], [v2.RandomVerticalFlip(), v2.RandomErasing(1.0)]
    return lambda: Images(v2.Compose([*before, link() if isinstance(link, type) else link, *after]), make, length=12)


# ---- one link that must stay


class OnlyDarkOnes:
    """Decides by the pixels."""

    def __call__(self, sample: Tensor) -> Tensor:
        return F.invert(sample) if sample.mean() < 0.5 else F.rotate(sample, random.uniform(-9, 9))


class WithNumpy:
    def __call__(self, sample: Tensor) -> Tensor:
        return torch.from_numpy(np.roll(np.asarray(sample), np.random.randint(20), axis=-1))


class WithNumpyAttribute:
    def __call__(self, sample: Tensor) -> Tensor:
        return torch.from_numpy(sample.numpy()[:, ::-1].copy())


class WithScipy(nn.Module):
    def forward(self, sample: Tensor) -> Tensor:
        from scipy import ndimage

        return torch.from_numpy(ndimage.gaussian_filter(sample, random.uniform(0.1, 2)))


class WithArithmetic:
    def __call__(self, sample: Tensor) -> Tensor:
        return sample * torch.rand(()) + 0.1 * torch.rand_like(sample)


class WithIndices:
    def __call__(self, sample: Tensor) -> Tensor:
        top = random.randrange(8)
        return sample[:, top : top + 30]


class WritesInPlace:
    def __call__(self, sample: Tensor) -> Tensor:
        sample[:, :5] = random.random()
        return sample


LINKS = [OnlyDarkOnes, WithNumpy, WithNumpyAttribute, WithArithmetic, WithIndices, WritesInPlace]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("link", [*LINKS, WithScipy])
def test_a_link_that_needs_pixels_stays_with_all_before_it(link: type, workers: int, device: torch.device) -> None:
    if link is WithScipy:
        pytest.importorskip("scipy")
    offloaded = check_against_plain(between(link), device, workers)
    assert moved(offloaded) == ["RandomVerticalFlip RandomErasing"]
    assert offloaded.unrecorded == 0
    named = {WithIndices: "indexing would need", WritesInPlace: "writing by an index would need"}
    because = f"{link.__name__}: {named.get(link, '')}"
    assert [reason for reason in offloaded.plan.reasons if reason.startswith(because)], offloaded.plan.reasons


@pytest.mark.parametrize(
    ("link", "make"),
    [
        (v2.JPEG((20, 90)), pixels),
        (v2.AugMix(), pixels),
        (v1.AugMix(), pixels),
        (v2.LinearTransformation(torch.eye(3 * 40 * 56), torch.zeros(3 * 40 * 56)), floats),
        (v2.Lambda(lambda sample: sample.sort(-1).values), floats),
    ],
    ids=lambda value: type(value).__name__,
)
def test_torchvisions_own_that_stay(link: Any, make: Callable[[int], Any], device: torch.device) -> None:
    offloaded = check_against_plain(between(link, make), device)
    assert moved(offloaded) == ["RandomVerticalFlip RandomErasing"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith(f"{type(link).__name__}: ")]


def test_noise_on_images_that_lie_channels_last_stays(device: torch.device) -> None:
    def from_an_array(index: int) -> Tensor:
        return torch.from_numpy(floats(index).permute(1, 2, 0).contiguous().numpy()).permute(2, 0, 1)

    ends = [v2.GaussianNoise(), v2.RandomErasing(1.0)]
    offloaded = check_against_plain(lambda: Images(v2.Compose(ends), from_an_array), device)
    assert moved(offloaded) == ["RandomErasing"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith("GaussianNoise: ")]


def test_policies_of_v1_whose_blends_round_differently_stay(device: torch.device) -> None:
    policies = [v1.RandAugment(), v1.TrivialAugmentWide(), v1.AutoAugment()]
    chain = v1.Compose([*policies, v1.ConvertImageDtype(torch.float32)])
    offloaded = check_against_plain(lambda: Images(chain, length=24), device, level=8 / 255)
    assert "ConvertImageDtype" in moved(offloaded)[0]
    assert [reason for reason in offloaded.plan.reasons if "as its certificate shows" in reason]


def test_a_picture_in_the_middle_ends_what_is_before_it(device: torch.device) -> None:
    def dataset() -> Dataset[Any]:
        ends = [v2.RandomVerticalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        return Images(v2.Compose([v2.ColorJitter(0.3), v2.ToPILImage(), v2.ColorJitter(0.3), *ends]))

    offloaded = check_against_plain(dataset, device)
    assert moved(offloaded) == ["ColorJitter RandomVerticalFlip ToImage ToDtype"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith("ToPILImage: ")]


class FilteredPicture:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        return sample.filter(PIL.ImageFilter.MedianFilter(random.choice([3, 5])))


class BlendedPicture:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        return PIL.Image.blend(sample, sample.rotate(9), random.uniform(0.5, 1.5))


class PictureByItsExtremes:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        return F.vertical_flip(sample) if sample.getextrema()[0][0] < 3 else sample


class PicturePasted:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        made = PIL.Image.new("RGB", (64, 64))
        made.paste(sample, (random.randrange(8), 3))
        return made


class PictureAsArray:
    def __call__(self, sample: PIL.Image.Image) -> PIL.Image.Image:
        return PIL.Image.fromarray(np.array(sample)[::-1])


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("link", [FilteredPicture, BlendedPicture, PictureByItsExtremes, PicturePasted, PictureAsArray])
def test_code_that_works_on_pictures_stays(link: type, workers: int, device: torch.device) -> None:
    def dataset() -> Dataset[Any]:
        return Images(
            v1.Compose([v1.RandomHorizontalFlip(), link(), v1.RandomHorizontalFlip(), v1.ToTensor()]), picture
        )

    offloaded = check_against_plain(dataset, device, workers)
    assert moved(offloaded) == ["RandomHorizontalFlip ToTensor"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith(f"{link.__name__}: ")]


class Arrays:
    """Takes arrays by name and gives a dict, as in albumentations."""

    def __call__(self, *, image: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        if random.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        shift = np.random.randint(-20, 20)
        return {"image": np.clip(image.astype(int) + shift, 0, 255).astype(np.uint8), "mask": mask.copy()}


class OfArrays(Images):
    def __getitem__(self, index: int) -> Any:
        array = pixels(index).permute(1, 2, 0).numpy()
        made = self.transform(image=array, mask=array[..., 0])
        return torch.from_numpy(made["image"]).permute(2, 0, 1), made["mask"], draws()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_of_arrays_stays(workers: int, device: torch.device) -> None:
    offloaded = check_against_plain(lambda: OfArrays(Arrays()), device, workers)
    assert offloaded.plan.pieces == ()
    assert offloaded.plan.reasons


class Uncalled(Images):
    def __getitem__(self, index: int) -> Any:
        return pixels(index)


def only_labels(samples: Any) -> Any:
    return torch.tensor([len(sample) for sample in samples])


@pytest.mark.parametrize(
    ("dataset", "collate", "reason"),
    [
        (OfArrays(Arrays()), None, "Arrays: it gets numpy arrays, and only tensors and Pillow images can be recorded"),
        (Uncalled(CHAIN), None, "no transform was found that the dataset calls"),
        (Images(CHAIN), only_labels, "the collate function puts no recorded image into the batch"),
        (torch.utils.data.TensorDataset(torch.ones(64, 3, 8, 8)), None, "no transform was found on the dataset"),
    ],
    ids=["arrays", "not called", "not collated", "no transform"],
)
def test_why_no_image_was_recorded(dataset: Any, collate: Any, reason: str, device: torch.device) -> None:
    offloaded = offload(loader(dataset, collate_fn=collate), device)
    assert offloaded.plan.reasons[0] == reason and not offloaded.plan.pieces


@pytest.mark.parametrize("first", [v2.ToImage(), v1.ToTensor()], ids=["ToImage", "ToTensor"])
def test_a_chain_that_begins_with_an_array(first: Any, device: torch.device) -> None:
    def array(index: int) -> np.ndarray:
        return pixels(index).permute(1, 2, 0).contiguous().numpy()

    offloaded = check_against_plain(lambda: Images(v2.Compose([first, v2.RandomCrop(24)]), array), device)
    assert moved(offloaded) == ["RandomCrop"]


# ---- state


class Randomized(v1.Compose):
    """Draws when its dataset asks for that, so that all images of a sample are transformed alike."""

    def randomize(self) -> None:
        for link in self.transforms:
            link.randomize()


class Brightened:
    def randomize(self) -> None:
        self.by = random.random()

    def __call__(self, sample: Tensor) -> Tensor:
        return (sample * self.by).clamp(0, 1)


class Flipped(v1.RandomHorizontalFlip):
    def randomize(self) -> None:
        self.p = float(random.random() < 0.5)


class Clips(Images):
    def __getitem__(self, index: int) -> Any:
        self.transform.randomize()
        return torch.stack([self.transform(self.make_image(index + frame)) for frame in range(2)]), draws()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataset_that_asks_its_transform_for_more_than_a_call(workers: int, device: torch.device) -> None:
    for links in ([Brightened()], [Flipped(), Flipped()]):
        offloaded = check_against_plain(lambda: Clips(Randomized(links), floats), device, workers)  # noqa: B023
        assert moved(offloaded) == [" ".join(type(link).__name__ for link in links)]


class Named(Images):
    """Hands the image to its transform by name, as is usual for albumentations."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(image=self.make_image(index)), draws()


def test_a_transform_that_gets_its_image_by_name(device: torch.device) -> None:
    def halved(image: Tensor) -> Tensor:
        return F.hflip(image) * 0.5

    def centred(image: Tensor) -> Tensor:
        return image - image.mean()

    assert moved(check_against_plain(lambda: Named(halved, floats), device)) == ["halved"]
    offloaded = check_against_plain(lambda: Named(centred, floats), device)
    assert offloaded.plan.reasons[0].startswith("centred: mean would need the pixels of an image")


class Counting:
    """Turns every image a little farther."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: Any) -> Any:
        self.calls += 1
        return F.rotate(sample, 3.0 * self.calls)


class RunningMean:
    def __init__(self) -> None:
        self.mean = 0.5

    def __call__(self, sample: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * float(sample.mean())
        return sample - self.mean


class OwnGenerator:
    """Draws from its own generator, as albumentations 2 and many others do."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, sample: Any) -> Any:
        return F.rotate(sample, float(self.generator.uniform(-30, 30)))


class OwnTorchGenerator:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, sample: Any) -> Any:
        return F.rotate(sample, float(torch.rand((), generator=self.generator)) * 60 - 30)


STATEFUL = [Counting, RunningMean, OwnGenerator, OwnTorchGenerator]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("link", STATEFUL)
def test_the_state_of_a_transform_is_as_with_the_plain_loader(link: type, workers: int, device: torch.device) -> None:
    """The transform is named, and the links after it move."""
    offloaded = check_against_plain(between(link), device, workers)
    assert moved(offloaded) == ["RandomVerticalFlip RandomErasing"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith(f"{link.__name__}: ")]


def test_a_dataset_that_draws_from_its_own_generator(device: torch.device) -> None:
    class Augmented(Images):
        def __init__(self) -> None:
            super().__init__(v2.RandomCrop(24))
            self.generator = np.random.default_rng(0)

        def __getitem__(self, index: int) -> Any:
            return self.transform(pixels(int(self.generator.integers(1000)))), draws()

    offloaded = check_against_plain(Augmented, device)
    assert moved(offloaded) == ["RandomCrop"]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_state_of_a_function_is_as_with_the_plain_loader(workers: int, device: torch.device) -> None:
    def dataset() -> Dataset[Any]:
        calls = [0]

        def turned(sample: Any) -> Any:
            calls[0] += 1
            return F.rotate(sample, 3.0 * calls[0])

        return Images(turned)

    check_against_plain(dataset, device, workers)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_state_of_a_dataset_is_as_with_the_plain_loader(workers: int, device: torch.device) -> None:
    class Counted(Images):
        calls = 0

        def __getitem__(self, index: int) -> Any:
            self.calls += 1
            return self.transform(pixels(index)), self.calls

    check_against_plain(lambda: Counted(v2.RandomCrop(24)), device, workers)


class Caching(Images):
    """Keeps the first, deterministic part of its samples."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform)
        self.first = v2.Resize((30, 40))
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.first(pixels(index))
        return self.transform(self.kept[index]), draws()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataset_that_keeps_transformed_images(workers: int, device: torch.device) -> None:
    check_against_plain(lambda: Caching(v2.RandomCrop(24)), device, workers, epochs=2, level=1)


def test_kept_images_are_usual_tensors_for_other_code(device: torch.device) -> None:
    dataset = Caching(v2.RandomCrop(24))
    list(offload(loader(dataset), device))
    for kept in dataset.kept.values():
        assert type(kept) is Tensor
    assert type(dataset[0][0]) is Tensor


def test_a_dataset_that_keeps_transformed_images_and_a_transform_that_sometimes_needs_pixels(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rarely, "chance", 0.0)
    dataset, plain = (Caching(v2.Compose([v2.ToDtype(torch.float32), Rarely()])) for _ in range(2))
    offloaded = offload(loader(dataset), device)
    monkeypatch.setattr(Rarely, "chance", 0.5)
    check_same(seen(offloaded, 2), seen(loader(plain), 2), device)
    assert offloaded.plan.pieces == ()
    assert [reason for reason in offloaded.plan.reasons if "keeps what its transforms have made" in reason]


class KeepsLate(Images):
    """Keeps one image long after the plan was made, and needs its pixels later."""

    kept: Any = None

    def __getitem__(self, index: int) -> Any:
        made = self.transform(floats(index))
        if index == NEITHER:
            self.kept = made
        return made, self.kept.mean() if index == NEITHER + 20 else torch.zeros(()), draws()


class HandsOnLate(Images):
    """Keeps one image in the same way, and puts it into a batch that must be made with pixels."""

    kept: Any = None

    def __getitem__(self, index: int) -> Any:
        made = self.transform(floats(index))
        if index == NEITHER:
            self.kept = made
        bright = float(made.mean()) if index == NEITHER + 20 else 0.0
        return made if self.kept is None else self.kept, bright, draws()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", [KeepsLate, HandsOnLate])
def test_a_dataset_that_keeps_an_image_that_no_trial_sees(
    dataset: type[Images], workers: int, device: torch.device
) -> None:
    settings = {"timeout": 2} if workers else {}
    check_against_plain(lambda: dataset(v2.RandomCrop(24), length=200), device, workers, **settings)


# ---- code that hides what happens


class OwnChain:
    """Calls its links one after another, and is no Compose of torchvision's."""

    def __init__(self, *links: Any) -> None:
        self.links = list(links)

    def __call__(self, sample: Any) -> Any:
        for link in self.links:
            sample = link(sample)
        return sample


def without_mean(sample: Tensor) -> Tensor:
    return sample - sample.mean()


def test_a_link_inside_a_chain_of_the_users_that_needs_pixels(device: torch.device) -> None:
    offloaded = check_against_plain(lambda: Images(OwnChain(v2.RandomVerticalFlip(), without_mean), floats), device)
    assert any("without_mean: mean would need the pixels of an image" in why for why in offloaded.plan.reasons)


class ForgivingChain:
    """Returns the sample unchanged if its transform fails."""

    def __init__(self, *links: Any) -> None:
        self.transform = v2.Compose(list(links))

    def __call__(self, sample: Any) -> Any:
        try:
            return self.transform(sample)
        except Exception:
            return sample


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_that_swallows_exceptions(workers: int, device: torch.device) -> None:
    links = (v2.RandomHorizontalFlip(), v2.JPEG((5, 10)), v2.RandomInvert(1.0))
    check_against_plain(lambda: Images(ForgivingChain(*links)), device, workers)


def test_a_dataset_that_swallows_exceptions(device: torch.device) -> None:
    class Forgiving(Images):
        def __getitem__(self, index: int) -> Any:
            sample = self.transform(pixels(index))
            try:
                brightness = float(sample.float().mean())
            except Exception:
                brightness = 0.0
            return sample, brightness, draws()

    check_against_plain(lambda: Forgiving(v2.RandomCrop(24)), device)


def test_a_collate_function_that_swallows_exceptions(device: torch.device) -> None:
    def collate(samples: Any) -> Any:
        images = torch.stack([sample[0] for sample in samples])
        try:
            return images, images.float().mean((1, 2, 3))
        except Exception:
            return images, torch.zeros(len(samples))

    check_against_plain(lambda: Images(v2.RandomCrop(24)), device, collate_fn=collate)


def test_the_line_that_needs_the_pixels_afterwards(device: torch.device) -> None:
    class Halved(Images):
        def __getitem__(self, index: int) -> Any:
            return self.transform(self.make_image(index)).sqrt()

    offloaded = check_against_plain(lambda: Halved(CHAIN, floats), device)
    line = Halved.__getitem__.__code__.co_firstlineno + 1
    why = why_nothing(offloaded.plan)
    assert "the code after the transforms, " in why
    assert f"test_refusals.py:{line}: sqrt would need the pixels of an image" in why


def test_links_of_one_reason_stand_together() -> None:
    reasons = (*(f"{name}: it gets arrays" for name in "ABCD"), "E: it draws", "the dataset is a stream")
    assert why_nothing(Plan(reasons=reasons)) == "A, B and 2 more: it gets arrays; E: it draws; the dataset is a stream"
    assert why_nothing(Plan()) == "no transforms were found on the dataset that could be moved"


def test_a_transform_that_swallows_its_own_exceptions(device: torch.device) -> None:
    class Twice:
        def __call__(self, sample: Any) -> Any:
            try:
                return F.crop(sample, 0, 0, *self.side(sample))
            except ValueError:
                return F.crop(sample, 0, 0, 10, 10)

        @staticmethod
        def side(sample: Any) -> tuple[int, int]:
            if random.random() < 0.5:
                raise ValueError
            return 10, 10

    offloaded = check_against_plain(lambda: Images(Twice()), device)
    assert moved(offloaded) == ["Twice"]
    assert offloaded.unrecorded == 0


@pytest.mark.parametrize(("make", "kind"), [(pixels, Tensor), (image, tv_tensors.Image), (picture, PIL.Image.Image)])
def test_code_that_asks_for_the_exact_type(make: Any, kind: type, device: torch.device) -> None:
    def inverted(sample: Any) -> Any:
        return F.invert(sample) if type(sample) is kind else sample

    chain = [inverted, v2.ToImage()]
    check_against_plain(lambda: Images(v2.Compose(chain), make), device)


def test_code_that_asks_with_isinstance(device: torch.device) -> None:
    def inverted(sample: Any) -> Any:
        return F.invert(sample) if isinstance(sample, tv_tensors.Image) else sample

    offloaded = check_against_plain(lambda: Images(inverted, image), device)
    assert moved(offloaded) == ["inverted"]


@pytest.mark.parametrize("how", ["normalize", "erase"])
def test_functions_that_work_in_place(how: str, device: torch.device) -> None:
    def changed(sample: Any) -> Any:
        if how == "normalize":
            F.normalize(sample, [0.5] * 3, [0.5] * 3, inplace=True)
        else:
            F.erase(sample, 3, 4, 10, 12, torch.zeros(3, 1, 1), inplace=True)
        return sample

    check_against_plain(lambda: Images(v2.Compose([v2.RandomCrop(24), changed]), floats), device)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataset_that_reads_all_samples_into_one_buffer(workers: int, device: torch.device) -> None:
    class OneBuffer(Images):
        def __init__(self, transform: Any) -> None:
            super().__init__(transform)
            self.buffer = np.zeros((3, 40, 56), np.uint8)

        def __getitem__(self, index: int) -> Any:
            self.buffer[:] = pixels(index).numpy()
            return self.transform(torch.from_numpy(self.buffer)), draws()

    check_against_plain(lambda: OneBuffer(v2.Resize((24, 24))), device, workers)


def test_a_dataset_that_writes_into_the_raw_image_afterwards(device: torch.device) -> None:
    class Blanked(Images):
        def __getitem__(self, index: int) -> Any:
            raw = pixels(index)
            made = self.transform(raw)
            raw[:, :20] = 0
            return made, raw

    check_against_plain(lambda: Blanked(v2.Resize((24, 24))), device)


def test_a_view_of_a_recording_image_as_a_plain_tensor(device: torch.device) -> None:
    class Both(Images):
        def __getitem__(self, index: int) -> Any:
            made = self.transform(image(index))
            return made, made.as_subclass(Tensor)

    check_against_plain(lambda: Both(v2.RandomCrop(24)), device)


def test_a_copy_of_a_recording_image_by_its_constructor(device: torch.device) -> None:
    class Shapes(Images):
        def __getitem__(self, index: int) -> Any:
            made = self.transform(pixels(index))
            return made, torch.Tensor(made).shape[-1]

    check_against_plain(lambda: Shapes(v2.RandomCrop(24)), device)


# ---- samples that cannot be recorded


class Rarely:
    """Needs pixels with probability ``chance``; none while it is 0, as may happen in a trial."""

    chance = 0.0

    def __call__(self, sample: Tensor) -> Tensor:
        sample = F.rotate(sample, random.uniform(-9, 9))
        return sample * sample.mean() if torch.rand(()) < self.chance else sample


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_that_cannot_be_recorded_is_made_with_pixels(
    workers: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Images(v2.Compose([v2.RandomHorizontalFlip(), Rarely(), v2.RandomErasing(1.0)]), floats, length=64)
    offloaded = offload(loader(dataset, num_workers=workers), device)
    assert moved(offloaded) == ["RandomHorizontalFlip Rarely RandomErasing"]
    monkeypatch.setattr(Rarely, "chance", 0.05)
    check_same(seen(offloaded), seen(loader(dataset, num_workers=workers)), device)
    assert 0 < offloaded.unrecorded < 16
    assert "mean" in offloaded.why


#: Of 200 samples, one that is certified but not tried, and one that is neither.
CERTIFIED, NEITHER = 15, 150
ODD_ONES = pytest.mark.parametrize("odd", [CERTIFIED, NEITHER])


@ODD_ONES
def test_a_sample_of_another_kind_than_those_tried(odd: int, device: torch.device) -> None:
    class Odd(Images):
        def __getitem__(self, index: int) -> Any:
            if index == odd:
                return self.transform(pixels(index, channels=1)).expand(3, -1, -1), draws()
            return self.transform(pixels(index)), draws()

    offloaded = check_against_plain(lambda: Odd(v2.RandomCrop(24), length=200), device)
    assert offloaded.unrecorded == 1
    assert "expand" in offloaded.why


@ODD_ONES
def test_a_transform_that_no_tried_sample_took(odd: int, device: torch.device) -> None:
    class Odd(Images):
        def __init__(self) -> None:
            super().__init__(v2.RandomCrop(24), length=200)
            self.other = v2.JPEG((5, 10))

        def __getitem__(self, index: int) -> Any:
            sample = self.transform(pixels(index))
            return (self.other(sample) if index == odd else sample), draws()

    offloaded = check_against_plain(Odd, device)
    assert offloaded.unrecorded == 1


WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.bool)


@pytest.mark.parametrize("dtype", WHOLE_NUMBERS, ids=str)
@pytest.mark.parametrize(
    "link",
    [
        v2.Resize((24, 24)),
        v2.RandomRotation(20),
        v2.ColorJitter(0.5),
        v2.RandomInvert(1.0),
    ],
    ids=lambda link: type(link).__name__,
)
def test_whole_numbers_other_than_bytes(link: Any, dtype: torch.dtype, device: torch.device) -> None:
    if dtype == torch.bool and isinstance(link, v2.RandomInvert):
        pytest.skip("torchvision inverts no booleans")
    check_against_plain(lambda: Images(link, lambda index: pixels(index).to(dtype)), device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.bool], ids=str)
def test_whole_numbers_whose_pixels_are_only_moved(dtype: torch.dtype, device: torch.device) -> None:
    chain = v2.Compose([v2.RandomCrop(30, padding=3), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
    offloaded = check_against_plain(lambda: Images(chain, lambda index: pixels(index).to(dtype)), device)
    assert moved(offloaded) == ["RandomCrop RandomHorizontalFlip RandomVerticalFlip"]


@pytest.mark.parametrize(
    "link",
    [
        v1.Resize((24, 25)),
        v1.RandomResizedCrop(24),
        v1.Resize((60, 70), v1.InterpolationMode.BICUBIC),
        v1.RandomAutocontrast(1.0),
    ],
    ids=["Resize", "RandomResizedCrop", "bicubic", "RandomAutocontrast"],
)
def test_bytes_rounded_by_transforms_of_v1(link: Any, device: torch.device) -> None:
    def faint(index: int) -> Tensor:
        return pixels(index) // 3 + 60

    check_against_plain(lambda: Images(link, faint, length=40), device, level=1)


def test_grey_images_normalised_by_three_means(device: torch.device) -> None:
    chain = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    check_against_plain(lambda: Images(chain, lambda index: pixels(index, channels=1)), device)


# ---- transforms that change after the plan was made


def changed_between_epochs(
    dataset: Make, change: Callable[[Any], None], device: torch.device, workers: int
) -> OffloadedLoader:
    plain, other = dataset(), dataset()
    offloaded = offload(loader(other, num_workers=workers), device)
    check_same(seen(offloaded), seen(loader(plain, num_workers=workers)), device)
    change(plain)
    change(other)
    check_same(seen(offloaded), seen(loader(plain, num_workers=workers)), device)
    return offloaded


def cropped() -> Images:
    return Images(v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip()]))


def _replace(dataset: Any) -> None:
    dataset.transform = v2.Compose([v2.RandomCrop(24), v2.RandomVerticalFlip()])


def _replace_by_the_like(dataset: Any) -> None:
    dataset.transform = v2.Compose([v2.RandomCrop(20), v2.RandomHorizontalFlip(1.0)])


def _append(dataset: Any) -> None:
    dataset.transform.transforms.append(v2.RandomInvert(1.0))


def _replace_link(dataset: Any) -> None:
    dataset.transform.transforms[0] = v2.CenterCrop(20)


def _change_probability(dataset: Any) -> None:
    dataset.transform.transforms[1].p = 1.0


def _replace_by_none(dataset: Any) -> None:
    dataset.transform = None
    dataset.__class__ = _Untransformed


class _Untransformed(Images):
    def __getitem__(self, index: int) -> Any:
        return self.make_image(index), index, draws()


CHANGES = [_replace, _replace_by_the_like, _append, _replace_link, _change_probability, _replace_by_none]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("change", CHANGES)
def test_transforms_changed_between_epochs(change: Any, workers: int, device: torch.device) -> None:
    changed_between_epochs(cropped, change, device, workers)


def test_batches_of_replaced_transforms_are_made_with_pixels(device: torch.device) -> None:
    dataset = cropped()
    offloaded = offload(loader(dataset), device)
    _replace(dataset)
    plain = cropped()
    _replace(plain)
    check_same(seen(offloaded), seen(loader(plain)), device)
    assert offloaded.unrecorded == len(offloaded) == 3
    assert "other transforms" in offloaded.why


# ---- pixels read after the transform


def test_masks_that_are_chosen_by_boxes(device: torch.device) -> None:
    class Objects(Images):
        def __getitem__(self, index: int) -> Any:
            boxes = torch.tensor([[0, 0, 9, 9], [5, 5, 5, 5], [1, 1, 30, 8]])
            boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(40, 56))
            target = {"boxes": boxes, "labels": torch.arange(3), "masks": tv_tensors.Mask(pixels(index))}
            return self.transform(image(index), target)

    def chain() -> Any:
        return v2.Compose([v2.RandomCrop(24), v2.SanitizeBoundingBoxes(), v2.RandomVerticalFlip()])

    offloaded = check_against_plain(lambda: Objects(chain()), device, collate_fn=list)
    assert moved(offloaded) == ["RandomVerticalFlip"]
    assert [reason for reason in offloaded.plan.reasons if reason.startswith("SanitizeBoundingBoxes: ")]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataset_that_reads_pixels_after_the_transform(workers: int, device: torch.device) -> None:
    class Bright(Images):
        def __getitem__(self, index: int) -> Any:
            sample = self.transform(floats(index))
            return sample, sample.mean(), draws()

    offloaded = check_against_plain(lambda: Bright(v2.RandomCrop(24)), device, workers)
    assert offloaded.plan.pieces == ()
    assert [reason for reason in offloaded.plan.reasons if "mean" in reason]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_collate_function_that_reads_pixels(workers: int, device: torch.device) -> None:
    def padded(samples: Any) -> Any:
        return nn.utils.rnn.pad_sequence([sample[0].flatten().cumsum(0) for sample in samples]), [
            sample[2] for sample in samples
        ]

    offloaded = check_against_plain(lambda: Images(v2.RandomCrop(24)), device, workers, collate_fn=padded)
    assert offloaded.plan.pieces == ()
    assert [reason for reason in offloaded.plan.reasons if "flatten" in reason]


class Held:
    """The user's own object that holds an image and is no known container."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and torch.equal(self.held.cpu(), other.held.cpu())


class HeldByName(SimpleNamespace):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldByName) and torch.equal(self.held.cpu(), other.held.cpu())


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("hold", [Held, lambda held: HeldByName(held=held)], ids=["object", "namespace"])
def test_a_batch_that_hides_an_image_in_an_object(hold: Any, workers: int, device: torch.device) -> None:
    def collate(samples: Any) -> Any:
        return torch.stack([sample[0] for sample in samples]), hold(samples[0][0])

    settings = {"timeout": 5} if workers else {}
    check_against_plain(lambda: Images(v2.RandomCrop(24)), device, workers, collate_fn=collate, **settings)


def test_samples_that_are_the_users_own_objects(device: torch.device) -> None:
    class Objects(Images):
        def __getitem__(self, index: int) -> Any:
            return Held(self.transform(pixels(index)))

    offloaded = check_against_plain(lambda: Objects(v2.RandomCrop(24)), device, collate_fn=list)
    assert [piece.moves for piece in offloaded.plan.pieces] == [("RandomCrop",)]


# ---- unusual datasets and loaders


def test_an_iterable_dataset_is_recorded_like_any_other(device: torch.device) -> None:
    class Stream(IterableDataset[Any]):
        def __init__(self) -> None:
            self.transform = v2.RandomCrop(24)

        def __iter__(self) -> Any:
            return ((self.transform(pixels(index)), draws()) for index in range(10))

    offloaded = check_against_plain(Stream, device)
    assert [piece.moves for piece in offloaded.plan.pieces] == [("RandomCrop",)] and not offloaded.plan.reasons


class ByName(Images):
    def __getitem__(self, index: Any) -> Any:
        return self.transform(pixels({"a": 1, "b": 2}[index])), draws()


def test_a_dataset_with_keys_that_are_no_numbers(device: torch.device) -> None:
    check_against_plain(lambda: ByName(v2.RandomCrop(24)), device, sampler=["a", "b"])


def test_a_dataset_without_a_length(device: torch.device) -> None:
    class Unmeasured(Dataset[Any]):
        def __init__(self) -> None:
            self.transform = v2.RandomCrop(24)

        def __getitem__(self, index: int) -> Any:
            return self.transform(pixels(index)), draws()

    check_against_plain(Unmeasured, device, sampler=[3, 4, 5, 6, 7])


def test_a_dataset_whose_broken_samples_the_sampler_leaves_out(device: torch.device) -> None:
    class Broken(Images):
        def __getitem__(self, index: int) -> Any:
            if index == 0:
                raise OSError("a broken file")
            return super().__getitem__(index)

    check_against_plain(lambda: Broken(v2.RandomCrop(24)), device, sampler=[3, 4, 5, 6, 7])


def test_an_empty_dataset(device: torch.device) -> None:
    class Empty(Images):
        def __getitem__(self, index: int) -> Any:
            return [][index]

    check_against_plain(lambda: Empty(v2.RandomCrop(24), length=0), device)


def test_a_dataset_that_transforms_many_samples_at_once(device: torch.device) -> None:
    class AtOnce(Images):
        def __getitem__(self, index: int) -> Any:
            return self.__getitems__([index])[0]

        def __getitems__(self, indices: list[int]) -> Any:
            return self.transform([pixels(index) for index in indices])

    def each(samples: Any) -> Any:
        return [CHAIN(sample) for sample in samples]

    offloaded = check_against_plain(lambda: AtOnce(each), device)
    assert offloaded.unrecorded == 0


def test_a_sample_that_kills_the_trial(device: torch.device) -> None:
    training = os.getpid()

    class Kills(Images):
        def __getitem__(self, index: int) -> Any:
            if index == CERTIFIED and os.getpid() != training:
                os._exit(1)
            return super().__getitem__(index)

    check_against_plain(lambda: Kills(CHAIN, length=20), device)


# ---- the user's own errors


class Mine(Exception):
    """Error that only the user's code raises."""


def raises_mine(*_: Any) -> Any:
    raise Mine("told by the user")


class FailsLate(Images):
    def __getitem__(self, index: int) -> Any:
        return raises_mine() if index == NEITHER else super().__getitem__(index)


class Fails:
    """Fails with probability ``chance``."""

    chance = 0.0

    def __call__(self, sample: Any) -> Any:
        sample = F.rotate(sample, 9.0)
        return raises_mine() if torch.rand(()) < self.chance else sample


def collate_fails(samples: Any) -> Any:
    return raises_mine() if samples[0][1] == 148 else default_collate(samples)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (lambda: FailsLate(CHAIN, length=200), {}),
        (lambda: Images(Fails(), length=200), {}),
        (lambda: Images(CHAIN, length=200), {"collate_fn": collate_fails}),
    ],
    ids=["dataset", "transform", "collate"],
)
def test_errors_are_the_users_own(
    dataset: Any, settings: Any, workers: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    offloaded = offload(loader(dataset(), num_workers=workers, **settings), device)
    assert offloaded.plan.pieces
    monkeypatch.setattr(Fails, "chance", 0.5)
    with pytest.raises(Mine, match="told by the user") as caught:
        seen(offloaded)
    told = "".join(traceback.format_exception(caught.value))
    assert "raises_mine" in told
    assert "NotRecordable" not in told


@pytest.mark.parametrize("workers", WORKERS)
def test_errors_are_raised_once(workers: int, device: torch.device) -> None:
    offloaded = offload(loader(FailsLate(CHAIN, length=200), num_workers=workers), device)
    with pytest.raises(Mine) as caught:
        seen(offloaded)
    assert "During handling" not in "".join(traceback.format_exception(caught.value))


def test_an_error_that_only_the_trial_gets(device: torch.device) -> None:
    def fails_now() -> bool:
        return failing[0]

    def sometimes(sample: Any) -> Any:
        return raises_mine() if fails_now() else F.vertical_flip(sample)

    failing = [True]
    offloaded = offload(loader(Images(sometimes)), device)
    failing[0] = False
    check_same(seen(offloaded), seen(loader(Images(sometimes))), device)


def test_an_error_of_every_sample_is_raised(device: torch.device) -> None:
    with pytest.raises(Mine, match="told by the user"):
        seen(offload(loader(Images(raises_mine)), device))


def test_sizes_that_do_not_fit_raise_torchs_error(device: torch.device) -> None:
    def dataset() -> Dataset[Any]:
        return Images(v2.RandomResize(20, 40))

    with pytest.raises(RuntimeError, match="equal size"):
        seen(loader(dataset()))
    with pytest.raises(RuntimeError, match="equal size"):
        seen(offload(loader(dataset()), device))

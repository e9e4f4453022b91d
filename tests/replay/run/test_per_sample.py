"""``PerSample`` transforms each image of a batch as its transform would do separately."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import NotRecordable, PerSample, offload

from ...remedy.sameness import Images, loader, pixels, seen

MEAN, STD = [0.48, 0.45, 0.4], [0.23, 0.22, 0.25]


def batch(samples: int = 6, dtype: torch.dtype = torch.uint8, channels: int = 3, side: int = 40) -> Tensor:
    """Different images."""
    images = torch.stack([pixels(index, channels, side, side + 7) for index in range(samples)])
    return images if dtype == torch.uint8 else F.to_dtype(images, dtype, scale=True)


def alike(samples: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Copies of one image, so that different results come from different draws."""
    return batch(1, dtype).expand(samples, -1, -1, -1).contiguous()


def one_by_one(transform: Any, images: Tensor) -> Tensor:
    return torch.stack([transform(image) for image in images])


def check_same(ours: Tensor, theirs: Tensor, level: float | None = None) -> None:
    """Check floats to 1e-5 of their range, and by a level on few pixels if the chain rounds to bytes."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    mine, want = ours.cpu().double(), theirs.double()
    apart = (mine - want).abs()
    floor = 1e-5 * max(1.0, float(want.max() - want.min())) if theirs.is_floating_point() else 0.0
    level = level if level is not None else 0.0 if theirs.is_floating_point() else 1.0
    assert float(apart.max()) <= level + floor
    assert float((apart > floor).double().mean()) <= 1e-3


def jitter() -> Any:
    return v2.ColorJitter(0.4, 0.4, 0.4, 0.1)


#: Chains for any number of channels.
CHAINS: dict[str, Callable[[], Any]] = {
    "crop and flip": lambda: v2.Compose([v2.RandomCrop(24, padding=4), v2.RandomHorizontalFlip()]),
    "resized crop": lambda: v2.RandomResizedCrop(20),
    "warps": lambda: v2.Compose([v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 9, fill=0.5), v2.RandomPerspective()]),
    "rotation": lambda: v2.RandomRotation(40, v2.InterpolationMode.BILINEAR),
    "elastic": lambda: v2.ElasticTransform(30.0),
    "blur or not": lambda: v2.RandomApply([v2.GaussianBlur(5, (0.2, 2.0))], 0.6),
    "erasing": lambda: v2.Compose([v2.RandomErasing(0.7, value="random"), v2.RandomErasing(0.7)]),
    "choice": lambda: v2.RandomChoice([v2.RandomInvert(1.0), v2.RandomHorizontalFlip(1.0), v2.RandomRotation(20)]),
    "order": lambda: v2.RandomOrder([v2.RandomInvert(), v2.RandomVerticalFlip(), v2.GaussianBlur(3)]),
    "older": lambda: v1.Compose([v1.RandomCrop(24), v1.RandomVerticalFlip(), v1.RandomAffine(15)]),
    "sequence": lambda: nn.Sequential(v2.RandomCrop(24), v2.RandomInvert()),
    "normalized": lambda: v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4], [0.3])]),
    "grey": lambda: v2.RandomGrayscale(0.5),
    "jitter": jitter,
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=["uint8", "float32"])
def test_every_image_is_transformed_as_by_itself(
    name: str, channels: int, dtype: torch.dtype, device: torch.device
) -> None:
    transform, images = CHAINS[name](), batch(8, dtype, channels)
    torch.manual_seed(3)
    theirs, then = one_by_one(transform, images), torch.rand(())
    torch.manual_seed(3)
    ours = PerSample(transform)(images.to(device))
    assert torch.rand(()) == then, "other draws were made"
    assert ours.device.type == device.type
    check_same(ours, theirs, {"normalized": 1 / 255 / 0.3, "jitter": 4.0}.get(name) if dtype == torch.uint8 else None)


@pytest.mark.parametrize("policy", [v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide])
def test_policies(policy: Callable[[], Any], device: torch.device) -> None:
    transform, images = policy(), batch(24)
    torch.manual_seed(0)
    theirs = one_by_one(transform, images)
    torch.manual_seed(0)
    check_same(PerSample(transform)(images.to(device)), theirs, 4.0)


def test_a_whole_recipe(device: torch.device) -> None:
    links = [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.RandomApply([jitter()], 0.8), v2.RandomGrayscale()]
    ends = [v2.RandomApply([v2.GaussianBlur(5)]), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform, images = v2.Compose([*links, *ends]), batch(16)
    torch.manual_seed(5)
    theirs = one_by_one(transform, images)
    torch.manual_seed(5)
    check_same(PerSample(transform)(images.to(device)), theirs, 8 / 255 / 0.22)


@pytest.mark.parametrize("name", ["crop and flip", "resized crop", "warps", "blur or not", "jitter", "erasing"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=["uint8", "float32"])
def test_channels_last(name: str, dtype: torch.dtype, device: torch.device) -> None:
    transform, images = CHAINS[name](), batch(6, dtype)
    torch.manual_seed(3)
    theirs = one_by_one(transform, images)
    torch.manual_seed(3)
    last = images.to(device).contiguous(memory_format=torch.channels_last)
    check_same(PerSample(transform)(last), theirs, 4.0 if name == "jitter" and dtype == torch.uint8 else None)


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(9, 20), st.sampled_from([torch.uint8, torch.float32]))
def test_any_seed_and_size(seed: int, samples: int, side: int, dtype: torch.dtype) -> None:
    links = [
        v2.RandomCrop(8, padding=2),
        v2.RandomApply([v2.RandomRotation(30)]),
        v2.RandomInvert(),
        v2.GaussianBlur(3),
    ]
    transform, images = v2.Compose(links), batch(samples, dtype, side=side)
    torch.manual_seed(seed)
    theirs = one_by_one(transform, images)
    torch.manual_seed(seed)
    ours = PerSample(transform)(images)
    assert ours.shape == theirs.shape
    # The image has fewer than a thousand pixels, so the fraction that is off is not compared.
    assert float((ours.double() - theirs.double()).abs().max()) <= (1 if dtype == torch.uint8 else 1e-5)


def test_the_batch_that_was_given_is_not_changed(device: torch.device) -> None:
    images = batch(4, torch.float32).to(device)
    kept = images.clone()
    chain = v2.Compose([v2.RandomErasing(0.5, inplace=False), v2.RandomInvert(), v2.Normalize([0.5], [0.5])])
    PerSample(chain)(images)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("transform", [v2.Identity(), v2.RandomHorizontalFlip(0.0), v2.CenterCrop((40, 47))])
def test_nothing_to_do(transform: Any, device: torch.device) -> None:
    images = batch(3).to(device)
    assert torch.equal(PerSample(transform)(images), images)


def test_an_empty_batch(device: torch.device) -> None:
    images = torch.empty(0, 3, 8, 8, device=device)
    assert PerSample(v2.RandomHorizontalFlip())(images).shape == (0, 3, 8, 8)


def test_no_gradients_are_recorded(device: torch.device) -> None:
    made = PerSample(v2.ColorJitter(0.5))(batch(2, torch.float32).to(device).requires_grad_())
    assert not made.requires_grad


# ---- separate draws for each sample


def parameters(transform: Any, samples: int) -> Iterator[dict[str, Any]]:
    """The parameters that the transform draws, image by image."""
    like = torch.empty(3, 40, 47, dtype=torch.uint8)
    for _ in range(samples):
        yield transform.make_params([like])


DRAWING: dict[str, Callable[[], Any]] = {
    "crops": lambda: v2.RandomCrop(16),
    "resized crops": lambda: v2.RandomResizedCrop(16),
    "flips": lambda: v2.RandomHorizontalFlip(),
    "angles": lambda: v2.RandomRotation(90),
    "affine": lambda: v2.RandomAffine(90),
    "sigmas": lambda: v2.GaussianBlur(9, (0.1, 4.0)),
    "factors": lambda: v2.ColorJitter(0.9),
    "hues": lambda: v2.ColorJitter(hue=0.5),
    "corners": lambda: v2.RandomPerspective(p=1.0),
    "displacements": lambda: v2.ElasticTransform(),
    "boxes": lambda: v2.RandomErasing(1.0),
    "permutations": lambda: v2.RandomChannelPermutation(),
    "policies": lambda: v2.RandAugment(),
    "distortions": lambda: v2.RandomPhotometricDistort(),
    "applied or not": lambda: v2.RandomApply([v2.RandomInvert(1.0)]),
    "chosen": lambda: v2.RandomChoice([v2.RandomInvert(1.0), v2.RandomVerticalFlip(1.0), v2.RandomHorizontalFlip(1.0)]),
}
#: Minimum numbers of different results of 16 equal images, if fewer than 12.
FEW = {"flips": 2, "applied or not": 2, "chosen": 3, "permutations": 4, "policies": 6}


def distinct(images: Tensor) -> int:
    return len({image.numpy().tobytes() for image in images.cpu()})


@pytest.mark.parametrize("name", DRAWING)
def test_images_of_one_batch_are_changed_differently(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    made = PerSample(DRAWING[name]())(alike(16).to(device))
    assert distinct(made) >= FEW.get(name, 12)


@pytest.mark.parametrize("name", DRAWING)
def test_images_of_one_batch_of_a_loader_are_changed_differently(name: str, device: torch.device) -> None:
    """No transform silently uses one draw for several samples."""
    dataset = Images(v2.Compose([DRAWING[name]()]), lambda index: pixels(0), length=16)
    offloaded = offload(loader(dataset, batch_size=16), device, samples=4)
    assert offloaded.plan.pieces
    ((images, *_),) = seen(offloaded).batches
    assert distinct(images) >= FEW.get(name, 12)


def test_orders_of_a_jitter_differ_within_a_batch(device: torch.device) -> None:
    """With fixed factors, only the order of brightness and contrast is drawn."""
    transform = v2.ColorJitter(brightness=(1.5, 1.5), contrast=(0.5, 0.5))
    images = alike(12, torch.float32)
    first = F.adjust_contrast(F.adjust_brightness(images[0], 1.5), 0.5)
    second = F.adjust_brightness(F.adjust_contrast(images[0], 0.5), 1.5)
    torch.manual_seed(1)
    orders = [[int(step) for step in drawn["fn_idx"] if step < 2] for drawn in parameters(transform, 12)]
    torch.manual_seed(1)
    made = PerSample(transform)(images.to(device)).cpu()
    assert [0, 1] in orders and [1, 0] in orders
    for image, order in zip(made, orders, strict=True):
        torch.testing.assert_close(image, first if order == [0, 1] else second, atol=1e-6, rtol=0)


def test_crops_are_those_that_were_drawn(device: torch.device) -> None:
    images = batch(8)
    torch.manual_seed(2)
    drawn = [(one["top"], one["left"]) for one in parameters(v2.RandomCrop(16), 8)]
    torch.manual_seed(2)
    made = PerSample(v2.RandomCrop(16))(images.to(device)).cpu()
    assert len(set(drawn)) > 4
    for image, (top, left), result in zip(images, drawn, made, strict=True):
        assert torch.equal(result, image[:, top : top + 16, left : left + 16])


def test_sigmas_are_those_that_were_drawn(device: torch.device) -> None:
    images, transform = batch(6, torch.float32), v2.GaussianBlur(5, (0.1, 3.0))
    torch.manual_seed(2)
    drawn = [one["sigma"] for one in parameters(transform, 6)]
    torch.manual_seed(2)
    made = PerSample(transform)(images.to(device)).cpu()
    assert len({tuple(sigma) for sigma in drawn}) == 6
    for image, sigma, result in zip(images, drawn, made, strict=True):
        torch.testing.assert_close(result, F.gaussian_blur(image, [5, 5], sigma), atol=1e-5, rtol=0)


def test_draws_of_other_generators(device: torch.device) -> None:
    def turned(sample: Any) -> Any:
        return F.rotate(sample, random.uniform(-90, 90))

    images = batch(5)
    random.seed(4)
    theirs, then = one_by_one(turned, images), random.random()
    random.seed(4)
    ours = PerSample(turned)(images.to(device))
    assert random.random() == then
    check_same(ours, theirs)


def test_two_batches_are_changed_differently(device: torch.device) -> None:
    augment, images = PerSample(v2.RandomRotation(90)), batch(4).to(device)
    assert not torch.equal(augment(images), augment(images))


# ---- as a module, and errors


def test_it_is_a_module(device: torch.device) -> None:
    model = nn.Sequential(PerSample(v2.RandomCrop(24)), PerSample(v2.ToDtype(torch.float32, scale=True))).to(device)
    assert model(batch(2).to(device)).shape == (2, 3, 24, 24)
    assert list(model.parameters()) == [] and model.state_dict() == {}
    assert "RandomCrop" in repr(model)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (2, 4, 3, 8, 8)], ids=str)
def test_only_batches_are_taken(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="batch"):
        PerSample(v2.RandomCrop(4))(torch.rand(shape))


def test_sizes_that_differ() -> None:
    with pytest.raises(ValueError, match="different sizes"):
        PerSample(v2.RandomResize(10, 30))(batch(8))


@pytest.mark.parametrize(
    "transform",
    [
        v2.JPEG((10, 90)),
        v2.AugMix(),
        v2.Lambda(lambda image: image * 2),
        lambda image: image.clamp(0, 9),
        v2.ToPILImage(),
        lambda image: {"image": image},
        lambda image: 3,
        lambda image: torch.zeros(3, 8, 8),
    ],
    ids=["JPEG", "AugMix", "arithmetic", "method", "picture", "dict", "number", "pixels"],
)
def test_transforms_that_need_pixels_or_give_no_image_are_refused(transform: Any) -> None:
    with pytest.raises(NotRecordable):
        PerSample(transform)(batch(2))


def test_errors_of_the_transform_are_its_own() -> None:
    with pytest.raises(TypeError, match="float"):
        PerSample(v2.Normalize([0.5], [0.5]))(batch(2))
    with pytest.raises(ValueError, match="larger"):
        PerSample(v2.RandomCrop(99))(batch(2))


def test_an_error_leaves_torchvision_unchanged() -> None:
    before = dict(vars(v1.functional))
    with pytest.raises(NotRecordable):
        PerSample(v2.JPEG((10, 90)))(batch(2))
    assert dict(vars(v1.functional)) == before


def test_batches_of_torchvisions_own_type(device: torch.device) -> None:
    images = tv_tensors.Image(batch(4).to(device))
    torch.manual_seed(0)
    theirs = one_by_one(v2.RandomCrop(16), images)
    torch.manual_seed(0)
    assert torch.equal(PerSample(v2.RandomCrop(16))(images).cpu(), theirs.cpu())

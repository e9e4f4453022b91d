"""Recorded while it executes: the batch is the plain one, user code runs once, and the evidence tells what happened."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageEnhance, ImageOps
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.patches import LIVE
from pipediag.replay.certify.certifying import Certificate, certify
from pipediag.replay.certify.samples import Real, Recorded, executed
from pipediag.replay.plan import Plan
from pipediag.replay.record.batches import fetched
from pipediag.replay.record.scouting import find
from pipediag.replay.record.twins import Following, is_librarys
from pipediag.usercode import randomness, tree

CPU = torch.device("cpu")
SAMPLES = 6


def tensor(index: int) -> Tensor:
    return torch.arange(index, index + 3 * 20 * 24).reshape(3, 20, 24).mul(7).to(torch.uint8)


def picture(index: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(tensor(index).permute(1, 2, 0).numpy())


class Made(Dataset[Any]):
    """Samples of one image and a label, after one transform; ``after`` is the dataset's own code."""

    def __init__(self, transform: Any, image: Callable[[int], Any] = tensor, after: Callable[[Any], Any] | None = None):
        self.transform = transform
        self._image = image
        self._after = after
        self.calls = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        made = self.transform(self._image(index))
        return (made if self._after is None else self._after(made)), index


def seeded() -> None:
    random.seed(3), np.random.seed(3), torch.manual_seed(3)


def both(
    dataset: Any, collate: Callable[[Any], Any] = default_collate, plan: Plan | None = None
) -> tuple[Real, Recorded, Certificate]:
    """Make a batch plainly, and executed and recorded at once; check that it is the same, and return the evidence."""
    plan = find(dataset, collate, range(4), Plan()) if plan is None else plan
    assert plan.pieces, plan
    seeded()
    plain = collate(fetched(dataset, range(SAMPLES)))
    after = randomness.state()
    seeded()
    made = executed(
        lambda end: fetched(dataset, range(SAMPLES), end=end),
        collate,
        plan.recorders(dataset, Following),
        plan,
        2,
        True,
    )
    assert randomness.moved(after, randomness.state()) is None
    for ours, theirs in zip(tree.leaves(made.batch), tree.leaves(plain), strict=True):
        assert type(ours) is type(theirs)
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
    assert not LIVE
    real, recorded = pickle.loads(made.evidence)
    real = real if real.batch is not None else real._replace(batch=made.batch)
    return real, recorded, certify([(real, recorded)], plan, CPU)


class Own:
    """A transform of the user's own. The calls of all are counted."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn

    def __call__(self, image: Any) -> Any:
        CALLS[0] += 1
        return self.fn(image)


CALLS = [0]


def turned(image: Any) -> Any:
    return F.rotate(image, random.uniform(-20, 20))


def brightened(image: Any) -> Any:
    return ImageOps.autocontrast(ImageEnhance.Brightness(image).enhance(random.uniform(0.5, 1.5)).rotate(7))


def sized(image: Any) -> Any:
    return image.convert("L").resize((16, 16)).transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)


def erased(image: Tensor) -> Tensor:
    image = F.horizontal_flip(image).contiguous().float()
    image[:, 2:6, 3:8] = 0.5
    return image


LIBRARY = [
    (v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]), tensor),
    (v2.Compose([v2.ToImage(), v2.RandAugment(), v2.ToPureTensor()]), picture),
    (v2.Compose([v2.GaussianNoise(), v2.ElasticTransform(sigma=2.0)]), lambda index: tensor(index).float() / 255),
    (v1.Compose([v1.RandomResizedCrop(16), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor()]), picture),
    (v1.Compose([v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3, inplace=True)]), picture),
    (v2.RandomApply([v2.ColorJitter(0.3)], p=0.5), tv_image := lambda index: tv_tensors.Image(tensor(index))),
]
OWN = [(turned, tensor), (turned, tv_image), (erased, tensor)]
PICTURED = [brightened, sized, turned, lambda image: v1.functional.hflip(image)]


@pytest.mark.parametrize(("transform", "image"), LIBRARY)
def test_torchvisions_transforms(transform: Any, image: Any) -> None:
    assert all(map(is_librarys, getattr(transform, "transforms", [transform])))
    _, recorded, proof = both(Made(transform, image))
    assert proof.passed and not proof.unrecorded, proof
    assert len(recorded.samples) == 2 and recorded.packed.sources


@pytest.mark.parametrize(("fn", "image"), OWN)
def test_own_code_runs_once(fn: Any, image: Any) -> None:
    own = Own(fn)
    assert not is_librarys(own)
    dataset = Made(v2.Compose([v2.RandomHorizontalFlip(), own]), image)
    plan = find(dataset, default_collate, range(4), Plan())
    CALLS[0] = 0
    _, _, proof = both(dataset, plan=plan)
    assert CALLS[0] == 2 * SAMPLES, "once plainly, and once executed and recorded"
    assert proof.passed and not proof.unrecorded, proof


@pytest.mark.parametrize("fn", PICTURED)
def test_own_code_on_pictures(fn: Any) -> None:
    _, _, proof = both(Made(v1.Compose([Own(fn), v1.ToTensor()]), picture))
    assert proof.passed and not proof.unrecorded, proof
    assert len(proof.ops) > 1


def test_code_after_the_transforms() -> None:
    _, _, proof = both(Made(v2.RandomHorizontalFlip(), after=lambda image: F.vertical_flip(image).to(torch.float32)))
    assert proof.passed and {"vertical_flip", "to_dtype"} <= {verdict.name for verdict in proof.ops}


def test_two_views_of_one_image() -> None:
    class Views(Made):
        def __getitem__(self, index: int) -> Any:
            image = self._image(index)
            return self.transform(image), self.transform(image), self.transform(image)

    real, _, proof = both(Views(v2.Compose([v2.RandomCrop(12), v2.RandomHorizontalFlip()])))
    assert proof.passed and not proof.unrecorded
    assert not torch.equal(real.batch[0], real.batch[1])


def test_samples_of_several_parts() -> None:
    class Joint(Made):
        def __getitem__(self, index: int) -> Any:
            mask = tv_tensors.Mask(tensor(index)[0])
            return self.transform(tv_tensors.Image(tensor(index)), {"mask": mask, "label": index})

    _, _, proof = both(Joint(v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])))
    assert proof.passed and not proof.unrecorded


@pytest.mark.parametrize("own", [False, True])
def test_mixing(own: bool) -> None:
    mix = v2.MixUp(num_classes=64)

    def mixed(samples: Any) -> Any:
        return mix(default_collate(samples))

    def rows(samples: Any) -> Any:
        images = torch.zeros((len(samples), 3, 20, 24))
        for k, (image, _) in enumerate(samples):
            images[k] += image
        return images, torch.tensor([label for _, label in samples])

    dataset = Made(v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)]))
    _, recorded, proof = both(dataset, rows if own else mixed)
    assert proof.passed and not proof.unrecorded, recorded.why


def doubled(image: Tensor) -> Tensor:
    return image * 2 if random.random() < 2 else image


def written(image: Tensor) -> Tensor:
    return F.horizontal_flip(image).add_(1)


def by_numpy(image: Tensor) -> Tensor:
    image = F.horizontal_flip(image)
    image.numpy()[0, 0, 0] += 1
    return image


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (doubled, "mul of torch.uint8 images is not recorded"),
        (written, "add would need the pixels"),
        (by_numpy, "written into"),
    ],
)
def test_what_cannot_be_recorded_is_plain_and_no_evidence(late: Any, why: str) -> None:
    dataset = Made(v2.RandomHorizontalFlip())
    plan = find(dataset, default_collate, range(4), Plan())
    dataset._after = late
    _, recorded, proof = both(dataset, plan=plan)
    assert recorded.packed is None and why in recorded.why
    assert proof.unrecorded == proof.samples == SAMPLES


def test_a_changed_pixel_is_found() -> None:
    dataset = Made(v2.Compose([v2.RandomHorizontalFlip(), Own(F.vertical_flip)]))
    plan = find(dataset, default_collate, range(4), Plan())
    real, recorded, _ = both(dataset, plan=plan)
    next(iter(tree.leaves(real.samples)))[0, 0, 0] += 1
    assert not certify([(real, recorded)], plan, CPU).faithful


def test_other_draws_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Made(v2.Compose([v2.RandomCrop(12), v2.RandomHorizontalFlip()]))
    plan = find(dataset, default_collate, range(4), Plan())
    draws = v2.RandomCrop.make_params

    def more(self: Any, inputs: Any) -> Any:
        if type(inputs[0]) is not Tensor:
            torch.rand(1)
        return draws(self, inputs)

    more.__code__ = more.__code__.replace(co_filename=draws.__code__.co_filename)  # as if it were torchvision's own
    monkeypatch.setattr(v2.RandomCrop, "make_params", more)
    _, _, proof = both(dataset, plan=plan)
    assert not proof.draws_equal and not proof.passed


def test_the_users_errors_are_their_own() -> None:
    dataset = Made(v2.RandomHorizontalFlip(), after=lambda image: 1 // 0)
    plan = find(Made(v2.RandomHorizontalFlip()), default_collate, range(4), Plan())
    with pytest.raises(ZeroDivisionError):
        executed(
            lambda end: fetched(dataset, range(2), end=end),
            default_collate,
            plan.recorders(dataset, Following),
            plan,
            2,
            True,
        )
    assert not LIVE


def test_a_large_recording_is_left_out_of_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipediag.replay.certify.samples._MOST_BYTES", 1 << 10)
    real, _, proof = both(Made(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])))
    assert len(real.batch) == 2 and proof.passed


def test_what_is_a_librarys() -> None:
    assert is_librarys(v2.RandomChoice([v2.RandomCrop(3), v1.ToTensor()]))
    assert not is_librarys(v2.RandomChoice([v2.RandomCrop(3), Own(turned)]))
    assert not is_librarys(v2.Lambda(turned))
    assert not is_librarys(Own(turned).__call__) and not is_librarys(v2.Lambda(Own(turned).__call__))
    assert is_librarys(v2.RandomCrop(3).forward)
    hooked = v2.RandomCrop(3)
    hooked.register_forward_hook(lambda *args: None)
    assert not is_librarys(hooked)


@pytest.mark.parametrize("module, name", [(torch, "rand"), (torch, "randint"), (random, "random"), (random, "shuffle")])
def test_draws_of_the_users_are_not_a_librarys(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded beside their execution, they would draw twice."""
    plain = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: plain(*args, **kwargs))
    assert not is_librarys(v2.RandomHorizontalFlip())


def test_a_hook_of_all_modules_is_not_a_librarys() -> None:
    handle = register_module_forward_pre_hook(lambda module, args: None)
    try:
        assert not is_librarys(v2.RandomHorizontalFlip())
    finally:
        handle.remove()
    assert is_librarys(v2.RandomHorizontalFlip())


def test_a_loader_without_batches() -> None:
    dataset = Made(v2.RandomHorizontalFlip())
    plan = find(dataset, default_collate, range(4), Plan())
    loader = DataLoader(dataset, batch_size=None)
    made = executed(lambda end: dataset[0], loader.collate_fn, plan.recorders(dataset, Following), plan, 1, False)
    real, recorded = pickle.loads(made.evidence)
    assert certify([(real._replace(batch=made.batch), recorded)], plan, CPU).passed

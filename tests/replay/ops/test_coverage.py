"""The tables of docs/transforms.md name every transform of torchvision and say what happens to it."""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.replay.certify.certifying import Certificate, certify
from pipediag.replay.certify.samples import real, recorded
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find

from ...remedy.sameness import HEIGHT, WIDTH, Images, floats, image, picture, pixels

DOCUMENT = Path(__file__).parents[3] / "docs" / "transforms.md"
OUTCOMES = ("moves", "stays", "—")
SAMPLES = 12  # enough for a policy to draw every op that Pillow computes differently

Row = tuple[str, str, str]


def _tables() -> dict[ModuleType, list[Row]]:
    """The rows of each version: name, outcome for tensors, outcome for pictures."""
    text = DOCUMENT.read_text(encoding="utf-8")
    tables = {}
    for module in (v2, v1):
        (section,) = re.findall(rf"^### {re.escape(module.__name__)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
        rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (.+) \|$", section, re.M)
        assert all(why.strip() for *_, why in rows)
        tables[module] = [(name, on_tensors, on_pictures) for name, on_tensors, on_pictures, _ in rows]
    return tables


TABLES = _tables()


def _transforms(module: ModuleType) -> set[str]:
    enumerations = {"AutoAugmentPolicy", "InterpolationMode"}
    return {name for name, value in vars(module).items() if inspect.isclass(value)} - enumerations


@pytest.mark.parametrize("module", [v2, v1], ids=["v2", "v1"])
def test_every_transform_is_in_the_table_once(module: ModuleType) -> None:
    named = [name for name, *_ in TABLES[module]]
    assert sorted(_transforms(module) - set(named)) == [], f"{module.__name__} has transforms that the table lacks"
    assert len(set(named)) == len(named)
    assert {outcome for row in TABLES[module] for outcome in row[1:]} <= set(OUTCOMES)


# ---- one transform by itself


class Flips(v2.Transform):
    """A transform of the user's own."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return F.horizontal_flip(inpt)


def _tiny(index: int) -> Tensor:
    return pixels(index, height=5, width=6) / 255


def _matrix(module: ModuleType) -> Any:
    side = _tiny(0).numel()
    return module.LinearTransformation(torch.eye(side), torch.zeros(side))


def _to_float(module: ModuleType) -> Any:
    return module.ConvertImageDtype(torch.float32)


#: Transforms that need arguments, or that change few samples without.
MADE: dict[str, Callable[[Any], Any]] = {
    "Transform": lambda _: Flips(),
    "Compose": lambda m: m.Compose([m.RandomCrop(20), m.Compose([m.RandomHorizontalFlip()])]),
    "RandomApply": lambda m: m.RandomApply([m.RandomHorizontalFlip()]),
    "RandomChoice": lambda m: m.RandomChoice([m.RandomHorizontalFlip(), m.RandomVerticalFlip()]),
    "RandomOrder": lambda m: m.RandomOrder([m.RandomHorizontalFlip(), m.RandomInvert()]),
    "Lambda": lambda m: m.Lambda(lambda image: F.crop(F.invert(image), 1, 2, 20, 20)),
    "CenterCrop": lambda m: m.CenterCrop(20),
    "RandomCrop": lambda m: m.RandomCrop(30, padding=4),
    "FiveCrop": lambda m: m.FiveCrop(20),
    "TenCrop": lambda m: m.TenCrop(20),
    "Pad": lambda m: m.Pad(3, fill=9),
    "RandomZoomOut": lambda m: m.RandomZoomOut(fill=9, side_range=(1.0, 1.5), p=1.0),
    "Resize": lambda m: m.Resize(25),
    "RandomResize": lambda m: m.RandomResize(20, 30),
    "RandomShortestSize": lambda m: m.RandomShortestSize([20, 30]),
    "ScaleJitter": lambda m: m.ScaleJitter((30, 30)),
    "RandomResizedCrop": lambda m: m.RandomResizedCrop(24),
    "RandomAffine": lambda m: m.RandomAffine(20, (0.1, 0.1), (0.9, 1.1), 5),
    "RandomRotation": lambda m: m.RandomRotation(20),
    "RandomPerspective": lambda m: m.RandomPerspective(p=1.0),
    "ColorJitter": lambda m: m.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "GaussianBlur": lambda m: m.GaussianBlur(5),
    "RandomPosterize": lambda m: m.RandomPosterize(3, p=1.0),
    "RandomSolarize": lambda m: m.RandomSolarize(100, p=1.0),
    "RandomAdjustSharpness": lambda m: m.RandomAdjustSharpness(1.7, p=1.0),
    "JPEG": lambda m: m.JPEG((20, 90)),
    "ToDtype": lambda m: m.ToDtype(torch.float32, scale=True),
    "ConvertImageDtype": _to_float,
    "Normalize": lambda m: m.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
    "LinearTransformation": _matrix,
    "ConvertBoundingBoxFormat": lambda m: m.ConvertBoundingBoxFormat("CXCYWH"),
    "SetClampingMode": lambda m: m.SetClampingMode("hard"),
    "UniformTemporalSubsample": lambda m: m.UniformTemporalSubsample(2),
    "MixUp": lambda m: m.MixUp(num_classes=3),
    "CutMix": lambda m: m.CutMix(num_classes=3),
    **{
        name: lambda m, name=name: getattr(m, name)(p=1.0)
        for name in ("RandomAutocontrast", "RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomInvert")
    },
}

BATCHES = ("MixUp", "CutMix")
OBJECTS = (
    "RandomIoUCrop",
    "ClampBoundingBoxes",
    "ClampKeyPoints",
    "ConvertBoundingBoxFormat",
    "SetClampingMode",
    "SanitizeBoundingBoxes",
    "SanitizeKeyPoints",
)


def _made(module: ModuleType, name: str) -> Any:
    return MADE[name](module) if name in MADE else getattr(module, name)()


class Objects(Images):
    """Images with boxes and, if this torchvision has them, key points."""

    def __getitem__(self, index: int) -> Any:
        boxes = torch.tensor([[1.0, 2, 30, 35], [9, 8, 50, 38]])
        canvas = {"canvas_size": (HEIGHT, WIDTH)}
        sample = {
            "image": self.make_image(index),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", **canvas),
            "labels": torch.tensor([0, 1]),
        }
        if hasattr(tv_tensors, "KeyPoints"):
            sample["points"] = tv_tensors.KeyPoints(torch.tensor([[3.0, 4.0], [20.0, 9.0]]), **canvas)
        return self.transform(sample)


def _video(index: int) -> Tensor:
    return tv_tensors.Video(torch.stack([pixels(index)] * 4))


def _tensors(name: str) -> list[Callable[[int], Any]]:
    """Makers of inputs for a transform of tensors: bytes, and floats."""
    special = {"UniformTemporalSubsample": [_video], "LinearTransformation": [_tiny]}
    return special.get(name, [pixels, floats])


def _dataset(module: ModuleType, name: str, make: Callable[[int], Any]) -> Images:
    """A dataset with the transform and a conversion to tensors after it."""
    kind = Objects if name in OBJECTS else Images
    make = image if kind is Objects and make is pixels else make
    return kind(v2.Compose([_made(module, name), v2.ToImage()]), make, SAMPLES)


def _taken(dataset: Images) -> bool:
    """Return whether torchvision itself takes these images."""
    _seed(0)
    try:
        for index in range(len(dataset)):
            dataset[index]
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return False
    return True


def _plan(dataset: Images, collate: Callable[[Any], Any] = list, **allowed: Any) -> Plan:
    _seed(0)
    return find(dataset, collate, range(SAMPLES), Plan(**allowed))


def _moves(plan: Plan) -> bool:
    return any(piece.start == 0 for piece in plan.pieces)


def _certificate(dataset: Images, plan: Plan, collate: Callable[[Any], Any]) -> Certificate:
    """Certify a plan; the recording must be complete, whatever its replay gives."""
    _seed(1)
    made = real(dataset, collate, range(SAMPLES))
    _seed(1)
    mine = recorded(dataset, collate, range(SAMPLES), plan)
    assert mine.packed is not None, mine.why
    proof = certify([(made, mine)], plan, torch.device("cpu"))
    assert proof.draws_equal and proof.faithful
    return proof


def _certified(dataset: Images, collate: Callable[[Any], Any] = list) -> Plan:
    """The plan without the functions that a certificate refuses."""
    plan = _plan(dataset, collate)
    while _moves(plan):
        proof = _certificate(dataset, plan, collate)
        if proof.passed:
            break
        assert proof.failed > plan.refused, f"no single function is to blame:\n{proof}"
        plan = _plan(dataset, collate, refused=plan.refused | proof.failed)
    return plan


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


ROWS = [
    pytest.param(module, *row, id=f"{module.__name__.split('.')[-1]}-{row[0]}")
    for module, rows in TABLES.items()
    for row in rows
    if hasattr(module, row[0])  # some are newer than the oldest torchvision
]


@pytest.mark.parametrize(("module", "name", "on_tensors", "on_pictures"), ROWS)
def test_on_tensors(module: ModuleType, name: str, on_tensors: str, on_pictures: str) -> None:
    if name in BATCHES:
        _check_mixing(name, on_tensors)
        return
    datasets = [_dataset(module, name, make) for make in _tensors(name)]
    taken = [dataset for dataset in datasets if _taken(dataset)]
    assert (on_tensors == "—") == (not taken)
    for dataset in taken if on_tensors == "moves" else taken[:1]:  # others may stay for bytes only
        # Crops of one tensor share its memory, until they are stacked.
        plan = _certified(dataset, default_collate if name in ("FiveCrop", "TenCrop") else list)
        assert _moves(plan) == (on_tensors == "moves"), plan
        if name != "UniformTemporalSubsample":  # it gets no image, so there is no reason
            assert _moves(plan) or [reason for reason in plan.reasons if reason.startswith(f"{name}: ")]


def _check_mixing(name: str, on_tensors: str) -> None:
    mix = _made(v2, name)

    def collate(samples: Any) -> Any:
        images, labels = default_collate([(sample[0], sample[1] % 3) for sample in samples])
        return mix(images, labels)

    dataset = Images(v2.Compose([v2.RandomCrop(24)]), floats, SAMPLES)
    assert _moves(_certified(dataset, collate)) == (on_tensors == "moves")


@pytest.mark.parametrize(("module", "name", "on_tensors", "on_pictures"), ROWS)
def test_on_pictures(module: ModuleType, name: str, on_tensors: str, on_pictures: str) -> None:
    dataset = _dataset(module, name, picture)
    taken = _taken(dataset)
    assert (on_pictures == "—") == (not taken)
    if not taken:
        return
    plan = _certified(dataset)
    assert _moves(plan) == (on_pictures == "moves"), plan
    assert _moves(plan) or [reason for reason in plan.reasons if reason.startswith(f"{name}: ")]


# ---- other statements of the page


@pytest.mark.parametrize("module", [v2, v1], ids=["v2", "v1"])
def test_a_lambda_that_works_on_the_tensor_stays(module: ModuleType) -> None:
    assert not _moves(_plan(Images(v2.Compose([module.Lambda(lambda x: x // 2), v2.ToImage()]), pixels, SAMPLES)))


@pytest.mark.parametrize("name", ["RandomChoice", "RandomOrder"])
def test_a_transform_that_contains_one_that_stays_stays(name: str) -> None:
    holder = getattr(v2, name)([v2.JPEG((10, 20)), v2.RandomHorizontalFlip()])
    plan = _plan(Images(v2.Compose([holder, v2.RandomVerticalFlip()]), pixels, SAMPLES))
    assert [piece.moves for piece in plan.pieces] == [("RandomVerticalFlip",)]


@pytest.mark.parametrize("mode", ["NEAREST", "BILINEAR", "BICUBIC", "LANCZOS", "BOX", "HAMMING"])
def test_filters_of_pillow_move(mode: str) -> None:
    chain = v2.Compose([v2.RandomResizedCrop(20, interpolation=v2.InterpolationMode[mode]), v2.ToImage()])
    assert [piece.start for piece in _certified(Images(chain, picture, SAMPLES)).pieces] == [0]


def test_transforms_after_the_conversion_of_pictures_move() -> None:
    chain = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(20), v2.ColorJitter(0.4), v2.ToDtype(torch.float32)])
    dataset = Images(chain, picture, SAMPLES)
    assert [piece.start for piece in _certified(dataset).pieces] == [0]


def test_numpy_draws_are_kept() -> None:
    def turned(sample: Any) -> Any:
        return F.rotate(sample, float(np.random.uniform(-9, 9)))

    assert _moves(_certified(Images(v2.Compose([turned]), pixels, SAMPLES)))

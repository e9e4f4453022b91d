"""A recording patches torchvision and Pillow for recording images only, and restores them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F1
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import _augment, _auto_augment, _geometry, _misc
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import NotRecordable
from pipediag.remedy.hooks import recording
from pipediag.remedy.images import stand_in
from pipediag.remedy.tape import session

from .sameness import image, mask, picture, pixels

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def while_recording(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record in all tests except those of the beginning and end of a recording."""
    with nullcontext() if "undone" in request.node.name else recording():
        yield


# ---- pictures


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.horizontal_flip(x),
        lambda x: F1.vflip(x),
        lambda x: F.crop(x, 1, 2, 9, 9),
        lambda x: F.pad(x, 3, fill=7),
        lambda x: F.resize(x, [9, 9]),
        lambda x: F.adjust_brightness(x, 1.3),
        lambda x: F.adjust_hue(x, 0.1),
        lambda x: F.adjust_sharpness(x, 1.3),
        lambda x: F.equalize(x),
        lambda x: F1.autocontrast(x),
        lambda x: F1.adjust_saturation(x, 1.3),
        lambda x: F.to_grayscale(x),
        lambda x: F1.resized_crop(x, 1, 2, 20, 30, [9, 9]),
        lambda x: F.invert(x),
        lambda x: F.posterize(x, 3),
        lambda x: F.solarize(x, 99),
        lambda x: F.rotate(x, 90, expand=True),
        lambda x: F.rotate(x, 10, expand=True),
        lambda x: F1.affine(x, 9.0, [0, 0], 1.0, [0.0]),
        lambda x: F.perspective(x, [[0, 0], [9, 0], [9, 9], [0, 9]], [[1, 0], [9, 0], [9, 9], [0, 9]]),
        lambda x: F.pad(x, 2, padding_mode="reflect"),
        lambda x: F1.adjust_gamma(x, 0.7),
        lambda x: F.gaussian_blur(x, [3, 3], [0.7, 0.7]),
        lambda x: F1.gaussian_blur(x, [5, 3], [0.7, 0.9]),
        lambda x: F.pil_to_tensor(x),
        lambda x: F1.pil_to_tensor(x),
        lambda x: F1.to_tensor(x),
        lambda x: F.to_image(x),
    ],
)
def test_functions_on_pictures_are_recorded(call: Callable[[Any], Any]) -> None:
    real, mine = picture(0), call(stand_in(picture(0)))
    want = call(real)
    assert isinstance(mine, Tensor) == isinstance(want, Tensor)
    assert isinstance(mine, tv_tensors.Image) == isinstance(want, tv_tensors.Image)
    assert F.get_size(mine) == F.get_size(want)
    assert F.get_num_channels(mine) == F.get_num_channels(want)


# ---- settings by the type of the image

FILL = {tv_tensors.Image: 1, tv_tensors.Mask: 2, Tensor: 3, PIL.Image.Image: 4}


@pytest.mark.parametrize(
    "transform",
    [
        v2.Pad(3, fill=FILL),
        v2.RandomCrop(30, padding=4, fill=FILL),
        v2.RandomZoomOut(fill=FILL, p=1.0),
        v2.RandomAffine(30, fill=FILL),
        v2.RandomRotation((10, 30), fill=FILL),
        v2.RandomPerspective(p=1.0, fill=FILL),
        v2.ElasticTransform(fill=FILL),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fills_by_type(transform: Any) -> None:
    for make, fill in ((image, 1.0), (mask, 2.0), (pixels, 3.0)):
        filled = [op for op in transform(stand_in(make(0))).tape.ops if op.name != "crop"]
        assert [(fill,) in op.static for op in filled] == [True]


def test_fills_of_pictures() -> None:
    (op,) = v2.Pad(3, fill=FILL)(stand_in(picture(0))).tape.ops
    assert (4.0,) in op.static


def test_fills_for_others() -> None:
    transform = v2.Pad(3, fill={tv_tensors.Image: (1, 2, 3), "others": 9})
    assert (1.0, 2.0, 3.0) in transform(stand_in(image(0))).tape.ops[0].static
    assert (9.0,) in transform(stand_in(mask(0))).tape.ops[0].static


@pytest.mark.parametrize(
    ("policy", "op"),
    [(v2.TrivialAugmentWide(fill=FILL), "rotate"), (v2.RandAugment(4, fill=FILL), "rotate")],
    ids=["TrivialAugmentWide", "RandAugment"],
)
def test_fills_of_policies(policy: Any, op: str) -> None:
    torch.manual_seed(0)
    rotated = [one for _ in range(60) for one in policy(stand_in(image(0))).tape.ops if one.name == op]
    assert rotated and all((1.0,) in one.static for one in rotated)


def test_dtypes_by_type() -> None:
    kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    transform = v2.ToDtype(kinds, scale=True)
    assert transform(stand_in(image(0))).dtype == torch.float32
    assert transform(stand_in(mask(0))).dtype == torch.int64
    plain = stand_in(pixels(0))
    assert transform(plain).tape.ops == ()


def test_dtypes_by_type_without_the_type_of_the_image() -> None:
    with pytest.raises(NotRecordable, match="Image"):
        v2.ToDtype({tv_tensors.Mask: torch.int64})(stand_in(image(0)))


def test_images_and_masks_take_one_draw() -> None:
    sample = {"image": stand_in(image(0)), "mask": stand_in(mask(0)), "label": 3}
    made = v2.RandomResizedCrop(20)(sample)
    assert made["label"] == 3
    (one,), (other,) = made["image"].tape.ops, made["mask"].tape.ops
    assert one.numbers == other.numbers
    assert one.static[2] == "bilinear" and other.static[2].startswith("nearest")


def test_colours_leave_masks_alone() -> None:
    made = v2.ColorJitter(0.5)({"image": stand_in(image(0)), "mask": stand_in(mask(0))})
    assert [op.name for op in made["image"].tape.ops] == ["adjust_brightness"]
    assert made["mask"].tape.ops == ()


# ---- beginning and ending

PATCHED: tuple[Any, ...] = (
    *(F1, F, _geometry, _auto_augment, _misc, _misc.ToDtype, _augment.MixUp, _augment.CutMix),
    *(PIL.ImageOps, PIL.ImageEnhance._Enhance, PIL.ImageEnhance.Color, PIL.Image.Image),
)


def _attributes() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in PATCHED]


def _session() -> tuple[Any, ...]:
    return session.refused, session.copies


def test_all_is_undone_afterwards() -> None:
    before, kept = _attributes(), _session()
    with recording(refused=frozenset({"rotate"}), copies=True):
        meanwhile = _attributes()
    assert _attributes() == before
    assert _session() == kept
    changed = {name for was, then in zip(before, meanwhile, strict=True) for name in was if then[name] != was[name]}
    assert {"to_image", "resize", "_get_fill", "transform", "autocontrast", "enhance"} <= changed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, NotRecordable, GeneratorExit])
def test_all_is_undone_after_an_exception(error: type[BaseException]) -> None:
    before, kept = _attributes(), _session()
    with pytest.raises(error), recording(copies=True):
        F1.hflip(stand_in(pixels(0)))
        raise error
    assert _attributes() == before
    assert _session() == kept


def test_other_images_are_treated_as_before() -> None:
    for functions in (F, F1):
        assert torch.equal(functions.hflip(pixels(0)), pixels(0).flip(-1))
        assert functions.to_pil_image(pixels(0)) == picture(0)
        assert torch.equal(functions.pil_to_tensor(picture(0)), pixels(0))
    assert torch.equal(F.to_image(picture(0)), image(0))
    assert torch.equal(v1.ToTensor()(picture(0)), pixels(0) / 255)
    made = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)(image(0), mask(0))
    assert [one.dtype for one in made] == [torch.float32, torch.uint8]
    padded = v2.Pad(1, fill={tv_tensors.Image: 7, tv_tensors.Mask: 9})(image(0), mask(0))
    assert [int(one[0, 0, 0]) for one in padded] == [7, 9]
    mixed, _ = v2.CutMix(num_classes=3)(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))
    assert type(mixed) is Tensor


# ---- other processes


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The output of a fresh process whose workers are spawned, then forked by a server."""
    script = Path(__file__).parent / "scripts" / "start_methods.py"
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{Path(__file__).parent}"}
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_by_other_start_methods(told: dict[str, Any], method: str) -> None:
    moved = ["RandomCrop RandomHorizontalFlip RandomRotation ToDtype"]
    assert told[method] == {"moved": moved, "unrecorded": 0, "batches": 3}


@pytest.mark.slow
def test_the_registry_keeps_what_it_has_for_torchvisions_own_types(told: dict[str, Any]) -> None:
    assert told["registry kept"] is True
    assert set(told["added"]) <= {"pipediag.remedy.images", "pipediag.remedy.pictures"}

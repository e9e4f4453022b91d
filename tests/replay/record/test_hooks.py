"""A recording patches torchvision and Pillow for recording images only, and restores them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.plain_code import Tried
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import is_recording, stand_in

from ...remedy.sameness import image, mask, picture, pixels

REPO = Path(__file__).parents[3]


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


def _session() -> frozenset[str]:
    return session.refused


def test_functions_that_a_module_has_imported_by_name_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_module")
    exec("from torchvision.transforms.functional import to_tensor, hflip as flip, pad", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = dict(vars(module))
    with recording():
        assert is_recording(module.to_tensor(stand_in(picture(0))))
        assert is_recording(module.flip(stand_in(pixels(0))))
        module.pad = mine = F1.vflip
    assert vars(module) == {**before, "pad": mine}
    with recording():
        assert module.to_tensor is F1.to_tensor is not before["to_tensor"]
    assert vars(module) == {**before, "pad": mine}


def test_all_is_undone_afterwards() -> None:
    before, kept = _attributes(), _session()
    with recording(refused=frozenset({"rotate"})):
        meanwhile = _attributes()
    assert _attributes() == before
    assert _session() == kept
    changed = {name for was, then in zip(before, meanwhile, strict=True) for name in was if then[name] != was[name]}
    assert {"to_image", "resize", "_get_fill", "transform", "autocontrast", "enhance"} <= changed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, NotRecordable, GeneratorExit])
def test_all_is_undone_after_an_exception(error: type[BaseException]) -> None:
    before, kept = _attributes(), _session()
    with pytest.raises(error), recording(refused=frozenset({"rotate"})):
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


# ---- with patches of the user's own

OWN = F1.hflip  # the library's own


def counted(original: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """Return a user's function in place of ``original``, and a list that grows with its calls."""
    calls: list[int] = []

    def hflip(image: Any) -> Any:
        calls.append(1)
        return original(image)

    return hflip, calls


def recorded_by(function: Callable[..., Any]) -> list[str]:
    return [op.name for op in function(stand_in(pixels(0))).tape.ops]


@pytest.fixture
def undone() -> Iterator[None]:
    """Put torchvision's own function back at the end."""
    yield
    F1.hflip = OWN


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("back_while_recording", [True, False])
def test_a_patch_from_before_is_undone_by_the_user_only(back_while_recording: bool) -> None:
    mine, calls = counted(OWN)
    F1.hflip = mine
    with recording():
        assert F1.hflip is mine and torch.equal(F1.hflip(pixels(0)), pixels(0).flip(-1))
        with pytest.raises(NotRecordable):  # the user's function may do anything with the pixels
            F1.hflip(stand_in(pixels(0)))
        if back_while_recording:
            F1.hflip = OWN
    assert len(calls) == 2
    assert F1.hflip is (OWN if back_while_recording else mine)
    F1.hflip = OWN
    with recording():
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
    assert F1.hflip is OWN


@pytest.mark.usefixtures("undone")
def test_a_patch_undone_while_recording() -> None:
    with recording():
        saved = F1.hflip
        F1.hflip, calls = counted(saved)
        assert recorded_by(F1.hflip) == ["horizontal_flip"] and len(calls) == 1
        F1.hflip = saved
        assert recorded_by(F1.hflip) == ["horizontal_flip"] and len(calls) == 1
    assert F1.hflip is OWN


@pytest.mark.usefixtures("undone")
def test_a_patch_undone_after_the_recording() -> None:
    with recording():
        saved = F1.hflip
        mine, calls = counted(saved)
        F1.hflip = mine
    for _ in range(2):
        assert F1.hflip is mine and torch.equal(F1.hflip(pixels(0)), pixels(0).flip(-1))
        with recording():
            assert F1.hflip is mine and recorded_by(F1.hflip) == ["horizontal_flip"]
    assert len(calls) == 4
    F1.hflip = saved
    assert torch.equal(F1.hflip(pixels(0)), pixels(0).flip(-1))
    with recording():
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
    assert F1.hflip is OWN


@pytest.mark.usefixtures("undone")
def test_a_patch_from_between_two_recordings_stays_undone_by_them() -> None:
    with recording():
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
    mine, calls = counted(F1.hflip)
    F1.hflip = mine
    with recording():
        assert torch.equal(F1.hflip(pixels(0)), pixels(0).flip(-1))
    assert F1.hflip is mine and len(calls) == 1


@pytest.mark.usefixtures("undone")
def test_two_patches_of_which_the_first_is_undone_by_its_saved_original() -> None:
    with recording():
        mine, _ = counted(F1.hflip)
        F1.hflip = mine
        theirs, calls = counted(F1.hflip)
        F1.hflip = theirs
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
    assert F1.hflip is theirs and torch.equal(F1.hflip(pixels(0)), pixels(0).flip(-1)) and len(calls) == 2


def test_a_chain_that_changes_from_sample_to_sample_undone() -> None:
    chain = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32)])
    recorder = Recorder(chain, 0)
    with recording():
        first = recorder(image(0))
        chain.transforms[0] = lambda x: x + 1
        second = recorder(image(0))
    assert torch.equal(first.pixels(), image(0).flip(-1).float())
    assert not is_recording(second) and torch.equal(second, (image(0) + 1).float())


@pytest.mark.parametrize("of", [lambda chain: chain, lambda chain: chain.transforms[0]])
def test_a_transform_that_gets_a_hook_between_two_samples_undone(of: Callable[[Any], Any]) -> None:
    chain, called = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32)]), list[int]()
    recorder = Recorder(chain, 0)
    with recording():
        assert is_recording(recorder(image(0)))
        handle = of(chain).register_forward_hook(lambda module, given, made: called.append(1))
        made = recorder(image(0))
        assert called == [1] and is_recording(made) is (of(chain) is not chain)
        handle.remove()
        assert is_recording(recorder(image(0))) and called == [1]


@pytest.mark.parametrize("make", [image, pixels, picture, mask])
def test_an_image_that_chance_leaves_as_it_is_stays_the_users_own_object_undone(make: Callable[[int], Any]) -> None:
    recorder, given = Recorder(v2.Compose([v2.RandomHorizontalFlip(0.0), v2.RandomVerticalFlip(0.0)]), 0), make(0)
    with recording():
        assert recorder(given) is given
        made = recorder({"image": given, "all": [given, (given, 1)]})
    assert made["image"] is made["all"][0] is made["all"][1][0] is given


@pytest.mark.parametrize("resize", [F1.resize, F.resize])
def test_a_call_of_plain_code_that_leaves_a_picture_as_it_is_returns_it_undone(resize: Callable[..., Any]) -> None:
    given = picture(0)
    with recording(calls=Tried({})):
        assert resize(given, [given.height, given.width]) is given
        assert is_recording(resize(given, [7, 7]))


def test_a_transform_changes_the_users_own_dicts_and_lists_undone() -> None:
    def change(sample: dict[str, Any]) -> dict[str, Any]:
        sample["images"][0] = F.horizontal_flip(sample["images"][0])
        sample["images"].append("flipped")
        sample["changed"] = True
        return sample

    given = {"images": [image(0), mask(0)], "changed": False}
    kept = given["images"]
    with recording():
        made = Recorder(change, 0)(given)
    assert made is given and made["images"] is kept and made["changed"] and kept[2] == "flipped"
    assert is_recording(kept[0]) and torch.equal(kept[0].pixels(), image(0).flip(-1))
    assert not is_recording(kept[1]) and torch.equal(kept[1], mask(0))


def test_an_image_kept_beyond_the_recording_passes_a_saved_function_undone() -> None:
    with recording():
        saved, kept = F1.hflip, stand_in(pixels(0))
        invert = PIL.ImageOps.mirror
        picture_kept = stand_in(picture(0))
    assert torch.equal(saved(kept), pixels(0).flip(-1))
    assert invert(picture_kept) == PIL.ImageOps.mirror(picture(0))


# ---- several recordings at once


def test_a_recording_inside_another_is_undone_first() -> None:
    before = _attributes()
    with recording(refused=frozenset({"rotate"})):
        session.site = 3
        outer, number = _attributes(), session.number
        with recording():
            assert _session() == frozenset() and session.number != number
            assert recorded_by(F1.hflip) == ["horizontal_flip"]
        assert _session() == {"rotate"} and (session.site, session.number) == (3, number)
        assert _attributes() == outer
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
        with pytest.raises(ZeroDivisionError), recording():
            raise ZeroDivisionError
        assert recorded_by(F1.hflip) == ["horizontal_flip"]
    assert _attributes() == before and not session.active


def test_recordings_of_two_threads_end_in_either_order_undone() -> None:
    before = _attributes()
    begun, over = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        with recording(refused=frozenset({"rotate"})):
            begun.set()
            over.wait(60)
            found.append((recorded_by(F1.hflip), session.refused))

    thread = threading.Thread(target=other)
    with recording(refused=frozenset({"rotate"})):
        thread.start()
        assert begun.wait(60)
        assert _session() == {"rotate"}
    assert not session.active  # in this thread
    assert torch.equal(F1.hflip(stand_in(pixels(0))), pixels(0).flip(-1))
    over.set()
    thread.join()
    assert found == [(["horizontal_flip"], frozenset({"rotate"}))]
    assert _attributes() == before


def test_another_thread_gets_pixels_undone() -> None:
    recorder = Recorder(v1.Compose([v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0)]), 0)
    with recording(), ThreadPoolExecutor(1) as pool:
        assert is_recording(recorder(pixels(0)))
        assert torch.equal(pool.submit(recorder, pixels(0)).result(), pixels(0).flip(-1).flip(-2))
    assert torch.equal(recorder(pixels(0)), pixels(0).flip(-1).flip(-2))


# ---- other processes


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The output of a fresh process whose workers are spawned, then forked by a server."""
    script = REPO / "tests" / "remedy" / "scripts" / "start_methods.py"
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'tests' / 'remedy'}"}
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
    assert set(told["added"]) <= {"pipediag.replay.record.images", "pipediag.replay.record.pictures"}

"""The shortest path through a chain draws and records what the transforms' own calls do, also after a transform, its
class or a functional has changed.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import NotRecordable
from pipediag.replay.ops.op import State
from pipediag.replay.ops.table import FUNCTIONALS
from pipediag.replay.record import drawing
from pipediag.replay.record.drawing import LookedAt, Template, Token, direct, fact, templates_of
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.record.tape import Tape
from pipediag.usercode import randomness

from ...remedy.sameness import HEIGHT, WIDTH, draws, floats, image, picture, pixels

MEAN, STD = [0.48, 0.45, 0.4], [0.23, 0.22, 0.25]

#: torchvision's classes for images, with several paths through most of their bodies.
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "CenterCrop": lambda: v2.CenterCrop(30),
    "ColorJitter": lambda: v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "ColorJitter of some": lambda: v2.ColorJitter(0.4, hue=0.1),
    "ConvertImageDtype": lambda: v2.ConvertImageDtype(torch.float32),
    "GaussianBlur": lambda: v2.GaussianBlur(5),
    "Grayscale": lambda: v2.Grayscale(3),
    "Identity": lambda: v2.Identity(),
    "Pad": lambda: v2.Pad([1, 2], fill=[3, 4, 5]),
    "RandomAdjustSharpness": lambda: v2.RandomAdjustSharpness(1.7),
    "RandomAffine": lambda: v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 9, fill=3),
    "RandomAutocontrast": lambda: v2.RandomAutocontrast(),
    "RandomChannelPermutation": lambda: v2.RandomChannelPermutation(),
    "RandomCrop": lambda: v2.RandomCrop(30),
    "RandomCrop padded": lambda: v2.RandomCrop((60, 30), padding=2, pad_if_needed=True, fill=9),
    "RandomCrop of all": lambda: v2.RandomCrop((HEIGHT, WIDTH)),
    "RandomEqualize": lambda: v2.RandomEqualize(),
    "RandomErasing": lambda: v2.RandomErasing(0.7),
    "RandomErasing of noise": lambda: v2.RandomErasing(0.7, value="random"),
    "RandomGrayscale": lambda: v2.RandomGrayscale(0.5),
    "RandomHorizontalFlip": lambda: v2.RandomHorizontalFlip(),
    "RandomInvert": lambda: v2.RandomInvert(),
    "RandomPerspective": lambda: v2.RandomPerspective(p=0.7),
    "RandomPhotometricDistort": lambda: v2.RandomPhotometricDistort(),
    "RandomPosterize": lambda: v2.RandomPosterize(3),
    "RandomResize": lambda: v2.RandomResize(20, 30),
    "RandomResizedCrop": lambda: v2.RandomResizedCrop(24),
    "RandomRotation": lambda: v2.RandomRotation(40),
    "RandomRotation by quarters": lambda: v2.RandomRotation((90, 90), expand=True),
    "RandomRotation expanded": lambda: v2.RandomRotation(40, v2.InterpolationMode.BILINEAR, expand=True),
    "RandomShortestSize": lambda: v2.RandomShortestSize([20, 30]),
    "RandomSolarize": lambda: v2.RandomSolarize(100),
    "RandomVerticalFlip": lambda: v2.RandomVerticalFlip(),
    "RandomZoomOut": lambda: v2.RandomZoomOut(fill=9, side_range=(1.0, 1.5)),
    "Resize": lambda: v2.Resize(25, max_size=60),
    "RGB": lambda: v2.RGB(),
    "ScaleJitter": lambda: v2.ScaleJitter((30, 30)),
    "ToDtype": lambda: v2.ToDtype(torch.float32, scale=True),
    "ToDtype by type": lambda: v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
    "Normalize": lambda: v2.Compose([v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD)]),
    "ElasticTransform": lambda: v2.ElasticTransform(30.0),
    "GaussianNoise": lambda: v2.Compose([v2.ToDtype(torch.float32), v2.GaussianNoise()]),
    "RandomApply": lambda: v2.RandomApply([v2.RandomRotation(20), v2.RandomHorizontalFlip()], 0.6),
    "nested": lambda: v2.Compose([nn.Sequential(v2.RandomInvert(), v2.RandomCrop(20)), v2.Compose([v2.Pad(1)])]),
    "Lambda": lambda: v2.Lambda(lambda x: F.rotate(x, float(torch.rand(()) * 9))),
    "RandomChoice": lambda: v2.RandomChoice([v2.RandomInvert(1.0), v2.RandomRotation(20)]),
    "RandAugment": lambda: v2.RandAugment(),
}


@pytest.fixture(autouse=True)
def while_recording() -> Iterator[None]:
    with recording():
        yield


def seed(number: int = 0) -> None:
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes a millisecond: it seeds all devices
    random.seed(number)
    np.random.seed(number)


def recordings(transform: Any, make: Callable[[int], Any], samples: int = 40) -> list[tuple[Any, ...]]:
    """The recording of each image, and the draws after it."""
    seed()
    return [(*recorded(transform(stand_in(make(k)))), draws()) for k in range(samples)]


def recorded(made: Any) -> tuple[Any, ...]:
    tape = made.tape
    return type(made), tape.state, plain(tape.track()), plain(tape.calls)


def plain(value: Any) -> Any:
    """The same with numbers in place of tensors, for comparisons."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("make", [pixels, image], ids=["tensor", "image"])
def test_recordings_are_those_of_the_transforms_own_call(name: str, make: Callable[[int], Any]) -> None:
    if not hasattr(v2, name.split()[0]) and name != "nested":
        pytest.skip("not in this version of torchvision")
    transform = TRANSFORMS[name]()
    assert recordings(direct(transform), make) == recordings(transform, make)


def test_images_of_many_sizes() -> None:
    def of_many_sizes(index: int) -> Tensor:
        return pixels(index, height=30 + index % 7, width=40 + index % 5)

    chain = v2.Compose([v2.ToDtype(torch.float32), v2.RandomResizedCrop(20), v2.RandomRotation(20), v2.GaussianBlur(3)])
    assert recordings(direct(chain), of_many_sizes) == recordings(chain, of_many_sizes)


@pytest.mark.parametrize("make", [picture, lambda k: tv_tensors.Mask(pixels(k, channels=1))], ids=["picture", "mask"])
def test_pictures_and_masks(make: Callable[[int], Any]) -> None:
    chain = v2.Compose([v2.RandomCrop(30), v2.RandomHorizontalFlip(), v2.Pad(2), v2.RandomInvert()])
    assert recordings(direct(chain), make) == recordings(chain, make)


KNOWN = ["RandomCrop", "RandomCrop padded", "ColorJitter", "RandomErasing", "RandomRotation", "RandomAffine", "Pad"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_bodies_are_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = TRANSFORMS[name]()
    draw = direct(transform)
    recordings(draw, image, samples=300)

    def body(*_: Any) -> Any:
        raise AssertionError("the body is run")

    monkeypatch.setattr(type(transform), "transform", body)
    recordings(draw, image, samples=60)


def test_recorded_calls_can_be_called_again() -> None:
    chain = TRANSFORMS["nested"]()
    draw = direct(chain)
    for k in range(20):
        seed(k)
        calls = draw(stand_in(pixels(k))).tape.calls
        seed(k)
        assert torch.equal(functools.reduce(lambda made, call: call(made), calls, pixels(k)), chain(pixels(k)))


# ---- changed settings


def warm(draw: Callable[[Any], Any]) -> None:
    for k in range(5):
        draw(stand_in(pixels(k)))


def ops(made: Any) -> list[tuple[str, tuple[Any, ...]]]:
    return [(op.name, op.static) for op in made.tape.ops]


def test_an_attribute_that_is_changed() -> None:
    link = v2.RandomRotation(20)
    draw = direct(link)
    warm(draw)
    link.interpolation = v2.InterpolationMode.BILINEAR
    assert ops(draw(stand_in(pixels(0)))) == [("rotate", (HEIGHT, WIDTH, "bilinear", (0.0,)))]


@pytest.mark.parametrize("kind", [v2.RandomResizedCrop, v2.Resize], ids=["with draws", "without draws"])
def test_an_attribute_that_is_changed_in_place(kind: Any) -> None:
    link = kind([20, 20])
    link.size = [20, 20]
    draw = direct(link)
    warm(draw)
    link.size[0] = 10
    assert draw(stand_in(pixels(0))).shape == (3, 10, 20)
    link.size = [20, 10]
    assert draw(stand_in(pixels(0))).shape == (3, 20, 10)


@pytest.mark.parametrize("other", [torch.tensor([1.0, 1.0]), np.array([1.0, 1.0])], ids=["tensor", "array"])
def test_an_attribute_that_becomes_another_tensor(other: Any) -> None:
    link = v2.RandomResizedCrop(20)
    link.note = other.copy() if isinstance(other, np.ndarray) else other.clone()
    draw = direct(link)
    warm(draw)
    link.note = other
    assert draw(stand_in(pixels(0))).shape == (3, 20, 20)


def test_a_probability_that_is_changed() -> None:
    link = v2.RandomHorizontalFlip(1.0)
    draw = direct(link)
    warm(draw)
    link.p = 0.0
    assert ops(draw(stand_in(pixels(0)))) == []


class Turned(v2.RandomRotation):
    """The user's own: keeps the images that it gets."""

    def __init__(self) -> None:
        super().__init__((10, 10))
        self.given: list[Any] = []

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        self.given.append(inpt)
        return super().transform(inpt, params)


def test_a_subclass_is_run_for_each_sample() -> None:
    link = Turned()
    draw = direct(v2.Compose([v2.RandomCrop(30), link, v2.RandomInvert(1.0)]))
    for k in range(6):
        assert [op.name for op in draw(stand_in(pixels(k))).tape.ops] == ["crop", "rotate", "invert"]
    assert len(link.given) == 6


def test_a_kept_image_does_not_change() -> None:
    link = Turned()
    recorder = Recorder(v2.Compose([v2.RandomInvert(1.0), v2.RandomCrop(30), link, v2.RandomInvert(1.0)]), 0)
    kept = stand_in(pixels(0))
    for k in range(6):
        recorder(pixels(k))
        assert recorder.of_image(kept).tape.ops[1:] != () == kept.tape.ops
    assert {tuple(op.name for op in given.tape.ops) for given in link.given} == {("invert", "crop")}


def test_a_function_between_two_transforms_may_keep_an_image() -> None:
    kept: list[Any] = []

    def keep(made: Any) -> Any:
        kept.append(made)
        return made

    recorder = Recorder(v2.Compose([v2.RandomInvert(1.0), keep, v2.RandomCrop(30)]), 0)
    made = [recorder(pixels(k)) for k in range(6)]
    assert {tuple(op.name for op in one.tape.ops) for one in kept} == {("invert",)}
    assert {tuple(op.name for op in one.tape.ops) for one in made} == {("invert", "crop")}
    assert not any(one.tape.open for one in (*kept, *made))


def test_a_lambda_is_run_for_each_sample() -> None:
    angles = itertools.count(1)
    draw = direct(v2.Lambda(lambda x: F.rotate(x, float(next(angles)))))
    assert len({draw(stand_in(pixels(0))).tape.ops[0].numbers for _ in range(5)}) == 5


# ---- changed code, noticed when the next recording begins


def recorded_before(link: Any) -> Recorder:
    recorder = Recorder(v2.Compose([link]), 0)
    for k in range(5):
        recorder(pixels(k))
    return recorder


def names(recorder: Recorder) -> list[str]:
    with recording():
        return [op.name for op in recorder(pixels(0)).tape.ops]


def test_a_functional_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorded_before(v2.RandomHorizontalFlip(1.0))
    monkeypatch.setattr(F, "horizontal_flip", F.vertical_flip)
    assert names(recorder) == ["vertical_flip"]


def test_a_class_whose_body_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorded_before(v2.RandomHorizontalFlip(1.0))
    calls: list[Any] = []

    def body(self: Any, image: Any, params: Any) -> Any:
        calls.append(params)
        return F.invert(image)

    monkeypatch.setattr(v2.RandomHorizontalFlip, "transform", body)
    assert [names(recorder) for _ in range(3)] == [["invert"]] * 3
    assert len(calls) == 3


@pytest.mark.parametrize("method", ["transform", "forward", "make_params", "check_inputs", "_call_kernel"])
def test_a_transform_that_gets_its_own_method(method: str) -> None:
    link = v2.RandomRotation(20)
    recorder = recorded_before(link)
    calls: list[Any] = []
    former = getattr(link, method)

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return former(*args, **kwargs)

    setattr(link, method, own)
    for _ in range(3):
        assert names(recorder) == ["rotate"]
    assert len(calls) == 3


def test_a_hook_that_is_registered_later() -> None:
    link = v2.RandomInvert(1.0)
    recorder = recorded_before(link)
    handle = link.register_forward_hook(lambda module, args, made: F.horizontal_flip(made))
    assert names(recorder) == ["invert", "horizontal_flip"]
    handle.remove()
    assert names(recorder) == ["invert"]


def test_a_hook_of_all_modules() -> None:
    recorder = recorded_before(v2.RandomInvert(1.0))
    called: list[str] = []
    handle = register_module_forward_hook(lambda module, args, made: called.append(type(module).__name__))
    try:
        with recording():
            assert torch.equal(recorder(pixels(0)), 255 - pixels(0))
    finally:
        handle.remove()
    assert called == ["RandomInvert", "Compose"], "as without the remedy"


def test_a_chain_inside_a_chain_that_is_changed() -> None:
    inner = v2.RandomApply([v2.RandomInvert(1.0)], 1.0)
    recorder = recorded_before(v2.Compose([inner]))
    inner.transforms.append(v2.RandomVerticalFlip(1.0))
    assert names(recorder) == ["invert", "vertical_flip"]


def test_a_refused_function_takes_the_longer_path() -> None:
    recorder = recorded_before(v2.RandomRotation((10, 10)))
    with recording(refused=frozenset({"rotate"})), pytest.raises(NotRecordable, match="certificate"):
        recorder(pixels(0))


# ---- whether a transform is skipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_transform_is_skipped_by_torchs_comparison(dtype: torch.dtype) -> None:
    """A tensor rounds the number that it is compared with to its own dtype, which matters for draws close to it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        for number in range(200):
            seed(number)
            value = torch.rand(1).item()
            near = (value, math.nextafter(value, 0), math.nextafter(value, 1), value - 1e-9, value + 1e-9)
            for p in (*near, value - 1e-3, value + 1e-3, 0.5, 0.0, 1.0, torch.tensor(value)):
                seed(number)
                want, then = bool(torch.rand(1) >= p), torch.rand(1)
                seed(number)
                assert drawing._skips(p) == want
                assert torch.equal(torch.rand(1), then)
    finally:
        torch.set_default_dtype(before)


Body = Callable[[Any, dict[str, Any]], Any]

DRAWN: dict[str, Any] = {
    "angle": 10.0,
    "size": [20, 30],
    "flip": True,
    "none": None,
    "order": torch.tensor([1, 0]),
    "box": (1, 2, 9, 8),
}


def found(body: Body, source: Any = None, drawn: dict[str, Any] = DRAWN) -> list[Template] | None:
    image = stand_in(pixels(0) if source is None else source)
    return templates_of(body, image, drawn, body(image, drawn))


def in_order(image: Any, drawn: dict[str, Any]) -> Any:
    for number in drawn["order"]:
        image = F.rotate(image, drawn["angle"], expand=True) if number == 0 else F.pad(image, [3])
    return image


def if_wanted(image: Any, drawn: dict[str, Any]) -> Any:
    image = F.horizontal_flip(image) if drawn["flip"] else image
    return image if drawn["none"] is None else F.invert(image)


DERIVED: dict[str, tuple[Body, list[str]]] = {
    "nothing": (lambda image, drawn: image, []),
    "constant": (lambda image, drawn: F.resize(image, [20], antialias=True), ["resize"]),
    "by position": (lambda image, drawn: F.rotate(image, drawn["angle"], fill=[1, 2, 3]), ["rotate"]),
    "a whole list": (lambda image, drawn: F.resize(image, drawn["size"]), ["resize"]),
    "several": (lambda image, drawn: F.affine(image, drawn["angle"], [1, 2], 1.1, [0.0, 0.0]), ["affine"]),
    "one after the other": (lambda image, drawn: F.invert(F.adjust_hue(image, 0.1)), ["adjust_hue", "invert"]),
    "in order": (in_order, ["pad", "rotate"]),
    "if wanted": (if_wanted, ["horizontal_flip"]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_bodies_that_pass_drawn_values_on(name: str) -> None:
    body, names = DERIVED[name]
    made = found(body)
    assert made is not None
    image = stand_in(pixels(1, height=33))
    for template in made:
        template.onto(image.tape, DRAWN)
    want = body(stand_in(pixels(1, height=33)), DRAWN).tape
    assert (image.tape.track(), image.tape.state, image.tape.calls) == (want.track(), want.state, want.calls)
    assert [call.name for call in image.tape.calls] == names


@pytest.mark.parametrize("name", sorted(name for name, one in FUNCTIONALS.items() if one.prepare is not None))
def test_functionals_in_two_steps_give_the_same_ops_as_in_one(name: str) -> None:
    values: dict[str, Any] = {
        "top": 2,
        "left": 3,
        "height": 20,
        "width": 21,
        "angle": 12.0,
        "translate": [1, 2],
        "scale": 1.2,
        "shear": [3.0, 0.0],
        "coefficients": [1.0, 0.1, 2.0, 0.0, 1.1, 3.0, 0.001, 0.0],
        "sigma": [0.7, 0.9],
    }
    settings: dict[str, dict[str, Any]] = {
        "resized_crop": {"size": [9, 9]},
        "gaussian_blur": {"kernel_size": [3, 5]},
        "perspective": {"startpoints": None, "endpoints": None},
    }
    functional = FUNCTIONALS[name]
    assert functional.prepare is not None
    drawn = {argument: values.get(argument, 4 if argument == "bits" else 0.3) for argument in functional.drawn}
    given = settings.get(name, {})
    for state in (State((3, 40, 50), torch.uint8), State((1, 40, 50), torch.float32)):
        encode = functional.prepare(state, **given)
        for _ in range(2):
            assert encode(*drawn.values()) == functional.encode(state, **given, **drawn)


CALLS: list[Any] = []


def _once(image: Any, drawn: dict[str, Any]) -> Any:
    CALLS.append(image)
    return F.invert(image) if len(CALLS) == 1 else image


NOT_DERIVED: dict[str, Body] = {
    "asks whether a value is true": lambda image, drawn: F.invert(image) if drawn["angle"] else image,
    "compares a value": lambda image, drawn: F.invert(image) if drawn["angle"] > 3 else image,
    "compares two": lambda image, drawn: F.invert(image) if drawn["angle"] == drawn["size"] else image,
    "computes with a value": lambda image, drawn: F.rotate(image, -drawn["angle"]),
    "takes a value apart": lambda image, drawn: F.crop(image, *drawn["box"]),
    "takes a part of a value": lambda image, drawn: F.center_crop(image, drawn["size"][0]),
    "puts a value into a list": lambda image, drawn: F.affine(image, 0, [0, 0], 1.0, [drawn["angle"], 0.0]),
    "uses a value as a key": lambda image, drawn: F.rotate(image, {10.0: 3.0}[drawn["angle"]]),
    "asks for the shape": lambda image, drawn: F.center_crop(image, image.shape[-1] // 2),
    "asks for the size": lambda image, drawn: F.center_crop(image, F.get_size(image)[0] // 2),
    "gives another type": lambda image, drawn: F.to_image(image),
    "gives several": lambda image, drawn: F.five_crop(image, [9, 9])[0],
    "gives a new image": lambda image, drawn: stand_in(pixels(3)),
    "draws": lambda image, drawn: F.rotate(image, float(torch.rand(()))),
    "draws noise": lambda image, drawn: F.gaussian_noise(F.to_dtype(image, torch.float32)),
    "writes into the image": lambda image, drawn: F.normalize(F.invert(image), [0.5] * 3, [0.5] * 3, inplace=True),
    "holds a tensor": lambda image, drawn: F.normalize(image, [torch.tensor(0.5)] * 3, [0.5] * 3),
    "does something else the second time": _once,
}


@pytest.mark.parametrize("name", NOT_DERIVED)
def test_bodies_that_do_more_than_pass_values_on(name: str) -> None:
    body = NOT_DERIVED[name]
    image = stand_in(floats(0))
    made = body(image, DRAWN)
    kept, raised = randomness.state(), NotRecordable.raised
    assert templates_of(body, image, DRAWN, made) is None
    assert randomness.moved(kept, randomness.state()) is None
    assert NotRecordable.raised == raised
    assert session.dictation is None


READS: list[Callable[[Any], Any]] = [
    *(bool, float, int, len, list, abs, hash, math.floor, round),
    *(lambda x: -x, lambda x: x + 1, lambda x: 2 * x, lambda x: 1 - x, lambda x: x**2, lambda x: x // 2),
    *(lambda x: x == 1, lambda x: x != 1, lambda x: x < 1, lambda x: 1 in x, lambda x: x[0], lambda x: [0][x]),
    *(lambda x: x(), lambda x: x.shape, lambda x: {x: 1}, lambda x: f"{x:.2f}"),
]


@pytest.mark.parametrize("look", READS)
def test_a_token_cannot_be_read(look: Callable[[Any], Any]) -> None:
    with pytest.raises((LookedAt, TypeError, AttributeError)):
        look(Token("angle"))


def test_facts() -> None:
    assert fact(True) is True and fact(False) is False
    assert fact(torch.tensor([2, 0, 1])) == (2, 0, 1)
    for value in (None, 1, 0.5, "x", [1, 2], torch.rand(2), torch.zeros(2, 2, dtype=torch.int64)):
        assert fact(value) is None


def test_the_number_of_cached_states_is_limited() -> None:
    made = found(lambda image, drawn: F.invert(image))
    assert made is not None
    (template,) = made
    for height in range(1, 2 * drawing._STATES):
        template.onto(Tape(None, State((3, height, 9), torch.uint8)), {})
        assert template._encoder.cache_info().currsize <= drawing._STATES

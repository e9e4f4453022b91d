"""Bodies whose calls can be derived before their values are drawn, and bodies whose calls cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import NotRecordable
from pipediag.replay.ops.op import State
from pipediag.replay.ops.table import FUNCTIONALS
from pipediag.replay.record import drawing
from pipediag.replay.record.drawing import LookedAt, Template, Token, fact, templates_of
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.images import stand_in
from pipediag.replay.record.tape import Tape, session
from pipediag.usercode import randomness

from ...remedy.sameness import floats, pixels

Body = Callable[[Any, dict[str, Any]], Any]

DRAWN: dict[str, Any] = {
    "angle": 10.0,
    "size": [20, 30],
    "flip": True,
    "none": None,
    "order": torch.tensor([1, 0]),
    "box": (1, 2, 9, 8),
}


@pytest.fixture(autouse=True)
def while_recording() -> Iterator[None]:
    with recording():
        yield


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
    drawn = {argument: values.get(argument, 1.3) for argument in functional.drawn}
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

"""Recorded calls of Pillow, replayed for a batch, equal Pillow itself bit by bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from pipediag.replay.ops.families import pillow_warp
from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.pack.packing import pack_ops
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.pictures import RecordingPicture
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.run.replay import replay_on

from ...remedy.sameness import picture
from .. import batches

Call = Callable[[Any], Any]

property_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
SIDES = st.integers(1, 40) | st.integers(41, 120)
SIZES = st.tuples(SIDES, SIDES)
RESAMPLING = st.sampled_from([PIL.Image.Resampling[name] for name in ("NEAREST", "BILINEAR", "BICUBIC")])
TORCHVISIONS = st.sampled_from([InterpolationMode[name] for name in ("NEAREST", "BILINEAR", "BICUBIC")])
MODULES = st.sampled_from([older, F])
ANGLES = st.floats(-400, 400) | st.integers(-4, 4).map(lambda turns: 90.0 * turns)
LEVELS = st.integers(0, 255)


images = partial(batches.images, (torch.uint8,), sides=SIDES, kinds=batches.GREYS)


def colours(channels: int) -> st.SearchStrategy[Any]:
    """What Pillow takes for a colour."""
    levels = st.integers(-20, 300)
    one = LEVELS | st.just(None) | st.sampled_from(["red", "#123456", "white"])
    return one | (st.tuples(levels, levels, levels) if channels == 3 else st.tuples(levels))


def fills(channels: int) -> st.SearchStrategy[Any]:
    """What torchvision takes for the fill of a picture."""
    levels = st.floats(0, 255) | LEVELS
    return levels | st.just(None) | st.lists(levels, min_size=channels, max_size=channels) | levels.map(lambda v: [v])


def check(x: Tensor, calls: list[Call], device: torch.device) -> None:
    """Check calls, one for each sample."""
    pictures = [to_pil_image(image) for image in x]
    expected = [call(picture) for call, picture in zip(calls, pictures, strict=True)]
    with recording():
        recorded = [call(stand_in(picture)) for call, picture in zip(calls, pictures, strict=True)]
    for mine, want in zip(recorded, expected, strict=True):
        assert isinstance(mine, RecordingPicture) and (mine.mode, mine.size) == (want.mode, want.size)
        assert pil_to_tensor(mine.tape.pixels()).equal(pil_to_tensor(want))
    wanted = [pil_to_tensor(want) for want in expected]
    together = [range(len(x))] if len({want.shape for want in wanted}) == 1 else [[n] for n in range(len(x))]
    for samples in together:
        packed = pack_ops([recorded[n].tape.track() for n in samples], tuple(x.shape[1:]), x.dtype, False)
        made = replay_on(packed, x[list(samples)].to(device))
        assert made.cpu().equal(torch.stack([wanted[n] for n in samples]))


# ---- warps


@st.composite
def matrices(draw: st.DrawFn) -> list[float]:
    """Rotations, shears, scales and shifts, and simple numbers that put positions on the edges of pixels."""
    if draw(st.booleans()):
        simple = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 1.25]) | st.floats(-2, 2)
        a, b, d, e = (draw(simple) for _ in range(4))
    else:
        angle, scale, shear = draw(st.floats(-4, 4)), draw(st.floats(0.1, 4)), draw(st.floats(-1, 1))
        a, b = scale * math.cos(angle), scale * (math.sin(angle) + shear)
        d, e = -scale * math.sin(angle), scale * math.cos(angle)
    if draw(st.booleans()):
        b = d = 0.0
    offset = st.integers(-60, 60).map(float) | st.floats(-300, 300)
    return [a, b, draw(offset), d, e, draw(offset)]


@property_test
@given(data=st.data(), x=images(), resample=RESAMPLING)
def test_affine(device: torch.device, data: st.DataObject, x: Tensor, resample: Any) -> None:
    size = data.draw(SIZES | st.just(tuple(x.shape[:1:-1])))
    fill = data.draw(colours(x.shape[1]))
    far = st.just(0.0) | st.floats(32600, 32800)

    def call(matrix: list[float]) -> Call:
        method = PIL.Image.Transform.AFFINE
        return lambda image: image.transform(size, method, matrix, resample, fillcolor=fill)

    drawn = [data.draw(matrices()) for _ in x]
    for matrix in drawn:
        matrix[data.draw(st.sampled_from([2, 5]))] += data.draw(far) * data.draw(st.sampled_from([-1, 1]))
    turned = [resample == PIL.Image.Resampling.NEAREST and (b or d) for _, b, _, d, _, _ in drawn]
    refused = [turns and leaves_fixed_point(matrix, size) for turns, matrix in zip(turned, drawn, strict=True)]
    for n in range(len(x)):
        if refused[n]:
            with recording(), pytest.raises(NotRecordable, match="fixed-point"):
                call(drawn[n])(stand_in(to_pil_image(x[n])))
    kept = [n for n in range(len(x)) if not refused[n]]
    if kept:
        check(x[kept], [call(drawn[n]) for n in kept], device)


def leaves_fixed_point(matrix: list[float], size: tuple[int, int]) -> bool:
    """Return whether 16.16 cannot hold the position from which a corner of the result is taken: Pillow's rule."""
    a, b, c, d, e, f = matrix
    corners = [(x, y) for x in (0, size[0]) for y in (0, size[1])]
    return max(abs(at) for x, y in corners for at in (x * a + y * b + c, x * d + y * e + f)) >= 2**15


@property_test
@given(data=st.data(), x=images(), resample=RESAMPLING)
def test_perspective(device: torch.device, data: st.DataObject, x: Tensor, resample: Any) -> None:
    size, fill = data.draw(SIZES), data.draw(colours(x.shape[1]))
    bend = st.floats(-0.05, 0.05) | st.just(0.0)

    def call(coefficients: list[float]) -> Call:
        method = PIL.Image.Transform.PERSPECTIVE
        return lambda image: image.transform(size, method, coefficients, resample, fillcolor=fill)

    check(x, [call([*data.draw(matrices()), data.draw(bend), data.draw(bend)]) for _ in x], device)


@property_test
@given(data=st.data(), x=images(), resample=RESAMPLING, expand=st.booleans())
def test_rotate(device: torch.device, data: st.DataObject, x: Tensor, resample: Any, expand: bool) -> None:
    places = st.just(None) | st.tuples(st.floats(-9, 50), st.floats(-9, 50))
    options = {"center": data.draw(places), "translate": data.draw(places), "fillcolor": data.draw(colours(x.shape[1]))}

    def call(angle: float) -> Call:
        return lambda image: image.rotate(angle, resample, expand, **options)

    check(x, [call(data.draw(ANGLES)) for _ in x], device)


@property_test
@given(data=st.data(), x=images(), module=MODULES, how=TORCHVISIONS)
def test_warps_of_torchvision(device: torch.device, data: st.DataObject, x: Tensor, module: Any, how: Any) -> None:
    height, width = x.shape[2:]
    fill = data.draw(fills(x.shape[1]))
    center = data.draw(st.just(None) | st.lists(st.floats(-9, 50), min_size=2, max_size=2))
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    what = data.draw(st.sampled_from(["affine", "rotate", "perspective"] if min(height, width) > 3 else ["affine"]))

    def call() -> Call:
        if what == "rotate":
            angle, expand = data.draw(ANGLES), data.draw(st.booleans())
            return lambda image: module.rotate(image, angle, how, expand, center, fill)
        if what == "perspective":
            near = st.integers(0, 1)
            moved = [[abs(a - data.draw(near)), abs(b - data.draw(near))] for a, b in corners]
            return lambda image: module.perspective(image, corners, moved, how, fill)
        shift = data.draw(st.lists(st.integers(-50, 50), min_size=2, max_size=2))
        shear = data.draw(st.lists(st.floats(-60, 60), min_size=2, max_size=2))
        angle, scale = data.draw(ANGLES), data.draw(st.floats(0.2, 4))
        return lambda image: module.affine(image, angle, shift, scale, shear, how, fill, center)

    check(x, [call() for _ in x], device)


def test_positions_that_fixed_point_cannot_hold_are_refused(device: torch.device) -> None:
    """The lower corner of the pixel is taken from offset + 3, and 32768 is the first position that does not fit."""

    def call(offset: float) -> Call:
        return lambda image: image.transform((1, 1), PIL.Image.Transform.AFFINE, (3, 3, 0, -0.0, 3, offset))

    x = torch.full((1, 1, 1, 1), 9, dtype=torch.uint8)
    check(x, [call(32764)], device)
    with recording(), pytest.raises(NotRecordable, match="fixed-point"):
        call(32765)(stand_in(to_pil_image(x[0])))


def test_large_batches_are_interpolated_in_parts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_warp, "_PIXELS_AT_ONCE", 1)
    x = torch.randint(0, 256, (3, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    check(x, [lambda image, k=k: image.rotate(9 * k + 1, PIL.Image.Resampling.BICUBIC) for k in range(3)], device)


# ---- whole pixels


def _something_remains(image: PIL.Image.Image, size: tuple[int, int]) -> bool:
    """Return False for a picture so narrow that it shrinks to nothing, which some versions of Pillow refuse."""
    try:
        return min(ImageOps.contain(image, size).size) > 0
    except ValueError:
        return False


@property_test
@given(data=st.data(), x=images())
def test_moved_pixels(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    height, width = x.shape[2:]
    border, shares = st.integers(0, 9), st.floats(0, 1) | st.sampled_from([-1.0, 0.5, 2.0])
    corner, side = st.integers(-9, 50) | st.floats(-9, 50), st.integers(1, 60)
    fill = data.draw(colours(x.shape[1]).filter(lambda colour: colour is not None))

    def turned(method: Any) -> Call:
        return lambda image: image.transpose(method)

    def cropped(left: float, top: float, across: int, down: int) -> Call:
        return lambda image: image.crop((left, top, left + across, top + down))

    def expanded(*borders: int) -> Call:
        return lambda image: ImageOps.expand(image, borders, fill)

    def letterboxed(size: tuple[int, int], shares: tuple[float, float]) -> Call:
        return lambda image: ImageOps.pad(image, size, PIL.Image.Resampling.BILINEAR, fill, shares)

    def scaled(size: tuple[int, int], box: tuple[int, ...] | None) -> Call:
        return lambda image: image.resize(size, PIL.Image.Resampling.NEAREST, box)

    across, down = data.draw(side), data.draw(side)
    borders = [data.draw(border) for _ in range(4)]
    size = data.draw(SIZES)
    part = (data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1)), width, height)
    what = data.draw(st.sampled_from(["transpose", "crop", "expand", "pad", "resize"]))
    draws: dict[str, Callable[[], Call]] = {
        "transpose": lambda: turned(data.draw(st.sampled_from(list(PIL.Image.Transpose)))),
        "crop": lambda: cropped(data.draw(corner), data.draw(corner), across, down),
        "expand": lambda: expanded(*borders),
        "pad": lambda: letterboxed(size, (data.draw(shares), data.draw(shares))),
        "resize": lambda: scaled(size, data.draw(st.sampled_from([None, part]))),
    }
    assume(what != "pad" or _something_remains(to_pil_image(x[0]), size))
    check(x, [draws[what]() for _ in x], device)


@property_test
@given(data=st.data(), x=images(), module=MODULES, mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
def test_pad(device: torch.device, data: st.DataObject, x: Tensor, module: Any, mode: str) -> None:
    most = {"reflect": -1, "symmetric": 0}.get(mode, 40)
    down, across = (side + most for side in x.shape[2:])
    padding = [data.draw(st.integers(0, limit)) for limit in (across, down, across, down)]
    fill = data.draw(fills(x.shape[1])) if mode == "constant" else None
    check(x, [lambda image: module.pad(image, padding, fill, mode)] * len(x), device)


@pytest.mark.parametrize(("mode", "padding"), [("reflect", 50), ("symmetric", 51), ("edge", [-1, 0, 0, 0])])
def test_pads_of_more_than_the_picture_are_refused(mode: str, padding: Any) -> None:
    with recording(), pytest.raises(NotRecordable, match=mode):
        older.pad(stand_in(picture(0).crop((0, 0, 50, 50))), padding, padding_mode=mode)


@property_test
@given(x=images(), size=SIZES, filter=st.sampled_from(list(PIL.Image.Resampling)[:6]))
def test_resize(device: torch.device, x: Tensor, size: tuple[int, int], filter: Any) -> None:
    check(x, [lambda image: image.resize(size, filter)] * len(x), device)


# ---- colours and filters


@property_test
@given(data=st.data(), x=images(), module=MODULES)
def test_tables(device: torch.device, data: st.DataObject, x: Tensor, module: Any) -> None:
    def call() -> Call:
        factor, threshold = data.draw(st.floats(0, 4)), data.draw(st.integers(0, 256) | st.floats(0, 255))
        bits = data.draw(st.integers(1, 8))
        levels = range(-9, 256 * x.shape[1] - 9)
        table = random.Random(data.draw(st.integers(0, 2**32))).sample(levels, len(levels))
        calls: list[Call] = [
            lambda image: image.point(table),
            lambda image: image.point(lambda level: level * factor - threshold),
            lambda image: ImageOps.solarize(image, threshold),
            lambda image: ImageOps.posterize(image, bits),
            ImageOps.invert,
            lambda image: module.adjust_gamma(image, factor, 1.0 + factor / 9),
            lambda image: module.solarize(image, threshold),
            lambda image: module.posterize(image, bits),
            module.invert,
        ]
        return data.draw(st.sampled_from(calls))

    check(x, [call() for _ in x], device)


RADII = st.floats(0, 5) | st.floats(5, 90) | st.integers(0, 4)


@property_test
@given(data=st.data(), x=images(), filter=st.sampled_from([ImageFilter.GaussianBlur, ImageFilter.BoxBlur]))
def test_blurs(device: torch.device, data: st.DataObject, x: Tensor, filter: Any) -> None:
    def call() -> Call:
        radius = data.draw(RADII | st.tuples(RADII, RADII))
        return lambda image: image.filter(filter(radius))

    check(x, [call() for _ in x], device)


@property_test
@given(data=st.data(), x=images())
def test_functions_of_colours(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    factors = st.floats(-1, 4) | st.sampled_from([0.0, 1.0])

    def enhanced(enhancer: Any, factor: float) -> Call:
        return lambda image: enhancer(image).enhance(factor)

    enhancers = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, ImageEnhance.Sharpness]
    others: list[Call] = [
        lambda image: ImageOps.autocontrast(image),
        lambda image: ImageOps.equalize(image),
        lambda image: image.filter(ImageFilter.SMOOTH),
        lambda image: image.convert("L").convert("RGB"),
        ImageOps.grayscale,
        ImageOps.mirror,
        ImageOps.flip,
    ]
    if data.draw(st.booleans()):
        calls = [enhanced(data.draw(st.sampled_from(enhancers)), data.draw(factors)) for _ in x]
    else:
        calls = [data.draw(st.sampled_from(others))] * len(x)
    check(x, calls, device)


# ---- refusals


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (np.asarray, "a numpy array"),
        (lambda x: x.filter(ImageFilter.MedianFilter), "MedianFilter"),
        (lambda x: x.filter(ImageFilter.Kernel((3, 3), [1] * 9)), "Kernel"),
        (lambda x: x.filter(ImageFilter.GaussianBlur(-1)), "negative"),
        (lambda x: x.convert("HSV"), "HSV"),
        (lambda x: x.convert("RGB", [1] * 12), "RGB"),
        (lambda x: x.resize((9, 9), 2, (1, 1, 20, 20)), "box inside"),
        (lambda x: x.resize((9, 9), 2, reducing_gap=2.0), "reducing_gap"),
        (lambda x: x.resize((9, 9), 99), "filter 99"),
        (lambda x: ImageOps.fit(x, (9, 30), centering=(0.3, 0.3)), "box inside"),
        (lambda x: x.crop((3, 3, 3, 9)), "nothing"),
        (lambda x: x.transform((9, 9), PIL.Image.Transform.QUAD, [0, 0, 0, 9, 9, 9, 9, 0]), "QUAD"),
        (lambda x: x.transform((9, 9), PIL.Image.Transform.MESH, []), "MESH"),
        (lambda x: x.rotate(9, PIL.Image.Resampling.LANCZOS), "lanczos"),
        (lambda x: x.point([0] * 256, "1"), "another mode"),
        (lambda x: ImageOps.autocontrast(x, cutoff=2), "autocontrast"),
        (lambda x: ImageEnhance._Enhance.enhance(type("Mine", (ImageEnhance.Color,), {})(x), 0.5), "Mine"),
    ],
)
def test_refused(call: Call, why: str) -> None:
    with recording(), pytest.raises((NotRecordable, TypeError), match=why):
        call(stand_in(picture(0)))


def test_a_kept_recording_picture_is_a_picture_after_the_recording() -> None:
    with recording():
        kept = stand_in(picture(0)).rotate(9)
    assert kept.rotate(3) == picture(0).rotate(9).rotate(3)
    assert kept.convert("HSV") == picture(0).rotate(9).convert("HSV")

"""Crops and resizing of a batch against torchvision's kernels for one image."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as nn
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from pipediag.replay.ops.families import cropping, resizing

from .. import batches
from ..batches import one_by_one, property_settings
from ..waiting import synchronising_forbidden

property_test = property_settings(80)

PIXELS = st.integers(1, 40) | st.integers(41, 90)
#: Largest difference that other roundings of weights and sums make in an image of the range [0, 1].
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Way(NamedTuple):
    """How to resize."""

    interpolation: str
    antialias: bool

    def for_torchvision(self) -> dict[str, Any]:
        return {"interpolation": InterpolationMode(self.interpolation), "antialias": self.antialias}

    def for_torch(self) -> dict[str, Any]:
        return {"mode": self.interpolation, "antialias": self.antialias, "align_corners": False}

    def on_this_machine(self) -> dict[str, Any]:
        """The arguments that give torchvision's pixels here."""
        fixed_point = self.interpolation == "bicubic" or resizing.uint8_in_fixed_point()
        return {**self._asdict(), "fixed_point": fixed_point}


SMOOTH = st.builds(Way, st.sampled_from(["bilinear", "bicubic"]), st.booleans())
WAYS = SMOOTH | st.builds(Way, st.sampled_from(["nearest", "nearest-exact"]), st.booleans())
# ATen's CPU kernels fail, or repeat the first row, if the result is one pixel wide.
SIZES = st.tuples(st.integers(1, 70), st.integers(2, 70)) | st.integers(2, 70).map(lambda side: (side, side))


images = partial(batches.images, sides=PIXELS, kinds=batches.GREYS)


def inside(data: st.DataObject, x: Tensor) -> list[tuple[int, int, int, int]]:
    """For each sample a box within it: top, left, height and width."""
    boxes = []
    for _ in x:
        height, width = (data.draw(st.integers(1, side)) for side in x.shape[2:])
        top, left = data.draw(st.integers(0, x.shape[2] - height)), data.draw(st.integers(0, x.shape[3] - width))
        boxes.append((top, left, height, width))
    return boxes


def columns(boxes: list[tuple[int, int, int, int]], device: torch.device) -> list[Tensor]:
    return list(torch.tensor(boxes, dtype=torch.float64).to(device).unbind(1))


def whole(x: Tensor, device: torch.device) -> list[Tensor]:
    """The box of the whole image, for each sample."""
    return columns([(0, 0, x.shape[2], x.shape[3])] * len(x), device)


def assert_same(result: Tensor, expected: Tensor, exact: bool) -> None:
    assert result.dtype == expected.dtype
    tolerance = 0.0 if exact else ROUNDING[expected.dtype]
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=tolerance)


def exactly(x: Tensor, way: Way) -> bool:
    picked = way.interpolation.startswith("nearest")
    return picked or (x.dtype == torch.uint8 and way.on_this_machine()["fixed_point"])


@property_test
@given(data=st.data(), x=images())
def test_crop(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    height, width = data.draw(PIXELS), data.draw(PIXELS)
    top = [data.draw(st.integers(-height, x.shape[2] + 3)) for _ in x]
    left = [data.draw(st.integers(-width, x.shape[3] + 3)) for _ in x]
    expected = one_by_one(x, lambda image, i: tv.crop_image(image, top[i], left[i], height, width))
    places = (torch.tensor(values, dtype=torch.float64, device=device) for values in (top, left))
    assert_same(cropping.cropped(x.to(device), *places, height=height, width=width), expected, exact=True)


def test_a_crop_outside_the_image_is_black(device: torch.device) -> None:
    x = torch.ones(1, 1, 4, 5, device=device)
    place = torch.tensor([-9], device=device)
    assert torch.equal(cropping.cropped(x, place, place, height=2, width=3), torch.zeros(1, 1, 2, 3, device=device))


@property_test
@given(data=st.data(), x=images(), size=SIZES, way=WAYS)
def test_resized_crop(device: torch.device, data: st.DataObject, x: Tensor, size: tuple[int, int], way: Way) -> None:
    boxes = inside(data, x)
    options = way.for_torchvision()
    expected = one_by_one(x, lambda image, i: tv.resized_crop_image(image, *boxes[i], size=[*size], **options))
    result = resizing.resized_crops(x.to(device), *columns(boxes, device), size=size, **way.on_this_machine())
    if x.dtype == torch.uint8 and not exactly(x, way):
        assert (result.cpu().int() - expected.int()).abs().max() <= 1
    else:
        assert_same(result, expected, exactly(x, way))


@property_test
@given(data=st.data(), x=images((torch.uint8,)), size=SIZES, way=SMOOTH)
def test_uint8_in_fixed_point_is_atens_result_on_any_machine(
    device: torch.device, data: st.DataObject, x: Tensor, size: tuple[int, int], way: Way
) -> None:
    boxes = inside(data, x)

    def native(image: Tensor, i: int) -> Tensor:
        return nn.interpolate(tv.crop_image(image, *boxes[i])[None].contiguous(), size, **way.for_torch())[0]

    result = resizing.resized_crops(x.to(device), *columns(boxes, device), size=size, **way._asdict())
    assert_same(result, one_by_one(x, native), exact=True)


@property_test
@given(data=st.data(), x=images((torch.uint8,)), size=SIZES, way=SMOOTH)
def test_uint8_without_fixed_point_is_rounded_once(
    device: torch.device, data: st.DataObject, x: Tensor, size: tuple[int, int], way: Way
) -> None:
    boxes = inside(data, x)
    expected = one_by_one(
        x.float(), lambda image, i: tv.resized_crop_image(image, *boxes[i], size=[*size], **way.for_torchvision())
    ).clamp(0, 255)
    options = {**way._asdict(), "fixed_point": False}
    result = resizing.resized_crops(x.to(device), *columns(boxes, device), size=size, **options)
    torch.testing.assert_close(result.cpu().float(), expected, rtol=0, atol=0.5 + 1e-2)


@property_test
@given(x=images(), size=SIZES, way=WAYS)
def test_resize(device: torch.device, x: Tensor, size: tuple[int, int], way: Way) -> None:
    expected = one_by_one(x, lambda image, _: tv.resize_image(image, [*size], **way.for_torchvision()))
    result = resizing.resized_crops(x.to(device), *whole(x, device), size=size, **way.on_this_machine())
    if x.dtype == torch.uint8 and not exactly(x, way):
        assert (result.cpu().int() - expected.int()).abs().max() <= 1
    else:
        assert_same(result, expected, exactly(x, way))


@property_test
@given(data=st.data(), x=images(), way=WAYS)
def test_boxes_of_the_results_size_are_crops(device: torch.device, data: st.DataObject, x: Tensor, way: Way) -> None:
    height, width = (data.draw(st.integers(1, side)) for side in x.shape[2:])
    boxes = [
        (data.draw(st.integers(0, x.shape[2] - height)), data.draw(st.integers(0, x.shape[3] - width)), height, width)
        for _ in x
    ]
    expected = one_by_one(x, lambda image, i: tv.crop_image(image, *boxes[i]))
    options = way.on_this_machine()
    result = resizing.resized_crops(x.to(device), *columns(boxes, device), size=(height, width), **options)
    assert_same(result, expected, exact=True)


@property_test
@given(extents=st.lists(st.integers(1, 4000), min_size=1, max_size=20), out=st.integers(2, 300), exact=st.booleans())
def test_nearest_pixels_of_long_boxes(extents: list[int], out: int, exact: bool) -> None:
    interpolation = "nearest-exact" if exact else "nearest"
    extent = torch.tensor(extents, dtype=torch.float64)
    x = torch.zeros(1, 1, 1, 1)
    found = resizing._nearest_pixels(x, torch.ones_like(extent), extent, (1, out), interpolation)[1]
    for length, pixels in zip(extents, found, strict=True):
        positions = torch.arange(length, dtype=torch.float32)[None, None, None]
        assert torch.equal(nn.interpolate(positions, (1, out), mode=interpolation).flatten(), pixels.float())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_photographs_shrunk_a_lot(device: torch.device, interpolation: str, antialias: bool) -> None:
    way = Way(interpolation, antialias)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 3, 480, 640), dtype=torch.uint8, generator=generator)
    boxes = [(3, 5, 470, 600), (100, 90, 31, 333)]
    result = resizing.resized_crops(x.to(device), *columns(boxes, device), size=(48, 64), **way._asdict())
    cut = [tv.crop_image(image, *box)[None].contiguous() for image, box in zip(x, boxes, strict=True)]
    expected = torch.cat([nn.interpolate(image, (48, 64), **way.for_torch()) for image in cut])
    assert_same(result, expected, exact=True)


def test_uint8_is_resized_as_by_torchvision() -> None:
    """The image that decides between the two ways must come out differently."""
    ramp = torch.arange(0, 250, 5, dtype=torch.uint8).view(1, 1, 5, 10)
    box, options = whole(ramp, torch.device("cpu")), Way("bilinear", True)._asdict()
    ways = [resizing.resized_crops(ramp, *box, size=(3, 7), fixed_point=fixed, **options) for fixed in (True, False)]
    assert not torch.equal(*ways)
    assert torch.equal(tv.resize_image(ramp, [3, 7], antialias=True), ways[not resizing.uint8_in_fixed_point()])


def test_booleans_are_not_interpolated() -> None:
    x = torch.zeros(1, 3, 4, 5, dtype=torch.bool)
    with pytest.raises(TypeError, match="truth values"):
        resizing.resized_crops(x, *torch.ones(4, 1), size=(2, 2), interpolation="bilinear", antialias=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.bool])
def test_masks_of_any_dtype_are_picked(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randint(0, 200, (3, 1, 9, 11), generator=torch.Generator().manual_seed(0)).to(dtype)
    boxes = [(0, 0, 9, 11), (2, 1, 4, 7), (1, 3, 6, 5)]
    expected = one_by_one(
        x, lambda mask, i: tv.resized_crop_image(mask, *boxes[i], size=[6, 13], interpolation=InterpolationMode.NEAREST)
    )
    result = resizing.resized_crops(
        x.to(device), *columns(boxes, device), size=(6, 13), interpolation="nearest", antialias=False
    )
    assert torch.equal(result.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_nothing_waits_for_the_device(dtype: torch.dtype, interpolation: Any, antialias: bool) -> None:
    x = torch.zeros(2, 3, 8, 9, dtype=dtype, device="cuda")
    one = torch.ones(2, dtype=torch.float64, device="cuda")
    options = {"interpolation": interpolation, "antialias": antialias}
    with synchronising_forbidden():
        cropping.cropped(x, one, one, height=5, width=6)
        for size in ((4, 4), (5, 4)):
            resizing.resized_crops(x, one, one, one, one, size=size, **options)

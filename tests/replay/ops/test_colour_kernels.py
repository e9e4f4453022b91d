"""Colour operations and conversions of a batch against torchvision's kernels for one image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import functional as tv

from pipediag.replay.ops.families import colour, pointwise
from pipediag.replay.ops.op import state_of

from .. import batches
from ..batches import FLOATS, fuses_multiply_add, parameters, property_settings, with_numbers

property_test = property_settings(30)

#: Largest difference that one rounding makes in an image of the range [0, 1].
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


images = partial(batches.images, kinds=("noise", "grey", "flat", "black and white", "beyond", "few values"))


def on_device(
    device: torch.device, kernel: Callable[..., Tensor], x: Tensor, *numbers: Tensor, **static: Any
) -> Tensor:
    """Return the batched kernel's result, after checking that its input has not changed."""
    given_images = x.to(device)
    result = kernel(given_images, *(values.to(device) for values in numbers), **static)
    assert torch.equal(given_images.nan_to_num(), x.to(device).nan_to_num())
    assert result.data_ptr() != given_images.data_ptr()
    return result.cpu()


def assert_same(result: Tensor, expected: Tensor) -> None:
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def assert_rounded(result: Tensor, expected: Tensor, roundings: int = 1) -> None:
    assert result.dtype == expected.dtype
    atol = roundings * ROUNDING[expected.dtype]
    torch.testing.assert_close(result, expected, rtol=0, atol=atol, equal_nan=True)


def assert_blended(result: Tensor, expected: Tensor) -> None:
    """Check what torchvision adds with a fused multiply-add.

    For half precision it does not fuse everywhere: both products, of up to three times the range, are rounded then.
    """
    if expected.is_floating_point():
        assert_rounded(result, expected, roundings=2 if expected.dtype in (torch.float16, torch.bfloat16) else 1)
    elif fuses_multiply_add():
        assert_same(result, expected)
    else:
        assert (result.int() - expected.int()).abs().max() <= 1


# ---- factors


HUES = st.floats(-0.5, 0.5) | st.sampled_from([-0.5, -1e-12, 0.0, 0.5, 1 / 3])


@pytest.mark.parametrize(
    ("ours", "theirs", "numbers", "check"),
    [
        (colour.adjust_brightness, tv.adjust_brightness_image, st.floats(0, 3), assert_same),
        (colour.adjust_saturation, tv.adjust_saturation_image, st.floats(0, 3), assert_blended),
        (colour.adjust_hue, tv.adjust_hue_image, HUES, assert_same),
        (colour.posterize, lambda x, bits: tv.posterize_image(x, int(bits)), st.integers(0, 8), assert_same),
    ],
    ids=["brightness", "saturation", "hue", "posterize"],
)
@given(data=st.data(), x=images())
@property_test
def test_by_one_number(
    device: torch.device, ours: Any, theirs: Any, numbers: Any, check: Any, data: st.DataObject, x: Tensor
) -> None:
    number = parameters(data, x, numbers)
    check(on_device(device, ours, x, number), with_numbers(x, theirs, number))


@given(data=st.data(), x=images())
@property_test
def test_contrast(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    factor = parameters(data, x, st.floats(0, 3))
    result = on_device(device, colour.adjust_contrast, x, factor)
    expected = with_numbers(x, tv.adjust_contrast_image, factor)
    if x.is_floating_point():
        assert_rounded(result, expected)
        return
    # torch rounds twice in the last elements, which do not fill a vector: at most 15.
    difference = (result.int() - expected.int()).abs().flatten(1)
    assert difference.max() <= 1
    assert not fuses_multiply_add() or (difference > 0).sum(1).max() < 16


@given(data=st.data(), x=images(), gain=st.sampled_from([1.0, 0.7, 1.3]))
@property_test
def test_gamma(device: torch.device, data: st.DataObject, x: Tensor, gain: float) -> None:
    x = x.clamp(min=0)  # powers of negative numbers are NaN
    gamma = parameters(data, x, st.floats(0.05, 4) | st.sampled_from([0.0, 0.5, 1.0, 2.0]))
    result = on_device(device, colour.adjust_gamma, x, gamma, gain=gain)
    expected = with_numbers(x, lambda image, g: tv.adjust_gamma_image(image, g, gain), gamma)
    if x.is_floating_point():
        assert_rounded(result, expected)
        return
    exact = (x.double() / 255).pow(gamma[:, None, None, None]).mul(gain).clamp(0, 1) * 255.999
    undecided = (exact - exact.round()).abs() < 1e-3  # too close to a whole number for float32 to decide
    assert ((result == expected) | undecided).all()
    assert (result.double() - exact.floor()).abs().max() <= 1


@given(data=st.data(), x=images())
@property_test
def test_solarize(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    largest = 1.0 if x.is_floating_point() else 255.0
    threshold = parameters(data, x, st.floats(0, largest) | st.sampled_from([0.0, largest / 2, largest]))
    assert_same(on_device(device, colour.solarize, x, threshold), with_numbers(x, tv.solarize_image, threshold))


# ---- without numbers


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.invert, tv.invert_image),
        (colour.autocontrast, tv.autocontrast_image),
        (colour.equalize, tv.equalize_image),
    ],
)
@given(x=images())
@property_test
def test_whole_image(device: torch.device, ours: Any, theirs: Any, x: Tensor) -> None:
    if ours is colour.equalize and x.is_floating_point():
        x = x.clamp(0, 0.99)  # half precision rounds larger values to 256, which uint8 cannot hold
    assert_same(on_device(device, ours, x), with_numbers(x, theirs))


@given(x=images(), channels=st.sampled_from([1, 3]))
@property_test
def test_grayscale(device: torch.device, x: Tensor, channels: int) -> None:
    expected = with_numbers(x, lambda image: tv.rgb_to_grayscale_image(image, num_output_channels=channels))
    result = on_device(device, colour.grayscale, x, channels=channels)
    (assert_same if device.type == "cpu" else assert_blended)(result, expected)
    result.add_(1)  # no two pixels share memory


@given(data=st.data(), x=images(channels=(1, 2, 3, 4)))
@property_test
def test_permute_channels(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    orders = st.permutations(range(x.shape[1]))
    permutation = torch.tensor([data.draw(orders) for _ in x])
    expected = with_numbers(x, tv.permute_channels_image, permutation)
    assert_same(on_device(device, colour.permuted, x, permutation), expected)
    assert_same(on_device(device, colour.permuted, x, permutation.double()), expected)


def test_a_large_image_has_its_own_statistics(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (3, 3, 200, 300), dtype=torch.uint8, generator=generator)
    x[1] //= 4
    x[2] = x[2] // 4 + 150
    factor = torch.tensor([0.3, 1.4, 0.9], dtype=torch.float64)
    for ours, theirs, numbers in (
        (colour.adjust_contrast, tv.adjust_contrast_image, (factor,)),
        (colour.autocontrast, tv.autocontrast_image, ()),
        (colour.equalize, tv.equalize_image, ()),
    ):
        assert_blended(on_device(device, ours, x, *numbers), with_numbers(x, theirs, *numbers))


def test_impossible_channels_are_refused() -> None:
    x, factor = torch.zeros(1, 2, 4, 4), torch.ones(1, dtype=torch.float64)
    for kernel in (colour.adjust_brightness, colour.adjust_contrast, colour.adjust_saturation, colour.adjust_hue):
        with pytest.raises(TypeError, match="2 channels"):
            kernel(x, factor)
    with pytest.raises(TypeError, match="2 channels"):
        colour.autocontrast(x)
    with pytest.raises(TypeError, match="2 channels"):
        colour.grayscale(x, channels=1)
    with pytest.raises(ValueError, match="3 channels"):
        colour.permuted(x, torch.tensor([[0, 1, 2]]))


# ---- conversions

CONVERTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("target", CONVERTED)
@pytest.mark.parametrize("source", CONVERTED)
def test_to_dtype(device: torch.device, source: torch.dtype, target: torch.dtype, scale: bool) -> None:
    x = torch.arange(240).view(2, 3, 5, 8)
    x = (x.to(source) if not source.is_floating_point else (x / 240).to(source)).to(device)
    try:
        expected = tv.to_dtype_image(x, target, scale=scale)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            pointwise.converted(x, target, scale=scale)
    else:
        assert_same(pointwise.converted(x, target, scale=scale), expected)


@pytest.mark.parametrize("target", FLOATS)
def test_to_dtype_takes_all_values_of_uint8(device: torch.device, target: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert_same(pointwise.converted(x.to(device), target, scale=True).cpu(), tv.to_dtype_image(x, target, scale=True))
    expected = older.convert_image_dtype(x, target)
    assert_same(pointwise.converted_by_division(x.to(device), target).cpu(), expected)


@pytest.mark.parametrize("target", FLOATS)
def test_to_dtype_does_not_depend_on_the_default_dtype(target: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found, expected = pointwise.converted(x, target, scale=True), tv.to_dtype_image(x, target, scale=True)
    finally:
        torch.set_default_dtype(before)
    assert_same(found, expected)


@given(data=st.data(), x=images(dtypes=FLOATS))
@property_test
def test_normalize(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    count = data.draw(st.sampled_from([1, x.shape[1]]))
    mean = data.draw(st.lists(st.floats(-1, 1), min_size=count, max_size=count))
    std = data.draw(st.lists(st.floats(0.05, 2), min_size=count, max_size=count))
    assert_same(on_device(device, pointwise.normalized, x, mean=mean, std=std), tv.normalize_image(x, mean, std))


def test_normalize_with_one_number_for_all_channels() -> None:
    state = state_of(((3, 4, 4), torch.float32, False, False, True))
    (op,) = pointwise.normalize(state, 0.3, 0.7)
    x = torch.rand(2, 3, 4, 4)
    expected = older.normalize(x, 0.3, 0.7)  # type: ignore[arg-type]
    assert_same(pointwise.normalized(x, *op.kind.static), expected)


def test_normalize_refuses_what_torchvision_refuses() -> None:
    with pytest.raises(TypeError, match="uint8"):
        pointwise.normalized(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), [0.5], [0.5])
    with pytest.raises(ValueError, match="zero"):
        pointwise.normalized(torch.zeros(1, 1, 2, 2), [0.5], [0.0])

"""Blurring, sharpening and noise of a batch against torchvision's kernels for one image."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from pipediag.replay.ops.families import filters

from ..batches import fuses_multiply_add, images, parameters, property_settings, with_numbers

property_test = property_settings(30)

#: Largest difference that other roundings of a weighted mean make in an image of the range [0, 1].
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}


def assert_rounded(result: Tensor, expected: Tensor) -> None:
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=ROUNDING[expected.dtype])


# ---- blur


@given(data=st.data(), x=images(channels=(1, 2, 3)))
@property_test
def test_gaussian_blur(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    kernel_size = data.draw(st.tuples(*[st.sampled_from([1, 3, 5, 9, 23])] * 2))
    assume(kernel_size[0] // 2 < x.shape[-1] and kernel_size[1] // 2 < x.shape[-2])
    sigma = torch.stack([parameters(data, x, st.floats(0.1, 5)) for _ in range(2)], 1)

    def blurred(image: Tensor, deviations: list[float]) -> Tensor:
        return tv.gaussian_blur_image(image, list(kernel_size), deviations)

    result = filters.gaussian_blur(x.to(device), sigma.to(device), kernel_size=kernel_size).cpu()
    expected = with_numbers(x, blurred, sigma)
    if x.is_floating_point():
        assert_rounded(result, expected)
        return
    exact = with_numbers(x.double(), blurred, sigma)
    undecided = ((exact - exact.floor()) - 0.5).abs() < 1e-3  # too close to a half for float32 to decide
    assert result.dtype == torch.uint8
    assert ((result == expected) | undecided).all()
    assert (result.double() - exact).abs().max() < 0.501


def test_blurred_bytes_are_rarely_rounded_differently(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (8, 3, 96, 128), dtype=torch.uint8, generator=generator)
    sigma = torch.linspace(0.1, 2.0, 16, dtype=torch.float64).view(8, 2)
    result = filters.gaussian_blur(x.to(device), sigma.to(device), kernel_size=(23, 9)).cpu()
    expected = with_numbers(x, lambda image, deviations: tv.gaussian_blur_image(image, [23, 9], deviations), sigma)
    assert (result.int() - expected.int()).abs().max() <= 1
    assert (result != expected).double().mean() < 1e-3


def test_a_blur_wider_than_the_image_is_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError):
        filters.gaussian_blur(torch.zeros(1, 1, 4, 4).to(device), torch.ones(1, 2).to(device), kernel_size=(9, 9))


@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (2, 3, 16, 16)])
def test_blur_is_computed_in_full_under_autocast(device: torch.device, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device)
    sigma = torch.ones((shape[0], 2), dtype=torch.float64, device=device)
    alone = filters.gaussian_blur(x, sigma, kernel_size=(5, 5))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(filters.gaussian_blur(x, sigma, kernel_size=(5, 5)), alone)


# ---- sharpness


@given(data=st.data(), x=images())
@property_test
def test_sharpness(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    factor = parameters(data, x, st.floats(0, 3) | st.sampled_from([0.0, 1.0, 1.5, 2.0]))
    result = filters.adjust_sharpness(x.to(device), factor.to(device)).cpu()
    expected = with_numbers(x, tv.adjust_sharpness_image, factor)
    if x.is_floating_point():
        assert_rounded(result, expected)
    else:
        difference = (result.int() - expected.int()).abs()
        assert difference.max() <= (0 if fuses_multiply_add() else 1)


def test_sharpness_refuses_impossible_channels() -> None:
    with pytest.raises(TypeError, match="2 channels"):
        filters.adjust_sharpness(torch.zeros(1, 2, 4, 4), torch.ones(1, dtype=torch.float64))


def test_small_images_are_not_sharpened(device: torch.device) -> None:
    x = torch.rand(2, 3, 2, 9).to(device)
    result = filters.adjust_sharpness(x, torch.full((2,), 2.0, dtype=torch.float64, device=device))
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


# ---- noise


@given(
    x=images(),
    sigma=st.floats(0, 0.5),
    mean=st.floats(-0.5, 0.5) | st.just(0.0),
    clip=st.booleans(),
    seed=st.integers(0, 2**32),
)
@property_test
def test_gaussian_noise(device: torch.device, x: Tensor, sigma: float, mean: float, clip: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator).to(x.dtype if x.is_floating_point() else torch.float32)
    drawn = iter(noise)

    def noisy(image: Tensor) -> Tensor:
        with mock.patch.object(torch, "randn_like", lambda *_, **__: next(drawn)):
            return tv.gaussian_noise_image(image, mean, sigma, clip)

    try:
        expected = with_numbers(x, noisy)
    except ValueError:  # older versions of torchvision have no noise for uint8
        assert x.dtype == torch.uint8
        return
    result = filters.gaussian_noise(x.to(device), noise.to(device), sigma=sigma, mean=mean, clip=clip).cpu()
    if device.type != "cpu" and x.dtype in (torch.float16, torch.bfloat16):
        assert_rounded(result, expected)  # Python's numbers are not rounded to half precision before a sum there
    else:
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)

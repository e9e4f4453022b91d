"""Warps of a batch against torchvision's kernels for one image."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv
from torchvision.transforms.v2.functional import _geometry as torchvision_geometry

from pipediag.replay.ops.families import warp
from pipediag.replay.ops.families.warp import affine_numbers, perspective_numbers, rotate_numbers

from .. import batches
from ..batches import one_by_one, property_settings
from ..waiting import synchronising_forbidden

property_test = property_settings(80)

DTYPES = (torch.uint8, torch.float32, torch.float64)
PIXELS = st.integers(1, 24)
ANGLES = st.sampled_from([0, 45, 30.0, 90.0, -180]) | st.integers(-400, 400) | st.floats(-400, 400)


images = partial(batches.images, DTYPES, sides=PIXELS)


@st.composite
def looks(draw: st.DrawFn, x: Tensor) -> dict[str, Any]:
    """An interpolation and a fill: none, one number, or one for each channel."""
    white = 1.0 if x.is_floating_point() else 255.0
    grey = st.floats(0, white)
    fill = st.one_of(
        st.none(), st.sampled_from([0, 1, white]), grey, st.lists(grey, min_size=1, max_size=1), _each(grey, x.shape[1])
    )
    return {"interpolation": draw(st.sampled_from(["nearest", "bilinear"])), "fill": draw(fill)}


def _each(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=count, max_size=count)


def centres(x: Tensor) -> st.SearchStrategy[list[float] | None]:
    return st.none() | st.lists(st.integers(-3, 30) | st.floats(-3, 30), min_size=2, max_size=2)


def for_torchvision(look: dict[str, Any]) -> dict[str, Any]:
    return {**look, "interpolation": InterpolationMode(look["interpolation"])}


def numbers(rows: list[tuple[float, ...]], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, device=device)


def assert_same(result: Tensor, expected: Tensor, interpolation: str) -> None:
    """Check for equal bits on the CPU. Other devices have the same grids, but blend pixels with other roundings.

    For float64 images, they round grids once more than a CPU that fuses products and sums, so a position halfway
    between two pixels may get the other one.
    """
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    result, on_cpu = result.cpu(), result.device.type == "cpu"
    if not on_cpu and interpolation == "nearest" and expected.dtype == torch.float64:
        same = torch.isclose(result, expected, rtol=0, atol=0, equal_nan=True)
        assert same.double().mean() >= 0.9
        return
    tolerance = 0 if on_cpu or interpolation == "nearest" else 1e-5 if expected.is_floating_point() else 1
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance, equal_nan=True)


@property_test
@given(data=st.data(), x=images())
def test_affine(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    look, center = data.draw(looks(x)), data.draw(centres(x))
    drawn = [
        {
            "angle": data.draw(ANGLES),
            "translate": data.draw(_each(st.integers(-9, 9), 2)),
            "scale": data.draw(st.sampled_from([0.5, 1.0, 2.0]) | st.floats(0.2, 4)),
            "shear": data.draw(_each(st.floats(-40, 40), 2)),
            "center": center,
        }
        for _ in x
    ]
    expected = one_by_one(x, lambda image, i: tv.affine(image, **drawn[i], **for_torchvision(look)))
    matrix = numbers([affine_numbers(*x.shape[2:], **arguments) for arguments in drawn], device)
    assert_same(warp.affine(x.to(device), matrix, **look), expected, look["interpolation"])


@property_test
@given(data=st.data(), x=images())
def test_rotate(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    look, center = data.draw(looks(x)), data.draw(centres(x))
    angles = [data.draw(ANGLES.filter(lambda angle: angle % 90)) for _ in x]
    expected = one_by_one(x, lambda image, i: tv.rotate(image, angles[i], center=center, **for_torchvision(look)))
    described = [rotate_numbers(*x.shape[2:], angle, False, center) for angle in angles]
    assert {size for _, size in described} == {x.shape[2:]}
    result = warp.affine(x.to(device), numbers([matrix for matrix, _ in described], device), **look)
    assert_same(result, expected, look["interpolation"])


@property_test
@given(data=st.data(), x=images(), angle=ANGLES.filter(lambda angle: angle % 90))
def test_rotate_and_expand(device: torch.device, data: st.DataObject, x: Tensor, angle: float) -> None:
    look, center = data.draw(looks(x)), data.draw(centres(x))
    options = {"expand": True, "center": center, **for_torchvision(look)}
    expected = one_by_one(x, lambda image, _: tv.rotate(image, angle, **options))
    matrix, size = rotate_numbers(*x.shape[2:], angle, True, center)
    result = warp.affine(x.to(device), numbers([matrix] * len(x), device), size=size, **look)
    assert_same(result, expected, look["interpolation"])


@property_test
@given(x=images(), turns=st.integers(0, 3), fill=st.sampled_from([None, 1]))
def test_quarter_turns_differ_by_roundings_from_moved_pixels(
    device: torch.device, x: Tensor, turns: int, fill: float | None
) -> None:
    side = min(x.shape[2:])
    x = x[:, :, :side, :side]
    expected = one_by_one(x, lambda image, _: tv.rotate(image, 90 * turns))
    matrix = numbers([rotate_numbers(side, side, 90 * turns, False, None)[0]] * len(x), device)
    for interpolation in ("nearest", "bilinear"):
        result = warp.affine(x.to(device), matrix, interpolation=interpolation, fill=fill).cpu()
        exact = interpolation == "nearest" or x.dtype == torch.uint8
        torch.testing.assert_close(result, expected, rtol=0, atol=0 if exact else 1e-5)


@property_test
@given(height=st.integers(1, 700), width=st.integers(1, 700), angle=ANGLES, data=st.data())
def test_the_size_of_expanded_rotations(height: int, width: int, angle: float, data: st.DataObject) -> None:
    center = data.draw(st.none() | _each(st.floats(-700, 700), 2))
    assume(center is not None or angle % 90)
    expected = tv.rotate(torch.zeros(1, height, width), angle, expand=True, center=center).shape[1:]
    assert rotate_numbers(height, width, angle, True, center)[1] == expected


@property_test
@given(
    angle=ANGLES,
    scale=st.floats(0.1, 10),
    values=_each(st.floats(-60, 60), 6),
    size=st.tuples(st.integers(1, 999), st.integers(1, 999)),
)
def test_the_numbers_of_affine_are_torchvisions(
    angle: float, scale: float, values: list[float], size: tuple[int, int]
) -> None:
    shear, translate, center = values[:2], values[2:4], values[4:]
    height, width = size
    relative = [center[0] - width * 0.5, center[1] - height * 0.5]
    expected = torchvision_geometry._get_inverse_affine_matrix(relative, float(angle), translate, scale, shear)
    assert list(affine_numbers(height, width, angle, translate, scale, shear, center)) == expected


@property_test
@given(data=st.data(), x=images())
def test_perspective(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    look = data.draw(looks(x))
    corners = [[0, 0], [20, 0], [20, 16], [0, 16]]
    moved = [[[a + data.draw(st.integers(-3, 3)), b + data.draw(st.integers(-3, 3))] for a, b in corners] for _ in x]
    expected = one_by_one(x, lambda image, i: tv.perspective(image, corners, moved[i], **for_torchvision(look)))
    coefficients = numbers([perspective_numbers(corners, places, None) for places in moved], device)
    result = warp.perspective(x.to(device), coefficients, **look)
    assert_same(result, expected, look["interpolation"])


@pytest.mark.parametrize("corner", [0, 2.3])
def test_the_numbers_of_perspective_are_torchvisions(corner: float) -> None:
    start, end = [[corner, 0], [4001, 0], [4001, 5003], [0, 5003]], [[17, 3], [3950, 9], [4000, 4900], [11, 5001]]
    expected = tuple(torchvision_geometry._perspective_coefficients(start, end, None))
    assert perspective_numbers(start, end, None) == expected
    assert perspective_numbers(None, None, list(expected)) == expected


@property_test
@given(data=st.data(), x=images())
def test_elastic(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    look = data.draw(looks(x))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    shape = (len(x), *x.shape[2:], 2)
    displacement = (torch.rand(shape, generator=generator) - 0.5) * data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    expected = one_by_one(
        x, lambda image, i: tv.elastic(image, displacement=displacement[i : i + 1], **for_torchvision(look))
    )
    result = warp.elastic(x.to(device), displacement.to(device), **look)
    assert_same(result, expected, look["interpolation"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_half_precision_is_that_of_torchvision(dtype: torch.dtype, interpolation: str) -> None:
    x = torch.rand(2, 3, 17, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    look = {"interpolation": interpolation, "fill": 0.3}
    options = for_torchvision(look)
    matrix = numbers([rotate_numbers(17, 12, 33.0, False, None)[0]] * 2, torch.device("cpu"))
    assert torch.equal(warp.affine(x, matrix, **look), tv.rotate(x, 33.0, **options))
    tilted = [1.1, 0.1, -1.0, 0.05, 0.9, 0.5, 0.001, 0.002]
    coefficients = numbers([tuple(tilted)] * 2, torch.device("cpu"))
    expected = tv.perspective(x, None, None, coefficients=tilted, **options)
    assert torch.equal(warp.perspective(x, coefficients, **look), expected)
    displacement = torch.rand(1, 17, 12, 2, generator=torch.Generator().manual_seed(1)) * 0.2
    expected = tv.elastic(x, displacement, **options)
    assert torch.equal(warp.elastic(x, displacement.expand(2, -1, -1, -1), **look), expected)


@property_test
@given(size=st.tuples(PIXELS, PIXELS), columns=st.integers(1, 2), seed=st.integers(0, 2**32))
def test_grids_on_other_devices_differ_by_roundings_only(size: tuple[int, int], columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(2, 3, columns, generator=generator)
    down, across = (torch.linspace(0.5, side - 0.5, side) for side in size)
    plain = warp._plain_products(across, down, factors, fused=warp.cpu_fuses_products())
    assert plain.shape == (2, *size, columns)
    torch.testing.assert_close(plain, warp._matrix_products(across, down, factors), rtol=1e-6, atol=1e-5)


def test_a_photograph_sized_batch_differs_in_few_pixels(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 3, 240, 320), dtype=torch.uint8, generator=generator)
    for interpolation in ("nearest", "bilinear"):
        look = {"interpolation": interpolation, "fill": 128}
        expected = one_by_one(x, lambda image, i, look=look: tv.rotate(image, 20.0 + i, **for_torchvision(look)))
        matrix = numbers([rotate_numbers(240, 320, 20.0 + i, False, None)[0] for i in range(2)], device)
        difference = warp.affine(x.to(device), matrix, **look).cpu().int() - expected.int()
        assert (difference != 0).float().mean() <= 1e-3
        assert interpolation == "nearest" or difference.abs().max() <= 1


def test_an_empty_batch_stays_empty(device: torch.device) -> None:
    x = torch.zeros(0, 3, 4, 5, device=device)
    matrix = torch.zeros(0, 6, dtype=torch.float64, device=device)
    assert warp.affine(x, matrix, interpolation="nearest", fill=1, size=(6, 7)).shape == (0, 3, 6, 7)


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, matrix = torch.zeros(1, 3, 4, 5), torch.zeros(1, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="bicubic"):
        warp.affine(x, matrix, interpolation="bicubic", fill=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 fills for images with 3 channels"):
        warp.affine(x, matrix, interpolation="nearest", fill=(1, 2))
    with pytest.raises(ValueError, match="displacements"):
        warp.elastic(x, torch.zeros(1, 5, 4, 2), interpolation="nearest", fill=None)
    with pytest.raises(ValueError, match="scale"):
        affine_numbers(4, 5, 0, (0, 0), 0.0, (0, 0), None)
    with pytest.raises(ValueError, match="eight coefficients"):
        perspective_numbers(None, None, [math.pi] * 7)
    with pytest.raises(ValueError, match="eight coefficients"):
        perspective_numbers([[0, 0]] * 4, [[0, 0]] * 4, [math.pi] * 8)
    with pytest.raises(ValueError, match="corners"):
        perspective_numbers([[0, 0]] * 4, [[0, 0]] * 3, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 0.5, (1.0, 0.0, 2.0)])
def test_nothing_waits_for_the_device(interpolation: Any, fill: Any) -> None:
    x = torch.zeros(2, 3, 8, 9, dtype=torch.uint8, device="cuda")
    matrix = torch.rand(2, 6, dtype=torch.float64, device="cuda")
    coefficients = torch.rand(2, 8, dtype=torch.float64, device="cuda")
    displacement = torch.rand(2, 8, 9, 2, device="cuda")
    with synchronising_forbidden():
        warp.affine(x, matrix, interpolation=interpolation, fill=fill)
        warp.affine(x, matrix, interpolation=interpolation, fill=fill, size=(10, 11))
        warp.perspective(x, coefficients, interpolation=interpolation, fill=fill)
        warp.elastic(x, displacement, interpolation=interpolation, fill=fill)


def test_fused_products_round_once() -> None:
    """Compare with exact fractions: product and sum are rounded once, then the constant is added."""
    places = torch.arange(9, dtype=torch.float32) - 4
    factors = torch.tensor([[[0.0311, 0.0097], [-0.0173, 0.0211], [0.0057, -0.0071]]])
    made = warp._plain_products(places, places, factors, fused=True)
    for column in range(2):
        a, b, c = factors[0, :, column]
        for i, y in enumerate(places):
            for j, x in enumerate(places):
                exact = Fraction((x * a).item()) + Fraction(y.item()) * Fraction(b.item())
                assert made[0, i, j, column] == torch.tensor(float(exact)).float() + c

"""Resizing and colours of a batch against Pillow, bit by bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import functional as older
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from pipediag.replay.ops.families import colour, pillow_colour, pillow_filters, resizing

from .. import batches
from ..batches import property_settings

property_test = property_settings(150)
PIXELS = st.integers(1, 40) | st.integers(41, 200)
SIZES = st.tuples(PIXELS, PIXELS) | PIXELS.map(lambda side: (side, side))
FILTERS = st.sampled_from(["nearest", *pillow_filters.FILTERS])


images = partial(batches.images, (torch.uint8,), sides=PIXELS, kinds=batches.GREYS)


@st.composite
def boxes(draw: st.DrawFn, x: Tensor) -> list[tuple[int, int, int, int]]:
    """For each sample a box within it: top, left, height and width."""
    made = []
    for _ in x:
        height, width = (draw(st.integers(1, side)) for side in x.shape[2:])
        made.append(
            (draw(st.integers(0, x.shape[2] - height)), draw(st.integers(0, x.shape[3] - width)), height, width)
        )
    return made


def by_pillow(x: Tensor, box: tuple[int, int, int, int], size: tuple[int, int], filter: str) -> Tensor:
    top, left, height, width = box
    cut = to_pil_image(x).crop((left, top, left + width, top + height))
    return pil_to_tensor(cut.resize(size[::-1], PIL.Image.Resampling[filter.upper()]))


def check(x: Tensor, places: Any, size: tuple[int, int], filter: Any, device: torch.device) -> None:
    options = {"size": size, "interpolation": filter, "antialias": True}
    for first in ("across", "down"):
        samples = [n for n, box in enumerate(places) if pillow_filters.first_pass(box[2:], size) == first]
        if samples:
            expected = torch.stack([by_pillow(x[n], places[n], size, filter) for n in samples])
            numbers = torch.tensor([places[n] for n in samples], dtype=torch.float64).to(device).unbind(1)
            result = resizing.resized_crops(x[samples].to(device), *numbers, pillow=first, **options)
            assert torch.equal(result.cpu(), expected)


@property_test
@given(data=st.data(), x=images(), size=SIZES, filter=FILTERS)
def test_resized_crop(device: torch.device, data: st.DataObject, x: Tensor, size: tuple[int, int], filter: str) -> None:
    check(x, data.draw(boxes(x)), size, filter, device)


@pytest.mark.parametrize("filter", ["nearest", *pillow_filters.FILTERS])
def test_photographs_shrunk_a_lot(device: torch.device, filter: str) -> None:
    x = torch.randint(0, 256, (2, 3, 480, 640), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    check(x, [(3, 5, 470, 600), (100, 90, 31, 333)], (48, 64), filter, device)


@property_test
@given(extents=st.lists(st.integers(1, 4000), min_size=1, max_size=20), out=st.integers(1, 300))
def test_nearest_pixels_of_long_boxes(extents: list[int], out: int) -> None:
    found = pillow_filters.nearest_pixels(torch.tensor(extents, dtype=torch.float64), out)
    for length, pixels in zip(extents, found, strict=True):
        positions = PIL.Image.fromarray(np.arange(length, dtype=np.int32)[None])
        assert np.array(positions.resize((out, 1), PIL.Image.Resampling.NEAREST))[0].tolist() == pixels.tolist()


# ---- colours

FACTORS = st.floats(0, 4) | st.sampled_from([0.0, 0.5, 1.0])


@property_test
@given(data=st.data(), x=images(), what=st.sampled_from(["brightness", "contrast", "saturation", "hue", "sharpness"]))
def test_colours(device: torch.device, data: st.DataObject, x: Tensor, what: str) -> None:
    factors = [data.draw(st.floats(-0.5, 0.5) if what == "hue" else FACTORS) for _ in x]
    by_torchvision = getattr(older, f"adjust_{what}")
    expected = [by_torchvision(to_pil_image(image), factor) for image, factor in zip(x, factors, strict=True)]
    kernel = getattr(pillow_colour, f"adjust_{what}")
    result = kernel(x.to(device), torch.tensor(factors, dtype=torch.float64).to(device))
    assert torch.equal(result.cpu(), torch.stack([pil_to_tensor(image) for image in expected]))


@property_test
@given(x=images(), shift=st.integers(0, 3))
def test_histograms(device: torch.device, x: Tensor, shift: int) -> None:
    x = (x >> shift) + 7
    pictures = [to_pil_image(image) for image in x]
    for by_torchvision, kernel in (
        (older.autocontrast, pillow_colour.stretched),
        (older.equalize, colour.equalize),
    ):
        expected = torch.stack([pil_to_tensor(by_torchvision(image)) for image in pictures])
        assert torch.equal(kernel(x.to(device)).cpu(), expected)


@property_test
@given(x=images(), channels=st.sampled_from([1, 3]))
def test_grayscale(device: torch.device, x: Tensor, channels: int) -> None:
    expected = [pil_to_tensor(older.to_grayscale(to_pil_image(image), channels)) for image in x]
    assert torch.equal(pillow_colour.grayscale(x.to(device), channels=channels).cpu(), torch.stack(expected))


@pytest.mark.parametrize("factor", [0.0, 0.1, -0.37, 0.5])
def test_hues_of_many_colours(device: torch.device, factor: float) -> None:
    x = torch.cartesian_prod(*[torch.arange(0, 256, 5)] * 3).T.reshape(1, 3, 52, -1).to(torch.uint8)
    expected = pil_to_tensor(older.adjust_hue(to_pil_image(x[0]), factor))
    result = pillow_colour.adjust_hue(x.to(device), torch.tensor([factor], dtype=torch.float64).to(device))
    assert torch.equal(result[0].cpu(), expected)


def test_filters_of_pillow_are_for_its_images_only() -> None:
    x, one = torch.zeros(1, 3, 4, 5, dtype=torch.uint8), torch.ones(1)
    with pytest.raises(ValueError, match="hamming"):
        resizing.resized_crops(x, one, one, one, one, size=(2, 2), interpolation="hamming", antialias=True)

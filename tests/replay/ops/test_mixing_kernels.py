"""Mixing the samples of a batch, and erasing boxes of them, against torchvision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from pipediag.replay.ops import mixing
from pipediag.replay.ops.families import erase

from ..batches import FLOATS, images, property_settings

property_test = property_settings(30)


@st.composite
def intervals(draw: st.DrawFn, size: int) -> tuple[int, int]:
    """Begin and length of a part of ``size`` positions."""
    length = draw(st.integers(0, size))
    return draw(st.integers(0, size - length)), length


def mixed_by(transform: Any, x: Tensor, **drawn: Any) -> Tensor:
    """Return the images after a transform of torchvision that draws ``drawn``."""
    transform.make_params = lambda _: drawn
    result: Tensor = transform(x, torch.zeros(len(x), dtype=torch.int64))[0]
    return result


# ---- MixUp and CutMix


@given(x=images(FLOATS), lam=st.floats(0, 1))
@property_test
def test_mixup(device: torch.device, x: Tensor, lam: float) -> None:
    expected = mixed_by(v2.MixUp(num_classes=2), x, lam=lam)
    result = mixing.mixup(x.to(device), lam).cpu()
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


@given(data=st.data(), x=images())
@property_test
def test_cutmix(device: torch.device, data: st.DataObject, x: Tensor) -> None:
    left, width = data.draw(intervals(x.shape[-1]))
    top, height = data.draw(intervals(x.shape[-2]))
    box = (left, top, left + width, top + height)
    lam = 1.0 - width * height / (x.shape[-1] * x.shape[-2])
    expected = mixed_by(v2.CutMix(num_classes=2), x, box=box, lam_adjusted=lam)
    given_images = x.to(device)
    assert torch.equal(mixing.cutmix(given_images, box).cpu(), expected)
    assert torch.equal(given_images.cpu(), x)


def test_whole_numbers_cannot_be_blended() -> None:
    with pytest.raises(TypeError, match="uint8"):
        mixing.mixup(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), 0.5)


# ---- erasing


def boxes_in(data: st.DataObject, x: Tensor) -> Tensor:
    """Return (top, left, height, width) for each sample; some boxes are empty."""
    boxes = []
    for _ in x:
        top, height = data.draw(intervals(x.shape[-2]))
        left, width = data.draw(intervals(x.shape[-1]))
        boxes.append((top, left, height, width))
    return torch.tensor(boxes)


def erased(x: Tensor, boxes: Tensor, values: list[Tensor]) -> Tensor:
    return torch.stack(
        [tv.erase_image(image, *box.tolist(), v) for image, box, v in zip(x, boxes, values, strict=True)]
    )


@given(data=st.data(), x=images(), floating=st.booleans())
@property_test
def test_erase(device: torch.device, data: st.DataObject, x: Tensor, floating: bool) -> None:
    boxes = boxes_in(data, x)
    count = data.draw(st.sampled_from([1, x.shape[1]]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    value = torch.rand((len(x), count), generator=generator) * (255 if x.dtype == torch.uint8 else 1)
    expected = erased(x, boxes, list(value[:, :, None, None]))
    columns = (boxes.double() if floating else boxes).to(device).unbind(1)
    result = erase.erased(x.to(device), *columns, (value.double() if floating else value).to(device))
    assert result.dtype == x.dtype
    assert torch.equal(result.cpu(), expected)


@given(data=st.data(), x=images(), floating=st.booleans())
@property_test
def test_erase_packed(device: torch.device, data: st.DataObject, x: Tensor, floating: bool) -> None:
    boxes = boxes_in(data, x)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    drawn = [torch.randn((x.shape[1], *box[2:].tolist()), generator=generator) for box in boxes]
    expected = erased(x, boxes, drawn)
    sizes = torch.tensor([values.numel() for values in drawn])
    numbers = torch.cat([boxes, (sizes.cumsum(0) - sizes)[:, None]], 1)
    *columns, offsets = (numbers.double() if floating else numbers).to(device).unbind(1)
    given_images, values = x.to(device), torch.cat([values.flatten() for values in drawn]).to(device)
    result = erase.erased_packed(given_images, *columns, values, offsets)
    assert result.dtype == x.dtype
    assert torch.equal(result.cpu(), expected)
    assert torch.equal(given_images.cpu(), x)
    assert result.data_ptr() != given_images.data_ptr()

"""Samples made both ways: the same draws, and each recorded image with its real one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.replay.certify.samples import History, Stacked, images, real, recorded, tensor_of
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find
from pipediag.usercode import randomness

from ...remedy.sameness import Sometimes, pixels


def test_recording_goes_on_as_for_real_where_it_cannot_be_recorded() -> None:
    dataset = Sometimes(v2.RandomHorizontalFlip(), length=20)
    plan = find(dataset, default_collate, range(4), Plan()).plan
    begun = randomness.state()
    one = real(dataset, default_collate, range(8, 12))
    randomness.restore(begun)
    other = recorded(dataset, default_collate, range(8, 12), plan)
    assert other.packed is None
    assert other.why.startswith("NotRecordable: ")
    assert randomness.moved(one.random_state, other.random_state) is None


def test_images_of_nested_samples_are_found_in_order() -> None:
    a, b, c, d, e = (History(k, ()) for k in range(5))
    kept = {"views": [a, b], "label": None, "pair": (c, None), "rest": {"x": d, "y": [e]}}
    made = {"views": ["a", "b"], "label": 7, "pair": ("c", 8), "rest": {"x": "d", "y": ["e"]}}
    assert [(one.source, image) for one, image in images(kept, made)] == list(zip(range(5), "abcde", strict=True))


def test_images_of_stacks_belong_to_their_rows() -> None:
    stack = torch.arange(6).reshape(2, 3)
    pairs = list(images(Stacked([History(0, ()), History(1, ())]), stack))
    assert [one.source for one, _ in pairs] == [0, 1]
    assert [row.tolist() for _, row in pairs] == [[0, 1, 2], [3, 4, 5]]


def test_samples_of_another_structure_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(images([History(0, ())], ["a", "b"]))


def test_pixels_of_any_image() -> None:
    assert type(tensor_of(tv_tensors.Image(pixels(0)))) is Tensor
    assert torch.equal(tensor_of(F.to_pil_image(pixels(0))), pixels(0))

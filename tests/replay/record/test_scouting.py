"""Finding what can be recorded, on the user's own samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find, given_to
from pipediag.usercode import randomness

from ...remedy.sameness import Images, floats


def chain() -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianBlur(3), v2.RandomVerticalFlip()])


class Raises(Images):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such file")


class Halved:
    """The user's own code, which needs pixels."""

    def __call__(self, sample: Tensor) -> Tensor:
        return sample * 0.5


def test_finding_draws_nothing_and_leaves_the_transforms_in_place() -> None:
    dataset = Images(chain())
    transform, links = dataset.transform, list(dataset.transform.transforms)  # type: ignore[attr-defined]
    before = randomness.state()
    plan = find(dataset, default_collate, range(4), Plan()).plan
    assert randomness.moved(randomness.state(), before) is None
    assert dataset.transform is transform
    assert dataset.transform.transforms == links
    assert plan.pieces[0].moves == ("RandomHorizontalFlip", "GaussianBlur", "RandomVerticalFlip")


def test_finding_leaves_the_transforms_in_place_when_the_dataset_raises() -> None:
    dataset = Raises(chain())
    transform, before = dataset.transform, randomness.state()
    with pytest.raises(KeyError):
        find(dataset, default_collate, range(4), Plan())
    assert dataset.transform is transform
    assert randomness.moved(randomness.state(), before) is None


def test_code_of_the_users_own_is_named_by_its_place() -> None:
    chain = v2.Compose([v2.RandomHorizontalFlip(), Halved(), v2.RandomVerticalFlip()])
    one = find(Images(chain, floats), default_collate, range(4), Plan())
    assert one.plan.pieces[0].start == 2
    assert one.own_code == ((one.plan.pieces[0].path, 1),)


def test_what_a_link_is_given() -> None:
    dataset = Images(v2.Compose([v2.CenterCrop(20), Halved(), v2.Normalize([0.5], [0.5])]), floats)
    (place,) = find(dataset, default_collate, range(4), Plan()).own_code
    given = given_to(dataset, place, [3, 1])
    assert given is not None
    assert all(torch.equal(one, F.center_crop(floats(index), [20])) for one, index in zip(given, (3, 1), strict=True))


def test_what_a_link_is_given_counts_only_where_it_is_plain_tensors() -> None:
    dataset = Images(v2.Compose([v2.CenterCrop(20), Halved()]), lambda index: tv_tensors.Image(floats(index)))
    assert given_to(dataset, ((0,), 1), [0, 1]) is None

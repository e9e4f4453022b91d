"""Finding what can be recorded, on the user's own samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.patches import LIVE
from pipediag.replay.plan import Piece, Plan
from pipediag.replay.record.batches import fetched
from pipediag.replay.record.scouting import find, has_only_librarys, scouted
from pipediag.usercode import randomness, tree

from ...remedy.sameness import Images, floats, picture, pixels


def chain() -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianBlur(3), v2.RandomVerticalFlip()])


class Raises(Images):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such file")


class Squared:
    def __call__(self, sample: Tensor) -> Tensor:
        return sample * sample


def test_finding_draws_nothing_and_leaves_the_transforms_in_place() -> None:
    dataset = Images(chain())
    transform, links = dataset.transform, list(dataset.transform.transforms)  # type: ignore[attr-defined]
    before = randomness.state()
    plan = find(dataset, default_collate, range(4), Plan())
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


def test_a_link_that_needs_pixels_stays_with_those_before_it() -> None:
    chain = v2.Compose([v2.RandomHorizontalFlip(), Squared(), v2.RandomVerticalFlip()])
    plan = find(Images(chain, floats), default_collate, range(4), Plan())
    assert plan.pieces[0].start == 2
    assert plan.reasons[0].startswith("Squared: mul is recorded with a number")


class Own(Dataset[Any]):
    """Samples that the user's own code makes of two transforms, and whose calls are counted."""

    def __init__(self, of_image: Any, of_label: Any, make: Callable[[Any, int], Any]) -> None:
        self.transform, self.target_transform = of_image, of_label
        self.load_sample = make
        self.calls = 0
        self.shelf: dict[int, Any] = {}
        self.buffer = torch.zeros(3, 40, 56, dtype=torch.uint8)

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.load_sample(self, index)


def pair(data: Own, index: int) -> Any:
    return data.transform(picture(index)), data.target_transform(torch.tensor(index))


def joint(data: Own, index: int) -> Any:
    return data.transform(tv_tensors.Image(pixels(index)), tv_tensors.Mask(pixels(index, 1)))


def two_views(data: Own, index: int) -> Any:
    return [data.transform(picture(index)) for _ in range(2)]


def shelved(data: Own, index: int) -> Any:
    return data.shelf.setdefault(index, data.transform(pixels(index)))


def rewritten(data: Own, index: int) -> Any:
    return data.transform(data.buffer.copy_(pixels(index)))


def stored(data: Own, index: int) -> Any:
    """The transforms may return what the dataset has stored."""
    return data.transform(data.shelf.setdefault(index, pixels(index)))


FLIPS = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
OF_PICTURES = v1.Compose([v1.RandomHorizontalFlip(), v1.AugMix(), v1.RandomRotation(9), v1.ToTensor()])


@pytest.mark.parametrize(
    ("transform", "make"),
    [
        (FLIPS, joint),
        (OF_PICTURES, pair),
        (OF_PICTURES, two_views),
        (FLIPS, rewritten),
        (FLIPS, stored),
        (v1.AugMix(), pair),
        (v2.RandomApply([v2.AugMix(), v2.GaussianBlur(3)], p=1), rewritten),
    ],
)
def test_a_batch_shows_what_a_trial_finds(transform: Any, make: Callable[[Any, int], Any]) -> None:
    """It is the plain batch, the generators end as after it, and each sample is made once."""

    def collate(samples: list[Any]) -> Any:
        return samples

    dataset = Own(transform, v2.Identity(), make)
    assert has_only_librarys(dataset)
    torch.manual_seed(2)
    plain, state = fetched(dataset, range(4)), randomness.state()
    torch.manual_seed(2)
    batch, plan = scouted(dataset, lambda: fetched(dataset, range(4)), collate, Plan())
    assert randomness.moved(state, randomness.state()) is None and dataset.calls == 8 and not LIVE
    assert dataset.transform is transform
    for ours, theirs in zip(tree.leaves(batch), tree.leaves(plain), strict=True):
        assert type(ours) is type(theirs)
        assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
    tried = find(dataset, collate, range(4), Plan())
    assert plan.pieces == tried.pieces
    assert plan.reasons == tried.reasons[: len(plan.reasons)], "a trial also tries calls that no transform holds"


def test_a_dataset_that_keeps_what_its_transforms_make() -> None:
    dataset = Own(FLIPS, v2.Identity(), shelved)
    _, plan = scouted(dataset, lambda: fetched(dataset, range(3)), default_collate, Plan())
    assert not plan.pieces and "keeps what its transforms have made" in plan.reasons[-1]


def test_an_error_of_the_dataset_leaves_its_transforms_in_place() -> None:
    dataset = Raises(FLIPS)
    with pytest.raises(KeyError):
        scouted(dataset, lambda: fetched(dataset, range(3)), default_collate, Plan())
    assert dataset.transform is FLIPS and not LIVE


def test_the_lines_of_a_plan() -> None:
    assert str(Plan()) == "nothing moves"
    assert str(Plan(reasons=("for this", "and that"))) == "nothing moves\n- for this\n- and that"
    pieces = (Piece((0,), 0, ("Crop", "Flip")), Piece((1,), 1, ("Open", "Flip")))
    assert str(Plan(pieces, ("Open: it opens",))).splitlines() == [
        "moves to the device: Crop, Flip",
        "moves to the device: Flip",
        "stays in the workers: Open",
        "- Open: it opens",
    ]

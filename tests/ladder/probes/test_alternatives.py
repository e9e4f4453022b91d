"""Cheaper ways for transforms, tried on inputs that they got: which are tried, what is told, and what is left alone."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from pipediag.analysis.recommend import cheaper
from pipediag.ladder.probes import alternatives
from pipediag.ladder.probes.alternatives import INPUTS, located, tried
from pipediag.session import Alternative, Cost, Link, Part
from pipediag.usercode import randomness
from pipediag.usercode.chain import Apart, chain_of, take_apart
from pipediag.usercode.transform_slots import find_slots


def picture(index: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    coarse = np.random.default_rng(index).integers(0, 255, (6, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


class Pictures(Dataset[Any]):
    """Pictures, or the tensors that ``made`` makes of them, that pass through a chain; counts what it makes."""

    def __init__(self, *links: Any, made: Any = None) -> None:
        self.transform = v1.Compose(list(links))
        self.made = made
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        image = picture(index)
        return self.transform(image if self.made is None else self.made(image))


def recorded(dataset: Pictures, samples: int = INPUTS) -> list[Apart]:
    return [take_apart(lambda n=n: dataset[n], find_slots(dataset)) for n in range(samples)]  # type: ignore[misc]


def found(*links: Any, made: Any = None, files: list[str] | None = None) -> dict[tuple[str, str], Alternative]:
    """What was tried, by transform and way."""
    apart = recorded(Pictures(*links, made=made))
    told = located(tried(apart, files or [], time.process_time), chain_of(apart).links)
    assert all(one.ms > 0 and one.ms_instead > 0 for one in told)
    return {(one.name, one.key): one for one in told}


JITTER = v1.ColorJitter(0.4, 0.4, 0.4, 0.1)


@pytest.mark.parametrize("jitter", [JITTER, v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], ids=["v1", "v2"])
def test_hue_costs_most_of_a_colour_jitter(jitter: Any) -> None:
    one = found(jitter)["ColorJitter", "hue"]
    assert one.inputs == INPUTS and one.ms_instead < one.ms
    assert one.difference is not None and 0.5 < one.difference < 60


@pytest.mark.parametrize(
    ("transform", "keys"),
    [
        (JITTER, {"hue", "tensor"}),
        (v1.ColorJitter(0.4), {"tensor"}),
        (v1.Resize(32), {"tensor", "reducing-gap"}),
        (v2.Resize((32, 40)), {"tensor", "reducing-gap"}),
        (v1.RandomResizedCrop(32), {"tensor", "reducing-gap"}),
        (v2.RandomResizedCrop((32, 40), interpolation=v2.InterpolationMode.BICUBIC), {"tensor", "reducing-gap"}),
        (v1.GaussianBlur(5), {"tensor", "pillow-blur"}),
        (v2.GaussianBlur(5, (0.5, 1.0)), {"tensor", "pillow-blur"}),
        (v1.RandomAffine(9), {"tensor"}),
        (v1.RandAugment(), {"tensor"}),
        (v1.RandomHorizontalFlip(), set()),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else None,
)
def test_the_ways_of_the_table(transform: Any, keys: set[str]) -> None:
    told = found(transform)
    assert {key for _, key in told} == keys
    assert {name for name, _ in told} <= {type(transform).__name__}
    close = [one.difference for one in told.values() if one.key in ("tensor", "reducing-gap", "pillow-blur")]
    if type(transform).__name__ in ("Resize", "RandomResizedCrop", "GaussianBlur", "ColorJitter"):
        assert all(one is not None and one < 4 for one in close), "the same, but for rounding and filters"


def test_what_a_wrapper_applies() -> None:
    told = tried(recorded(Pictures(v1.RandomApply([JITTER], p=0.5))), [], time.process_time)
    assert [(link, one.name, one.key) for link, one in told] == [
        (0, "ColorJitter", "hue"),
        (0, "ColorJitter", "tensor"),
    ]


def test_tensors_have_their_own_ways() -> None:
    assert {key for _, key in found(JITTER, made=v1.functional.to_tensor)} == {"hue"}


def test_at_the_line_that_the_training_process_finds() -> None:
    """A worker does not search the user's files; a wrapper gives way to what it runs."""
    jitter = Part("ColorJitter", "torchvision/transforms.py:1175", "torchvision.transforms", True, Cost(4.0, 4.0))
    links = [
        Link("Resize", "train.py:3"),
        Link("RandomApply", "train.py:4", Cost(4.0, 4.0), library=False, parts=[jitter]),
        Link("ColorJitter", "train.py:5"),
    ]
    ways = [Alternative(name, "", "hue", 8, 2.0, 1.0) for name in ("Resize", "ColorJitter", "ColorJitter", "load", "x")]
    told = located(list(zip((0, 1, 2, -1, 7), ways, strict=True)), links)
    assert [(one.name, one.where) for one in told] == [
        ("Resize", "train.py:3"),
        ("ColorJitter", "train.py:4"),
        ("ColorJitter", "train.py:5"),
        ("load", ""),
    ]


def test_every_way_of_the_table_can_be_tried() -> None:
    assert {one.key for one in cheaper.ALTERNATIVES if one.key} == {*alternatives._WAYS}


def test_each_link_gets_the_input_that_it_gets_in_training() -> None:
    """The crop leaves the jitter a small picture."""
    large, small = (found(v1.Resize((size, size)), JITTER)["ColorJitter", "hue"].ms for size in (400, 8))
    assert large > 5 * small


class OfTheUsers(v1.ColorJitter):
    """Not torchvision's: what it does is the user's code, of which another way is not known."""


class Writes:
    def __call__(self, image: Any) -> Any:
        image[:] = 0
        return image


def test_not_the_users_own() -> None:
    assert found(OfTheUsers(0.4, 0.4, 0.4, 0.1)) == {}


def test_a_transform_that_writes_into_its_input_gets_no_recorded_one() -> None:
    told = found(Writes(), v1.RandomErasing(p=0.0), made=v1.functional.to_tensor)
    assert told == {}


def test_what_is_left_alone() -> None:
    """No generator moves, no sample is made, and the recorded samples stay as they are."""
    dataset = Pictures(v1.RandomResizedCrop(32), JITTER, v1.GaussianBlur(3))
    apart = recorded(dataset)
    made = dataset.count
    before = [call.args[0].tobytes() for one in apart for call in one.linked.calls if call.args[0] is not None]
    state = randomness.state()
    assert tried(apart, [], time.perf_counter)
    assert randomness.moved(state, randomness.state()) is None
    assert dataset.count == made
    assert before == [call.args[0].tobytes() for one in apart for call in one.linked.calls if call.args[0] is not None]
    assert JITTER.hue is not None


def test_a_way_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fn: Any) -> Any:
        raise RuntimeError("another version of torchvision")

    monkeypatch.setitem(alternatives._WAYS, "hue", fails)
    assert {key for _, key in found(JITTER)} == {"tensor"}
    monkeypatch.setitem(alternatives._WAYS, "tensor", lambda fn: lambda image: 1 / 0)
    assert found(JITTER) == {}


def test_a_transform_that_fails_on_a_replay() -> None:
    apart = recorded(Pictures(v1.Resize(32)))
    for one in apart[1:]:
        one.linked.calls[0].args = (None,)
    told = tried(apart, [], time.process_time)
    assert {one.inputs for _, one in told} == {1}, "the others are left out"


def test_it_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways of a slow transform are given up as soon as the time is over."""
    monkeypatch.setattr(alternatives, "SECONDS", 0.3)

    def slow(fn: Any) -> Any:
        def way(image: Any) -> Any:
            time.sleep(0.05)
            return image

        return way

    for key in ("hue", "tensor"):
        monkeypatch.setitem(alternatives._WAYS, key, slow)
    began = time.perf_counter()
    found(JITTER)
    assert time.perf_counter() - began < 2.0


def files(folder: Path, size: tuple[int, int]) -> list[str]:
    paths = [folder / f"{n}.jpg" for n in range(4)]
    for number, path in enumerate(paths):
        picture(number, size).save(path, quality=90)
    return [str(path) for path in paths]


class TestDraft:
    def test_before_a_resize_to_far_fewer_pixels(self, tmp_path: Path) -> None:
        one = found(v1.Resize(64), files=files(tmp_path, (800, 600)))["load", "draft"]
        assert (one.where, one.inputs) == ("", 4)
        assert one.ms_instead < 0.8 * one.ms
        assert one.difference is not None and one.difference < 4

    def test_a_crop_may_need_more(self, tmp_path: Path) -> None:
        """A crop of 0.08 of the area is 170 pixels high: a draft of half the size would be too small for 128."""
        few, many = tmp_path / "few", tmp_path / "many"
        few.mkdir()
        many.mkdir()
        told = [found(v1.RandomResizedCrop(size), files=files(few, (800, 600))) for size in (128, 40)]
        ratios = [one["load", "draft"].ms_instead / one["load", "draft"].ms for one in told]
        assert ratios[0] > 0.8 > ratios[1]
        assert told[1]["load", "draft"].difference is None, "another part of the picture"

    @pytest.mark.parametrize("transform", [v1.RandomHorizontalFlip(), v1.CenterCrop(32)])
    def test_not_before_anything_else(self, tmp_path: Path, transform: Any) -> None:
        assert found(transform, files=files(tmp_path, (200, 200))) == {}

    def test_not_if_the_files_are_gone(self, tmp_path: Path) -> None:
        assert ("load", "draft") not in found(v1.Resize(32), files=[str(tmp_path / f"{n}.jpg") for n in range(4)])


def test_the_random_states_are_those_of_the_caller() -> None:
    """A trial seeds nothing: two trials in a row draw alike."""
    random.seed(3)
    torch.manual_seed(3)
    one = found(JITTER)["ColorJitter", "hue"].difference
    random.seed(3)
    torch.manual_seed(3)
    assert found(JITTER)["ColorJitter", "hue"].difference == one

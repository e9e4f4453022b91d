"""A transform of the user's changes what it reads, inside an epoch, while the device repeats its arithmetic."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from pipediag import offload
from pipediag.remedy import OffloadedLoader

from ..remedy.sameness import Images, check_same_batch, loader, pixels, seen
from ..replay import settings_of_tests

FACTOR = 1.5


class Gain:
    """Scales the channels by all that it can read."""

    of_class = 0.5

    def __init__(self) -> None:
        self.gain = 1.25
        self.tensor = torch.tensor([0.8, 0.9, 1.1]).view(3, 1, 1)
        self.array = np.array([0.5, 2.0])
        self.settings = types.SimpleNamespace(deep=types.SimpleNamespace(gain=1.5))
        self.entries = {"of": [1.0, 2.0]}
        self.noise = 0.0
        self.mode = "all"

    def __call__(self, image: Tensor) -> Tensor:
        image = image * self.gain * self.tensor * self.of_class * FACTOR * settings_of_tests.GAIN
        image = image * float(self.array[1]) * self.settings.deep.gain * self.entries["of"][1]
        if self.noise:
            image = image + self.noise * torch.rand_like(image)
        return image / image.amax() if self.mode == "amax" else image


class Chain:
    """A dataset's chain with a ``Gain`` in its middle, and the plain loader over it."""

    def __init__(self, **settings: Any) -> None:
        self.gain = Gain()
        links = [
            v2.RandomCrop(24),
            v2.ToDtype(torch.float32, scale=True),
            self.gain,
            v2.RandomHorizontalFlip(),
            closure,
        ]
        self.dataset = Images(v2.Compose(links), pixels, length=16)
        self.plain = loader(self.dataset, **settings)


def write_globals(name: str, value: Any) -> None:
    globals()[name] = value


def _closing_over(offset: float) -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
    def add_closed_over(image: Tensor) -> Tensor:
        return image + offset

    def write(value: float) -> None:
        nonlocal offset
        offset = value

    return add_closed_over, write


closure, write_closure = _closing_over(0.25)

#: How user code changes what it reads, and changes it back.
CHANGES: dict[str, Callable[[Chain, bool], Any]] = {
    "attribute": lambda c, on: setattr(c.gain, "gain", 2.5 if on else 1.25),
    "tensor": lambda c, on: setattr(c.gain, "tensor", c.gain.tensor * (2 if on else 0.5)),
    "tensor in place": lambda c, on: c.gain.tensor.mul_(2 if on else 0.5),
    "tensor behind its back": lambda c, on: c.gain.tensor.data.mul_(2 if on else 0.5),
    "array": lambda c, on: c.gain.array.__setitem__(1, 3.0 if on else 2.0),
    "object behind an object": lambda c, on: setattr(c.gain.settings.deep, "gain", 2.5 if on else 1.5),
    "item": lambda c, on: c.gain.entries["of"].__setitem__(1, 3.0 if on else 2.0),
    "class": lambda c, on: setattr(Gain, "of_class", 0.75 if on else 0.5),
    "global": lambda c, on: write_globals("FACTOR", 2.5 if on else 1.5),
    "global of another module": lambda c, on: setattr(settings_of_tests, "GAIN", 2.5 if on else 1.5),
    "closure": lambda c, on: write_closure(0.75 if on else 0.25),
    "how it works": lambda c, on: setattr(c.gain, "mode", "amax" if on else "all"),
    "draws": lambda c, on: setattr(c.gain, "noise", 0.5 if on else 0.0),
    "another object": lambda c, on: c.dataset.transform.transforms.__setitem__(2, _other(c.gain) if on else c.gain),
}


def _other(gain: Gain) -> Gain:
    other = Gain()
    other.gain = 3.0
    return other


def with_changes(batches: Any, chain: Chain, change: Callable[[Chain, bool], Any]) -> Any:
    """Change after the first batch, and change back after the third."""
    try:
        for k, batch in enumerate(batches):
            yield batch
            if k in (0, 2):
                change(chain, k == 0)
    finally:
        assert k == 3


def changed_in_an_epoch(batches: Any, chain: Chain, change: Callable[[Chain, bool], Any]) -> Any:
    """Yield the batches of three epochs; change inside the first, and change back inside the last."""
    for epoch in range(3):
        for k, batch in enumerate(batches):
            yield batch
            if k == 1 and epoch != 1:
                change(chain, epoch == 0)


@pytest.fixture(scope="module")
def chain() -> tuple[Chain, Any]:
    chain = Chain()
    offloaded = offload(chain.plain, "cpu")
    assert offloaded.plan.pieces[0].moves[-3:] == ("Gain", "RandomHorizontalFlip", "add_closed_over")
    return chain, offloaded


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_inside_an_epoch_counts_from_the_next_batch(chain: tuple[Chain, Any], name: str) -> None:
    one, offloaded = chain
    before = offloaded.unrecorded
    mine = seen(with_changes(offloaded, one, CHANGES[name]))
    theirs = seen(with_changes(one.plain, one, CHANGES[name]))
    assert mine.after == theirs.after
    for ours, want in zip(mine.batches, theirs.batches, strict=True):
        check_same_batch(ours, want, torch.device("cpu"))
    assert not torch.equal(theirs.batches[1][0], seen(one.plain).batches[1][0])
    assert (offloaded.unrecorded > before) == (name in ("how it works", "draws")), "the next link needs their pixels"


class EveryThird(Images):
    """Sets the gain for each sample, and only every third one is as in the trial."""

    def __getitem__(self, index: int) -> Any:
        self.transform.transforms[2].gain = 1.25 if index % 3 == 0 else 1.0 + index
        return super().__getitem__(index)


def test_a_value_that_the_dataset_sets_for_each_sample(chain: tuple[Chain, Any]) -> None:
    plain = loader(EveryThird(Chain().dataset.transform, pixels))
    offloaded = OffloadedLoader(plain, chain[1].plan, torch.device("cpu"))
    mine, theirs = seen(offloaded), seen(plain)
    assert mine.after == theirs.after
    for ours, want in zip(mine.batches, theirs.batches, strict=True):
        check_same_batch(ours, want, torch.device("cpu"))
    assert not offloaded.unrecorded


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_read_what_they_read_without_the_remedy(chain: tuple[Chain, Any], persistent: bool) -> None:
    """Persistent workers never see what the loop changes; others see it from the next epoch on."""
    names = ["attribute", "tensor in place", "class", "global", "global of another module", "closure"]
    one = Chain(num_workers=1, persistent_workers=persistent)
    offloaded = OffloadedLoader(one.plain, chain[1].plan, torch.device("cpu"))

    def change(chain: Chain, on: bool) -> None:
        for name in names:
            CHANGES[name](chain, on)

    mine = seen(changed_in_an_epoch(offloaded, one, change))
    theirs = seen(changed_in_an_epoch(one.plain, one, change))
    assert mine.after == theirs.after
    for ours, want in zip(mine.batches, theirs.batches, strict=True):
        check_same_batch(ours, want, torch.device("cpu"))
    assert not offloaded.unrecorded

"""Digests of transforms change if code or values change that affect the result, and only then."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from pipediag.replay.fingerprint import digest

LIMIT = 3
TABLE = {"mean": [0.5, 0.5], "std": (0.1,)}


def helper(value: Any) -> Any:
    return value + LIMIT


def transform(image: Any, factor: float = 2.0) -> Any:
    return helper(image) * factor + TABLE["std"][0]


class Warp:
    strength = 1.0

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __call__(self, image: Any) -> Any:
        return transform(image) * self.strength


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        return image[: self.size]


def closure(value: Any) -> Callable[[Any], Any]:
    return lambda image: image + value


class Layer(nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.register_buffer("bias", torch.full((2,), bias))

    def forward(self, image: Any) -> Any:
        return image + self.bias


MAKERS: list[Callable[[Any], Any]] = [
    lambda x: v2.GaussianBlur(5, sigma=(0.1, float(x))),
    lambda x: v2.Compose([v2.RandomHorizontalFlip(x / 10), v2.ToDtype(torch.float32)]),
    lambda x: functools.partial(transform, factor=x),
    lambda x: Warp(size=x),
    lambda x: Warp(table=np.full(4, x)),
    lambda x: Warp(names={"a", str(x)}, inner=Warp(x=x)),
    lambda x: Warp(size=x).__call__,
    lambda x: Slotted(x),
    lambda x: closure(x),
    lambda x: Layer(float(x)),
    lambda x: [x, torch.float32, v2.InterpolationMode.BILINEAR, None, 1.5j, b"x"],
]


@pytest.mark.parametrize("maker", MAKERS, ids=range(len(MAKERS)))
def test_by_what_it_holds(maker: Callable[[Any], Any]) -> None:
    assert digest(maker(3)) == digest(maker(3)) != digest(maker(4))
    assert len(digest(maker(3))) == 16


@pytest.mark.parametrize(
    ("name", "value"),
    [("LIMIT", 4), ("TABLE", {"mean": [0.5, 0.5], "std": (0.2,)}), ("helper", lambda value: value)],
)
def test_by_the_globals_that_its_code_uses(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    before, of_object = digest(transform), digest(Warp())
    monkeypatch.setitem(globals(), name, value)
    assert digest(transform) != before and digest(Warp()) != of_object


def test_by_what_its_class_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(Warp())
    monkeypatch.setattr(Warp, "strength", 2.0)
    assert digest(Warp()) != before


def test_the_state_of_a_generator_does_not_count() -> None:
    generator, own = torch.Generator(), random.Random(1)
    before = digest(Warp(generator=generator, own=own))
    torch.rand(3, generator=generator)
    own.random()
    assert digest(Warp(generator=generator, own=own)) == before


def test_objects_that_hold_each_other() -> None:
    one, other = Warp(), Warp()
    one.__dict__["other"], other.__dict__["other"] = other, one
    assert digest(one) == digest(other)
    shared, twice = [1], Warp()
    twice.__dict__.update(a=shared, b=shared)
    assert digest(twice) != digest(Warp(a=[1], b=[2]))


def test_tensors_that_cannot_be_read() -> None:
    assert digest(torch.zeros(2, device="meta")) != digest(torch.zeros(3, device="meta"))
    assert digest(torch.zeros(2).to_sparse()) == digest(torch.zeros(2).to_sparse())
    assert digest(torch.zeros(2, 3).t()) == digest(torch.zeros(3, 2))


SOURCE = """
import sys
sys.path.insert(0, {root!r})
from torchvision.transforms import v2
from pipediag.replay.fingerprint import digest

class Mask:
    def __init__(self): self.names = {{"b", "a", "c"}}
    def __call__(self, image): return image * {factor}

print(digest([Mask(), v2.RandomResizedCrop(8), lambda image: image + 1]))
"""


@pytest.mark.slow
def test_other_processes_agree_if_the_code_is_the_same(tmp_path: Path) -> None:
    ran = []
    for name, factor in (("one", 2), ("alike", 2), ("other", 3)):
        script = tmp_path / f"{name}.py"
        script.write_text(SOURCE.format(root=str(Path(__file__).parents[2]), factor=factor))
        ran.append(subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True))
    one, alike, other = (process.communicate(timeout=300)[0] for process in ran)
    assert one and one == alike != other


def test_comments_and_lines_do_not_count() -> None:
    def defined(source: str) -> Any:
        namespace: dict[str, Any] = {"__name__": __name__}
        exec(source, namespace)
        return namespace["fn"]

    before = digest(defined("def fn(x):\n    return x * 2"))
    assert digest(defined("\n# a script that is edited while it runs\ndef fn(x):  # twice\n    return x * 2")) == before
    assert digest(defined("def fn(x):\n    return x * 3")) != before


def test_a_namespace_counts_by_the_attributes_that_a_function_names() -> None:
    """A plan survives changes of parsed arguments that its transforms do not read."""
    settings = types.SimpleNamespace(factor=2, epochs=10)

    def scaled(image: Any) -> Any:
        return image * settings.factor

    whole, named = digest(scaled), digest(scaled, named_only=True)
    settings.epochs = 20
    assert digest(scaled) != whole and digest(scaled, named_only=True) == named
    settings.factor = 3
    assert digest(scaled, named_only=True) != named

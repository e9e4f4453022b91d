"""The user's own callables: which move to the device, in which form, and why the others stay."""

from __future__ import annotations

import argparse
import collections
import contextlib
import enum
import functools
import itertools
import logging as logs
import math
import os
import pathlib
import pickle
import random
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from pipediag.replay.custom import Moved, Refused, Shapes, reference_of
from pipediag.replay.custom import prove as proven
from pipediag.replay.custom.held import Held
from pipediag.replay.custom.proof import OnDevice, check_equal, form, range_of
from pipediag.replay.custom.reference import Group

from . import settings_of_tests

CPU = torch.device("cpu")
MEAN = torch.tensor([0.4, 0.5, 0.6])[:, None, None]
SCALES = {"contrast": [torch.tensor(1.5)]}
calls = 0
LOG: list[int] = []


def made(*shape: int, dtype: torch.dtype = torch.float32, n: int = 6, seed: int = 0) -> list[Tensor]:
    """Return different images whose brightest pixel has the highest level, as in most photographs."""
    generator = torch.Generator().manual_seed(seed)
    images = (
        torch.rand(n, *(shape or (3, 8, 10)), generator=generator) ** torch.linspace(0.5, 2, n)[:, None, None, None]
    )
    images[:, 0, 0, 0] = 1
    return list(images if dtype.is_floating_point else (images * 255).to(dtype))


def prove(fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], device: torch.device) -> Moved:
    return proven(fn, reference_of(fn, samples), device)


def agrees(outcome: Moved, fn: Callable[[Tensor], Tensor], images: Sequence[Tensor], device: torch.device) -> Moved:
    """Check that it gives for new images of one shape what ``fn`` gives one by one."""
    expected = torch.stack([fn(image) for image in images])
    actual = outcome.apply(torch.stack(list(images)).to(device))
    assert actual.device.type == device.type and actual.is_contiguous()
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert outcome.shapes.out(tuple(images[0].shape), images[0].dtype) == (tuple(expected.shape[1:]), expected.dtype)
    return outcome


def moves(fn: Callable[[Tensor], Tensor], device: torch.device, how: str, dtype: torch.dtype = torch.float32) -> Moved:
    moved = agrees(prove(fn, made(dtype=dtype), device), fn, made(dtype=dtype, seed=1, n=3), device)
    assert moved.how == how
    return moved


def reason(fn: Callable[[Tensor], Any], samples: Sequence[Tensor] | None = None) -> str:
    with pytest.raises(Refused) as refused:
        prove(fn, made() if samples is None else samples, CPU)
    told = str(refused.value)
    assert told and "\n" not in told
    return told


SAMPLES = made()


# What moves


def gamma(x: Tensor) -> Tensor:
    return x.clamp(0, 1) ** (1 / 2.2)


def minus_global(x: Tensor) -> Tensor:
    return x - MEAN


def through_helper(x: Tensor) -> Tensor:
    return minus_global(x) * SCALES["contrast"][0]


def with_default(x: Tensor, mean: Tensor = MEAN, *, scale: Tensor = MEAN) -> Tensor:
    return (x - mean) / scale


def scaled(x: Tensor, by: Tensor, offset: Tensor) -> Tensor:
    return x * by + offset


def closing_over(mean: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x - mean


class PerChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0])[:, None, None])
        self.weight = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.plain = [torch.tensor(0.25)]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.weight + self.plain[0] - MEAN


class Subtract:
    shared = torch.tensor(0.125)

    def __init__(self) -> None:
        self.mean = {"of": (MEAN.clone(), "a name")}

    def __call__(self, x: Tensor) -> Tensor:
        return self.shifted(x) + self.static(x)

    def shifted(self, x: Tensor) -> Tensor:
        return x - self.mean["of"][0] - self.shared

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x * MEAN


class ByGlobal:
    def __call__(self, x: Tensor) -> Tensor:
        return x - MEAN


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fn = closing_over(MEAN.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


class SlottedByGlobal:
    __slots__ = ("factor", "mean")

    def __init__(self) -> None:
        self.factor, self.mean = 2, MEAN.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor - MEAN - self.mean


def carrying(x: Tensor) -> Tensor:
    return x


carrying.mean = MEAN.clone()  # type: ignore[attr-defined]


def by_attribute(x: Tensor) -> Tensor:
    return carrying(x) - carrying.mean  # type: ignore[attr-defined,no-any-return]


class Slotted:
    __slots__ = ("__mean",)

    def __init__(self) -> None:
        self.__mean = MEAN.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return x - self.__mean


@dataclass(frozen=True)
class Frozen:
    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x - self.mean


class Pair(NamedTuple):
    mean: Tensor
    name: str


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


def closing_over_pair() -> Callable[[Tensor], Tensor]:
    pair, side = Pair(MEAN.clone(), "mean"), Side.LEFT
    return lambda x: x - pair.mean if side is Side.LEFT else x


def closing_over_namespace() -> Callable[[Tensor], Tensor]:
    args = argparse.Namespace(gain=1.5, mean=MEAN.clone(), out=pathlib.Path("runs"))
    return torch.no_grad()(lambda x: x * args.gain - args.mean if args.out.name else x)


BATCHED: dict[str, Callable[[Tensor], Tensor]] = {
    "lambda": lambda x: x / 255,
    "gamma": gamma,
    "identity": lambda x: x,
    "module": PerChannel().eval(),
    "method of a module": PerChannel().forward,
    "global": minus_global,
    "helper": through_helper,
    "default": with_default,
    "closure": closing_over(MEAN.clone()),
    "namespace": closing_over_namespace(),
    "closure over a tuple": closing_over_pair(),
    "partial": functools.partial(scaled, by=torch.tensor(0.5), offset=MEAN.clone()),
    "object": Subtract(),
    "method": Subtract().shifted,
    "object with a global": ByGlobal(),
    "slots": Slotted(),
    "slots and a global": SlottedByGlobal(),
    "attribute of a function": by_attribute,
    "module with a function": WithFunction(),
    "frozen dataclass": Frozen(MEAN.clone()),
    "constants made inside": lambda x: (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) * torch.linspace(0, 1, 10),
    "flip": lambda x: x.flip(-1),
    "crop": lambda x: x[..., 1:-2, 2:7],
    "view": lambda x: x.view(*x.shape[:-2], -1),
    "to uint8": lambda x: (x * 255).round().to(torch.uint8),
    "to bool": lambda x: x > 0.5,
    "to complex": lambda x: torch.fft.fft2(x),
    "to half": lambda x: x.half(),
    "NaN and infinity": lambda x: (x - 0.5).log() + 1 / (x - 1),
    "threshold": lambda x: torch.where(x > MEAN, x, 0),
}


@pytest.mark.parametrize("name", BATCHED)
def test_moves_as_a_batch(name: str, device: torch.device) -> None:
    moves(BATCHED[name], device, "batch")


VMAPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of the image": lambda x: x - x.mean(),
    "brightest of the image": lambda x: x / x.max(),
    "darkest of the image": lambda x: x - x.min(),
    "channel swap": lambda x: x[[2, 1, 0]],
    "first dimension flipped": lambda x: x.flip(0),
    "permuted": lambda x: x.permute(1, 2, 0),
    "statistic": lambda x: x.std(dim=(1, 2)),
    "one number": lambda x: x.sum(),
    "other than the input": lambda x: MEAN.clone(),
    "by the number of channels": lambda x: x[:3] if x.shape[0] == 4 else x * 1,
    "a number of its own": lambda x: x * MEAN.sum().item(),
}


@pytest.mark.parametrize("name", VMAPPED)
def test_moves_under_vmap(name: str, device: torch.device) -> None:
    moves(VMAPPED[name], device, "vmap")


def test_one_that_mixes_is_caught_among_look_alikes(device: torch.device) -> None:
    """All samples have the same brightest pixel, or are the same."""
    same = [made()[0]] * 4
    assert agrees(
        prove(VMAPPED["brightest of the image"], same, device), VMAPPED["brightest of the image"], same, device
    )
    for image in same:
        image[0, 0, 1] = 0
    for fn in (lambda x: x / x.max(), lambda x: x - x.min(), lambda x: x - x.mean()):
        outcome = prove(fn, same, device)
        assert outcome.how == "vmap"


def test_one_that_mixes_is_caught_where_every_shape_occurs_once(device: torch.device) -> None:
    samples = [made(3, 6 + i, 7, seed=i, n=1)[0] for i in range(4)]
    outcome = prove(lambda x: x - x.mean(), samples, device)
    assert outcome.how == "vmap"


def test_samples_of_several_shapes_and_dtypes(device: torch.device) -> None:
    samples = [*made(3, 6, 7), *made(3, 9, 5), *made(1, 6, 7, dtype=torch.uint8)]
    outcome = prove(lambda x: x.flip(-2) / 2, samples, device)
    assert outcome.how == "batch"
    agrees(outcome, lambda x: x.flip(-2) / 2, made(3, 9, 5, seed=3), device)
    assert outcome.shapes.out((1, 6, 7), torch.uint8) == ((1, 6, 7), torch.float32)
    assert outcome.shapes.out((3, 40, 50), torch.float64) == ((3, 40, 50), torch.float64)


def test_uint8_within_its_dtype(device: torch.device) -> None:
    moves(lambda x: 255 - x, device, "batch", torch.uint8)
    moves(lambda x: x // 2 + 3, device, "batch", torch.uint8)
    moves(lambda x: x / 255, device, "batch", torch.uint8)


def test_branch_on_the_pixels_takes_a_loop(device: torch.device) -> None:
    moved = moves(lambda x: x * 2 if x.mean() > 0.5 else x / 2, device, "loop")
    assert moved.how == "loop"
    moves(lambda x: x / x.max().item(), device, "loop")
    moves(lambda x: x * max(x.flatten().tolist()), device, "loop")


def test_branch_that_all_samples_take_alike_is_no_batch(device: torch.device) -> None:
    moved = prove(lambda x: x * 2 if x.max() > 0.01 else x - 7, made(), device)
    assert moved.how == "loop"
    black = torch.zeros(2, 3, 8, 10, device=device)
    assert (moved.apply(black) == -7).all()


def test_without_fake_tensors_nothing_is_moved_as_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch._subclasses.fake_tensor", None)
    outcome = prove(gamma, made(), CPU)
    assert outcome.how == "vmap"


def test_one_that_refuses_dark_images_is_no_batch() -> None:
    def strict(x: Tensor) -> Tensor:
        torch._assert(float(x.detach().max()) == 1, "not normalised")
        return x * 2

    outcome = prove(strict, made(), CPU)
    assert outcome.how == "loop"


def test_one_that_fails_for_dark_images_is_no_batch(device: torch.device) -> None:
    """The brightest pixel of every sample is 1, and so is that of every batch."""
    table = torch.tensor([1.0, 2.0])
    moves(lambda x: x * table[(1 / x.max()).long().view(1)], device, "vmap")


def test_images_that_cannot_be_made_darker_are_no_batch(device: torch.device) -> None:
    outcome = prove(lambda x: x * 2, [torch.rand(3, 0, 4)] * 3, device)
    assert outcome.how == "vmap"


def test_settings_around_the_proof_have_no_effect() -> None:
    with torch.no_grad():
        assert reason(nn.Conv2d(3, 3, 1)) == "its result carries gradients"
    with torch.device("meta"):
        assert prove(BATCHED["constants made inside"], SAMPLES, CPU).how == "batch"


def test_channels_last_batches(device: torch.device) -> None:
    moved = moves(lambda x: x.view(*x.shape[:-3], -1), device, "batch")
    batch = torch.stack(made()).to(device).to(memory_format=torch.channels_last)
    assert torch.equal(moved.apply(batch), batch.contiguous().view(6, 240))


def test_autocast_around_the_loop_changes_nothing(device: torch.device) -> None:
    matrix = torch.rand(10, 10, generator=torch.Generator().manual_seed(0))
    moved = prove(lambda x: x @ matrix, made(), device)
    batch = torch.stack(made()).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = moved.apply(batch)
    assert torch.equal(result, moved.apply(batch)) and result.dtype == torch.float32


def test_default_device_of_the_loop_changes_nothing(device: torch.device) -> None:
    moved = moves(BATCHED["constants made inside"], device, "batch")
    batch = torch.stack(made()).to(device)
    with torch.device("meta"):
        assert torch.equal(moved.apply(batch), moved.apply(batch))


def test_a_batch_call_that_loses_samples_is_an_error() -> None:
    """The proof tries no batch of seven."""
    moved = prove(lambda x: x[:3] if x.shape[0] == 7 else x * 1, made(), CPU)
    assert moved.how == "batch"
    with pytest.raises(RuntimeError, match="a batch of shape"):
        moved.apply(torch.rand(7, 3, 8, 10))


def test_result_has_its_own_memory(device: torch.device) -> None:
    moved = moves(lambda x: MEAN * 1, device, "vmap")
    batch = torch.stack(made()).to(device)
    moved.apply(batch).zero_()
    assert torch.equal(moved.apply(batch)[5].cpu(), MEAN)


@settings(max_examples=15)
@given(
    channels=st.sampled_from([1, 3, 4]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    n=st.integers(2, 6),
    name=st.sampled_from(["gamma", "flip", "identity", "to uint8"]),
)
def test_any_shape(channels: int, height: int, width: int, n: int, name: str) -> None:
    images = made(channels, height, width, n=n)
    assert agrees(prove(BATCHED[name], images, CPU), BATCHED[name], images[:1], CPU).how == "batch"


@settings(max_examples=15)
@given(height=st.integers(1, 9), width=st.integers(2, 9), channels=st.sampled_from([1, 3]), n=st.integers(2, 6))
def test_statistics_of_the_image_never_mix(channels: int, height: int, width: int, n: int) -> None:
    outcome = prove(lambda x: x / x.max(), made(channels, height, width, n=n), CPU)
    assert outcome.how == "vmap"


# The device has a copy: the user's own tensors may change later, and the proof leaves them alone


def closure_tensor(fn: Any) -> Tensor:
    return fn.__closure__[0].cell_contents


def as_library(fn: Any) -> Any:
    fn.__module__ = "torch"
    return fn


HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Tensor]]] = {
    "closure": (lambda: closing_over(MEAN.clone()), closure_tensor),
    "closure of a library": (lambda: as_library(closing_over(MEAN.clone())), closure_tensor),
    "partial": (lambda: functools.partial(scaled, by=MEAN.clone(), offset=MEAN), lambda fn: fn.keywords["by"]),
    "buffer": (PerChannel, lambda fn: fn.scale),
    "parameter": (PerChannel, lambda fn: fn.weight),
    "plain attribute of a module": (PerChannel, lambda fn: fn.plain[0]),
    "bound method of a module": (lambda: PerChannel().forward, lambda fn: fn.__self__.scale),
    "attribute": (Subtract, lambda fn: fn.mean["of"][0]),
    "bound method": (lambda: Subtract().shifted, lambda fn: fn.__self__.mean["of"][0]),
    "class attribute": (Subtract, lambda fn: Subtract.shared),
    "static method's global": (Subtract, lambda fn: MEAN),
    "slot": (Slotted, lambda fn: fn._Slotted__mean),
    "function of a module": (WithFunction, lambda fn: closure_tensor(fn.fn)),
    "slot and global": (SlottedByGlobal, lambda fn: fn.mean),
    "attribute of a function": (lambda: by_attribute, lambda fn: carrying.mean),  # type: ignore[attr-defined]
    "frozen dataclass": (lambda: Frozen(MEAN.clone()), lambda fn: fn.mean),
    "default": (lambda: with_default, lambda fn: MEAN),
    "global": (lambda: minus_global, lambda fn: MEAN),
    "global of __call__": (ByGlobal, lambda fn: MEAN),
    "global of a helper": (lambda: through_helper, lambda fn: MEAN),
    "global of forward": (PerChannel, lambda fn: MEAN),
    "item of a global": (lambda: through_helper, lambda fn: SCALES["contrast"][0]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_it_holds_is_copied_to_the_device(name: str, device: torch.device) -> None:
    make, find = HOLDERS[name]
    fn = make()
    tensor = find(fn)
    kept, version = tensor.clone(), tensor._version
    batch = torch.stack(made()).to(device)
    moved = prove(fn, made(), device)
    assert moved.how == "batch"
    assert find(fn) is tensor and tensor.device == CPU and tensor._version == version and not moved.stale()
    before = moved.apply(batch)
    try:
        with torch.no_grad():
            tensor.add_(1)
        assert torch.equal(moved.apply(batch), before)
        assert moved.stale()
    finally:
        with torch.no_grad():
            tensor.copy_(kept)
    assert torch.equal(tensor, kept) and not moved.stale()


@pytest.mark.parametrize("name", HOLDERS)
def test_what_it_holds_is_on_the_device_of_the_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *args, **settings: contextlib.nullcontext())  # unknown to meta
    meta, fn = torch.device("meta"), HOLDERS[name][0]()
    for how in ("batch", "vmap", "loop"):
        apply = form(how, fn, OnDevice(Held(fn).tensors, meta), meta)
        assert apply(torch.empty(2, 3, 8, 10, device=meta)).device == meta


@pytest.mark.parametrize("train", [True, False])
def test_module_keeps_its_mode(train: bool, device: torch.device) -> None:
    class ByMode(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x * 3

    fn = ByMode().train(train)
    moves(fn, device, "batch")
    assert fn.training is train


def test_module_with_parts_that_refer_back(device: torch.device) -> None:
    class Part(nn.Module):
        def __init__(self, owner: nn.Module) -> None:
            super().__init__()
            self.owner = [owner]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.owner[0].scale

    class Whole(PerChannel):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(self)

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    moves(Whole(), device, "batch")


def test_functions_and_objects_that_refer_to_themselves(device: torch.device) -> None:
    mean = MEAN.clone()

    def halved(x: Tensor, times: int = 2) -> Tensor:
        return halved(x / 2, times - 1) if times else x - mean * 0

    assert isinstance(prove(halved, made(), CPU), Moved)

    class Loop(Subtract):
        def __init__(self) -> None:
            super().__init__()
            self.me = self

    moves(Loop(), device, "batch")


def test_class_keeps_calling_its_base(device: torch.device) -> None:
    class Again(Subtract):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x) - MEAN

    moves(Again(), CPU, "batch")


MANY = [(i,) for i in range(60_000)]


def of_library(x: Tensor) -> Tensor:
    return x * len(MANY)


class OfLibrary:
    items = MANY


def test_code_of_libraries_is_not_searched(device: torch.device) -> None:
    as_library(of_library), as_library(OfLibrary)
    library = OfLibrary()
    moves(lambda x: of_library(x) + len(library.items), device, "batch")
    assert "state" in reason(as_library(counting_in_a_closure()))  # but it may close over the user's own values


def test_too_much_to_copy() -> None:
    images = torch.empty(1).expand(1 << 30)
    assert "256 MiB" in reason(lambda x: x * len(images))
    assert "objects" in reason(lambda x: x * len(MANY))


def test_cannot_be_copied() -> None:
    class Only:
        def __init__(self) -> None:
            self.mean = MEAN.clone()

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("there is one of me only")

        def __call__(self, x: Tensor) -> Tensor:
            return x - self.mean

    assert reason(Only()) == "what it holds cannot be copied: there is one of me only"


def test_with_a_destructor() -> None:
    """A copy would run it too, while the original still needs its file."""
    ended = []

    class Table:
        def __call__(self, x: Tensor) -> Tensor:
            return x - MEAN

        def __del__(self) -> None:
            ended.append(self)

    table = Table()
    assert reason(table).startswith("what it holds cannot be copied: the class 'Table' has a destructor")
    assert not ended


# What stays


def test_raising() -> None:
    def fn(x: Tensor) -> Tensor:
        raise ValueError("no such thing\nand more of it")

    assert reason(fn) == "it raises ValueError: no such thing"
    assert reason(lambda x: x.view(7, 7)).startswith("it raises RuntimeError")


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda x: (x, x), "'tuple'"),
        (lambda x: [x], "'list'"),
        (lambda x: {"x": x}, "'dict'"),
        (lambda x: None, "'NoneType'"),
        (lambda x: x.mean().item(), "'float'"),
        (lambda x: x.numpy(), "'ndarray'"),
        (lambda x: PIL.Image.fromarray((x[0].numpy() * 255).astype("uint8")), "'Image'"),
    ],
)
def test_returning_something_else(fn: Callable[[Tensor], Any], told: str) -> None:
    assert told in reason(fn)


def test_numpy_scipy_and_pillow() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")

    def by_pillow(x: Tensor) -> Tensor:
        image = PIL.Image.fromarray((x * 255).byte().permute(1, 2, 0).numpy())
        return torch.from_numpy(np.array(image.rotate(90))).permute(2, 0, 1)

    def branch(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2) if x.mean() > 0.6 else x * 2

    for fn in (
        lambda x: torch.from_numpy(x.numpy() * 2),
        lambda x: torch.from_numpy(np.clip(np.asarray(x), 0, 0.5)).to(x.device),
        lambda x: torch.as_tensor(np.clip(x, 0, 0.5)).clone(),
        lambda x: torch.from_numpy(ndimage.gaussian_filter(x.cpu().numpy(), 1)).to(x),
        lambda x: torch.as_tensor(np.from_dlpack(x) + 1),
        by_pillow,
        branch,
    ):
        assert "numpy" in reason(fn)


def test_numpy_constants_are_no_numpy_of_the_image(device: torch.device) -> None:
    factor = np.float32(0.5)
    moves(lambda x: x * float(factor), device, "batch")


class Jitter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(1).uniform_(0.5, 1.5)


@pytest.mark.parametrize(
    ("fn", "whose"),
    [
        (lambda x: x + torch.rand(()), "torch's"),
        (lambda x: x + torch.rand_like(x), "torch's"),
        (Jitter(), "torch's"),
        (nn.Dropout(0.5), "torch's"),
        (lambda x: x * random.random(), "Python's"),
        (lambda x: x.flip(-1) if random.random() < 2 else x, "Python's"),
        (lambda x: x * float(np.random.rand()), "numpy's"),
    ],
)
def test_drawing(fn: Callable[[Tensor], Tensor], whose: str) -> None:
    assert reason(fn).startswith(f"it draws from {whose} random generator")


def test_drawing_for_some_pixels_only() -> None:
    assert "torch's" in reason(lambda x: x + torch.rand(()) if x.mean() < 0.4 else x)


def test_seeding_is_drawing() -> None:
    def fn(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x * 2

    assert "torch's" in reason(fn)


def test_drawing_in_a_fork() -> None:
    def fn(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return x + torch.rand(())

    assert "differs from call to call" in reason(fn)


@functools.lru_cache
def ramp(width: int) -> Tensor:
    return torch.linspace(0, 1, width)


def metered(meter: Any) -> Callable[[Tensor], Tensor]:
    meter.count = 1
    return lambda x: x * meter


def turned(quarters: Iterator[int]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.rot90(next(quarters))


UNREADABLE: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "Generator of torch": lambda: holding(torch.Generator(), lambda g: torch.rand((), generator=g)),
    "Generator of Python": lambda: holding(random.Random(3), lambda g: g.random()),
    "method of a generator": lambda: holding(random.Random(3).random, lambda draw: draw()),
    "Generator of numpy": lambda: holding(np.random.default_rng(3), lambda g: g.random()),
    "older generator of numpy": lambda: holding(np.random.RandomState(3), lambda g: g.rand()),
    "deque": lambda: holding(collections.deque([1], 4), lambda d: d.append(1)),
    "iterator": lambda: turned(itertools.cycle(range(4))),
    "generator function's": lambda: turned(i % 4 for i in itertools.count()),
    "set of objects": lambda: holding({Subtract()}, lambda s: None),
    "array of objects": lambda: holding(np.array([[1], {}], dtype=object), lambda a: a[0].append(1)),
    "sparse tensor": lambda: holding(torch.eye(3).to_sparse(), lambda t: t.mul_(2)),
    "number with attributes": lambda: metered(Meter(2)),
    "lock": lambda: holding(threading.Lock(), lambda lock: None),
    "cached function": lambda: lambda x: x * ramp(x.shape[-1]),
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_holding_a_tensor_that_workers_cannot_read() -> None:
    assert "outside the CPU's memory" in reason(holding(torch.zeros(3, device="cuda"), lambda _: None))


@pytest.mark.parametrize("name", UNREADABLE)
def test_holding_what_cannot_be_compared(name: str) -> None:
    assert reason(UNREADABLE[name]()).startswith("it holds an object whose state cannot be compared (of type '")


class Counter:
    total = 0

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * 2

    def listed(self, x: Tensor) -> Tensor:
        self.seen.append(len(self.seen))
        return x * 2

    def of_class(self, x: Tensor) -> Tensor:
        type(self).total += 1
        return x * 2

    def new_of_class(self, x: Tensor) -> Tensor:
        type(self).latest = float(x.sum())  # type: ignore[attr-defined]
        return x * 2

    def cached(self, x: Tensor) -> Tensor:
        if not hasattr(self, "grid"):
            self.grid = torch.linspace(0, 1, x.shape[-1])
        return x * self.grid


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean())
        return x - self.mean


class SlottedCounter:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * 2


class CountingSetter:
    @property
    def size(self) -> int:
        return 3

    @size.setter
    def size(self, size: int) -> None:
        LOG.append(size)

    def __call__(self, x: Tensor) -> Tensor:
        self.size = x.shape[-1]
        return x * 2


class Meter(int):
    count = 0


def counting_in_a_closure() -> Callable[[Tensor], Tensor]:
    count = 0

    def fn(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * 2

    return fn


def counting_in_a_global(x: Tensor) -> Tensor:
    global calls
    calls += 1
    return x * 2


def counting_in_a_helper(x: Tensor) -> Tensor:
    return counting_in_a_global(x)


def logging(x: Tensor) -> Tensor:
    LOG.append(1)
    return x * 2


def logging_batches(x: Tensor) -> Tensor:
    if x.dim() == 4:
        LOG.append(1)
    return x * 2


def counting_by_attribute(x: Tensor) -> Tensor:
    counting_by_attribute.count = getattr(counting_by_attribute, "count", 0) + 1  # type: ignore[attr-defined]
    return x * 2


def counting_in_a_default(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(1)
    return x * 2


def holding(content: Any, change: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def fn(x: Tensor) -> Tensor:
        change(content)
        return x * 2

    return fn


STATEFUL: dict[str, Callable[[], Any]] = {
    "attribute": Counter,
    "list": lambda: Counter().listed,
    "class attribute": lambda: Counter().of_class,
    "new class attribute": lambda: Counter().new_of_class,
    "lazily made": lambda: Counter().cached,
    "buffer": RunningMean,
    "batch norm": lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)),
    "slot": SlottedCounter,
    "closure": counting_in_a_closure,
    "closure of a library": lambda: as_library(counting_in_a_closure()),
    "decorated": lambda: torch.no_grad()(counting_in_a_closure()),
    "global": lambda: counting_in_a_global,
    "global of a library": lambda: as_library(types.FunctionType(counting_in_a_global.__code__, globals())),
    "setter": lambda: CountingSetter(),
    "global of a helper": lambda: counting_in_a_helper,
    "global list": lambda: logging,
    "attribute of a function": lambda: counting_by_attribute,
    "default": lambda: counting_in_a_default,
    "partial": lambda: functools.partial(lambda seen, x: seen.update(a=1) or x * 2, {}),
    "set": lambda: holding(set(), lambda s: s.add(1)),
    "array": lambda: holding(np.zeros(3), lambda a: a.__iadd__(1)),
    "tensor": lambda: holding(torch.zeros(3), lambda t: t.add_(1)),
    "bound append": lambda: holding([].append, lambda append: append(1)),
    "namespace": lambda: holding(argparse.Namespace(n=0), lambda args: setattr(args, "n", args.n + 1)),
    "attribute of what it holds": lambda: holding(Subtract(), lambda s: setattr(s, "new", 1)),
    "only for batches": lambda: logging_batches,
}


@pytest.mark.parametrize("name", STATEFUL)
def test_keeping_state(name: str) -> None:
    before = calls, len(LOG)
    try:
        assert reason(STATEFUL[name]()) == "it keeps state between calls"
    finally:
        globals()["calls"] = before[0]
        del LOG[before[1] :]
        Counter.total = 0


def test_state_that_is_set_to_the_same_value_is_none(device: torch.device) -> None:
    class Remembers:
        def __init__(self) -> None:
            self.size, self.factor = (8, 10), 2.5

        def __call__(self, x: Tensor) -> Tensor:
            self.size, self.factor = tuple(x.shape[-2:]), float("2.5")
            return x * self.factor

    moves(Remembers(), device, "batch")


def test_depending_on_the_time() -> None:
    assert "differs from call to call" in reason(lambda x: x * (time.perf_counter_ns() % 1009))


def imported_inside() -> float:
    from . import settings_of_tests as inside

    return float(inside.GAIN)


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda x: x * (get_worker_info() is None), "'get_worker_info'"),
        (lambda x: x * float(os.environ.get("GAIN", 1)), "'environ'"),
        (lambda x: x * imported_inside(), "a module of yours that it imports itself"),
        (lambda x: x * getattr(settings_of_tests, "ga".upper() + "IN"), "by names that it computes"),
    ],
    ids=["worker", "environment", "import", "name"],
)
def test_reading_what_cannot_be_compared_at_each_call(fn: Callable[[Tensor], Tensor], told: str) -> None:
    assert told in reason(fn)


def logging_brightness(x: Tensor) -> Tensor:
    logs.getLogger("mine").info("brightness %s", x.max())
    return x * 2


def printing(x: Tensor) -> Tensor:
    print(tuple(x.shape))
    return x * 2


@pytest.mark.parametrize("fn", [printing, logging_brightness, lambda x: printing(x)])
def test_what_prints_for_each_sample_stays(fn: Callable[[Tensor], Tensor]) -> None:
    assert "it may print or log, by" in reason(fn)


def test_holding_much_that_others_write_into() -> None:
    table = torch.from_numpy(np.ones((3, 400, 400), dtype=np.float32))
    assert "others can write into" in reason(lambda x: x * table[0, 0, 0])
    own = table.clone()
    assert isinstance(prove(lambda x: x * own[0, 0, 0], made(), CPU), Moved)


def test_writing_into_the_input() -> None:
    def by_numpy(x: Tensor) -> Tensor:
        x.numpy()[0] = 0
        return x * 2

    samples = made()
    kept = [sample.clone() for sample in samples]
    for fn in (lambda x: x.div_(255), lambda x: x.mul_(1), lambda x: x[0].zero_() + x, by_numpy):
        assert reason(fn, samples) == "it writes into its input"
    assert all(torch.equal(a, b) for a, b in zip(samples, kept, strict=True))


def test_shape_that_depends_on_the_pixels() -> None:
    assert "depends on the pixels" in reason(lambda x: x[x > 0.5])
    assert "depends on the pixels" in reason(lambda x: x[:, : 2 + int(x.mean() > 0.5)])
    assert "depends on the pixels" in reason(lambda x: x[:, : 2 + int(x.max() == 1)])  # the same for all samples


def test_gradients() -> None:
    assert reason(nn.Conv2d(3, 3, 1)) == "its result carries gradients"


def test_result_elsewhere() -> None:
    assert "CPU's memory" in reason(lambda x: x.to("meta"))
    assert "CPU's memory" in reason(lambda x: x.to_sparse())


def test_too_few_samples() -> None:
    assert "fewer than two samples" in reason(gamma, made()[:1])


def test_nothing_is_drawn_by_the_proof() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    prove(gamma, made(), CPU)
    reason(lambda x: x + torch.rand(()) + random.random() + float(np.random.rand()))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()
    assert torch.equal(before[0], after[0]) and before[1] == after[1] and all(map(np.array_equal, before[2], after[2]))


# The tolerance


@pytest.mark.parametrize(("gap", "moved"), [(0.9e-5, True), (1.2e-5, False), (math.nan, False), (math.inf, False)])
def test_tolerance_of_floats(gap: float, moved: bool) -> None:
    expected = torch.stack(made())
    scale = range_of([Group(expected, expected)])
    actual = expected.clone()
    actual[2, 1, 3, 4] += gap * scale
    if moved:
        check_equal(actual, expected, scale)
    else:
        with pytest.raises(Refused):
            check_equal(actual, expected, scale)


@pytest.mark.parametrize(("levels", "elements", "moved"), [(1, 4, True), (1, 5, False), (2, 1, False), (0, 0, True)])
def test_tolerance_of_integers(levels: int, elements: int, moved: bool) -> None:
    expected = torch.full((1, 1, 40, 100), 7, dtype=torch.uint8)
    actual = expected.clone()
    actual.view(-1)[:elements] -= levels
    if moved:
        check_equal(actual, expected, 255)
    else:
        with pytest.raises(Refused, match="of the range"):
            check_equal(actual, expected, 255)


def test_tolerance_of_booleans() -> None:
    expected = torch.zeros(1, 1, 100, 100, dtype=torch.bool)
    actual = expected.clone()
    actual[0, 0, 0, 0] = True
    with pytest.raises(Refused):
        check_equal(actual, expected, 1)


@pytest.mark.parametrize(
    ("values", "expected"), [([2.0, 5.0, math.nan], 3.0), ([4.0, 4.0], 4.0), ([0.0, 0.0], 1.0), ([math.inf], 1.0)]
)
def test_range(values: list[float], expected: float) -> None:
    results = torch.tensor(values)
    assert range_of([Group(results, results)]) == expected


# What the workers need


def test_shapes_travel() -> None:
    shapes = pickle.loads(pickle.dumps(Shapes(gamma, "")))
    assert shapes.out((3, 4, 5), torch.float32) == ((3, 4, 5), torch.float32)
    moved = prove(gamma, made(), CPU)
    assert pickle.loads(pickle.dumps(moved.shapes)).known == {((3, 8, 10), torch.float32): ((3, 8, 10), torch.float32)}


def test_shapes_without_pixels() -> None:
    seen: list[str] = []

    def fn(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return x[:, 1:].half()

    shapes = Shapes(fn, "")
    for _ in range(2):
        assert shapes.out((3, 400, 500), torch.uint8) == ((3, 399, 500), torch.float16)
    assert seen == ["meta"]


def test_shapes_on_zeros() -> None:
    assert Shapes(minus_global, "").out((1, 4, 5), torch.uint8) == ((3, 4, 5), torch.float32)
    assert Shapes(lambda x: x[:, :2] if x.max() == 0 else x, "").out((1, 4, 5), torch.uint8) == ((1, 2, 5), torch.uint8)
    with pytest.raises(ZeroDivisionError):
        Shapes(lambda x: x * (1 / x.max().item()), "").out((1, 4, 5), torch.uint8)


def test_shapes_of_the_proof_need_no_run() -> None:
    moved = prove(lambda x: x * (1 / x.max().item()), made(), CPU)
    assert moved.how == "loop"
    assert moved.shapes.out((3, 8, 10), torch.float32) == ((3, 8, 10), torch.float32)

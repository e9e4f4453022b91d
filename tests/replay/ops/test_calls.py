"""What is computed for each pixel is what torch computes without a recording: values, dtypes, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipediag.replay.ops.calls import ELEMENTWISE, arranged, refusal
from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.pack.packing import pack
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.images import real
from pipediag.replay.record.plain_code import Tried
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.run.replay import replay

SHAPE = (3, 5, 7)
DTYPES = [torch.float32, torch.uint8, torch.int64]
ONE = ("neg", "abs", "logical_not", "bitwise_not")
WHOLE = ("floor_divide", "remainder")
#: Calls on one tensor after the other: the name, and what stands beside the tensor.
Program = list[tuple[str, Any]]
numbers = st.one_of(st.integers(0, 9), st.sampled_from([0.25, -1.5, 0.1, 3.0]))
steps = st.tuples(
    st.sampled_from([*ELEMENTWISE, "where of masks"]), st.one_of(numbers, st.sampled_from(["again", "ramp"]))
)
RAMP = torch.arange(105).reshape(SHAPE) % 11


def ran(program: Program, image: Tensor) -> Tensor:
    """Run the calls as plain code does; those that torch refuses are left out."""
    value = image
    for name, by in program:
        other = image if by == "again" else RAMP.to(image.dtype) if by == "ramp" else by
        try:
            value = _called(name, value, other, image)
        except (RuntimeError, ZeroDivisionError, TypeError):
            continue
    return value


def _called(name: str, value: Tensor, other: Any, image: Tensor) -> Tensor:
    if name in ONE:
        return getattr(value, name)()
    if name in ("where", "where of masks"):
        condition = value > 2
        return torch.where(condition, other, image) if name == "where" else torch.where(condition, 1.0, 0.0)
    if name == "masked_fill":
        return value.masked_fill(value < 3, other if isinstance(other, (int, float)) else 1)
    if name == "clamp":
        return value.clamp(min=other) if isinstance(other, Tensor) else value.clamp(other, other + 2)
    if name in ("minimum", "maximum") or name.startswith("logical"):
        return getattr(torch, name)(value, other if isinstance(other, Tensor) else image)
    return getattr(torch if name == "rsub" else Tensor, name)(value, other)


def laid_out(dtype: torch.dtype, order: tuple[int, int, int], seed: int) -> Tensor:
    """Return an image whose dimensions lie in this order."""
    sides = [SHAPE[dim] for dim in order]
    image = torch.randint(0, 200, sides, generator=torch.Generator().manual_seed(seed))
    image = image.permute([order.index(dim) for dim in range(3)]).to(dtype)
    return image / 16 if dtype.is_floating_point else image


@given(
    program=st.lists(steps, min_size=1, max_size=5),
    dtype=st.sampled_from(DTYPES),
    order=st.permutations([0, 1, 2]),
    stacks=st.booleans(),
)
def test_recorded_calls_give_what_the_calls_give(program: Program, dtype: Any, order: Any, stacks: bool) -> None:
    images = [laid_out(dtype, tuple(order), seed) for seed in range(2)]
    want: Any = [ran(program, image.clone()) for image in images]
    with recording(calls=Tried({})), session.going_on():
        made: Any = [ran(program, stand_in(image)) for image in images]
        if stacks:
            want, made = torch.stack(want), torch.stack(made)
        try:
            packed = pack(made)
        except NotRecordable:  # a refused call was made with pixels, and nothing is left of the recording
            packed = None
    got = replay(packed, torch.device("cpu")) if packed is not None else made
    for one, other in zip(got, want, strict=True):
        one = one if packed is not None or type(one) is Tensor else real(one)
        assert (one.dtype, tuple(one.shape)) == (other.dtype, tuple(other.shape))
        assert torch.equal(one.nan_to_num(9.5), other.nan_to_num(9.5)), (program, dtype)
        assert one.stride() == other.stride(), (program, dtype)


@pytest.mark.parametrize("name", [*ELEMENTWISE])
def test_a_batch_at_once_gives_what_its_images_give_alone(name: str) -> None:
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.bool):
        batch = torch.stack([laid_out(torch.int64, (0, 1, 2), seed) for seed in range(4)]).to(dtype)
        for args in _arguments(name, batch):
            if refusal(name, args):
                continue
            each = [[arg[k] if isinstance(arg, Tensor) else arg for arg in args] for k in range(4)]
            try:
                alone = [arranged(name, one, {}) for one in each]
            except (RuntimeError, TypeError):
                continue
            assert torch.equal(arranged(name, args, {}), torch.stack(alone)), (name, dtype)


def _arguments(name: str, batch: Tensor) -> list[tuple[Any, ...]]:
    if name in ONE:
        return [(batch,)]
    if name == "where":
        return [(batch > 3, batch, batch.flip(0)), (batch > 3, 1.0, 0.0)]
    if name == "masked_fill":
        return [(batch, batch > 3, 2)]
    if name == "clamp":
        return [(batch, 1, 7), (batch, None, 5)]
    return [(batch, batch.flip(0)), (batch, 3), (batch, 0.1)]


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("gt", (torch.ones(2, dtype=torch.float16), 1), "float16"),
        ("eq", (torch.ones(2, dtype=torch.uint8), 300), "does not hold"),
        ("floor_divide", (torch.ones(2), 2), "float32"),
        ("remainder", (torch.ones(2, dtype=torch.int64), 0), "positive whole number"),
        ("masked_fill", (torch.ones(2, dtype=torch.uint8), torch.ones(2) > 0, 0.5), "fraction"),
        ("clamp", (torch.ones(2), 0.0, float("nan")), "finite"),
        ("add", (torch.ones(2), "1"), "number or a tensor"),
    ],
)
def test_what_may_differ_on_a_device_is_refused(name: str, args: Any, says: str) -> None:
    assert says in refusal(name, args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_with_another_default_dtype_nothing_is_recorded(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_default_dtype", lambda: dtype)
    assert "default dtype" in refusal("gt", (torch.ones(2), 1))


def test_an_image_that_may_be_off_is_not_compared() -> None:
    blurred: Callable[[Any], Any] = lambda image: torch.nn.functional.pad(image, (1, 1))  # noqa: E731
    from torchvision.transforms.v2 import functional as F

    with recording(calls=Tried({})):
        image = stand_in(torch.rand(SHAPE))
        assert (blurred(F.horizontal_flip(image)) > 0.5).dtype == torch.bool
        with pytest.raises(NotRecordable, match="compared after gaussian_blur"):
            F.gaussian_blur(image, [3, 3], [1.0]) > 0.5  # noqa: B015

"""Every op that counts as exact gives torchvision's or Pillow's pixels, bit by bit, on random images."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import PIL.Image
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import functional as F

from pipediag.replay.certify.samples import tensor_of
from pipediag.replay.ops import exactness
from pipediag.replay.ops.exactness import LAST_DIGITS, NEIGHBOUR, ONE_LEVEL, Input, deviations
from pipediag.replay.ops.op import State
from pipediag.replay.ops.table import FUNCTIONALS, OPERATIONS
from pipediag.replay.ops.triton import available
from pipediag.replay.pack.packing import pack_ops
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.run.replay import replay_on

FEW, MANY = 40, 4000

By = Literal["v2", "v1", "pillow"]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Draws the arguments of a functional for an image of this height and width.
Draw = Callable[[random.Random, int, int], Arguments]


def _none(r: random.Random, height: int, width: int) -> Arguments:
    return (), {}


def _factor(r: random.Random, height: int, width: int) -> Arguments:
    return (r.choice([r.uniform(0, 3), round(r.uniform(0, 3), 1)]),), {}


def _box(r: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    high, wide = r.randint(1, height), r.randint(1, width)
    return r.randint(0, height - high), r.randint(0, width - wide), high, wide


def _new_size(r: random.Random, height: int, width: int) -> list[int]:
    return [r.randint(2, 2 * height), r.randint(2, 2 * width)]  # a single column is resized wrongly by torch itself


def _resize(mode: str) -> Draw:
    def draw(r: random.Random, height: int, width: int) -> Arguments:
        how = {"interpolation": InterpolationMode(mode), "antialias": mode == "lanczos" or r.random() < 0.5}
        return (_new_size(r, height, width),), how

    return draw


def _resized_crop(mode: str) -> Draw:
    def draw(r: random.Random, height: int, width: int) -> Arguments:
        how = {"interpolation": InterpolationMode(mode), "antialias": r.random() < 0.5}
        return (*_box(r, height, width), _new_size(r, height, width)), how

    return draw


def _erase(r: random.Random, height: int, width: int) -> Arguments:
    top, left, high, wide = _box(r, height, width)
    generator = torch.Generator().manual_seed(r.getrandbits(32))
    shape = r.choice([(3, 1, 1), (3, high, wide)])
    return (top, left, high, wide, 255 * torch.rand(shape, generator=generator)), {}


def _has_noise_for_bytes() -> bool:
    try:
        F.gaussian_noise(torch.zeros(1, 1, 1, dtype=torch.uint8))
    except (AttributeError, ValueError):
        return False
    return True


#: Its name, if this torch has it for tensors.
LANCZOS = ("lanczos",) if hasattr(torch.ops.aten, "_upsample_lanczos2d_aa") else ()
#: By the name of the functional; a second word only tells cases apart.
DRAWS: dict[str, Draw] = {
    **dict.fromkeys(["horizontal_flip", "vertical_flip", "invert", "autocontrast", "equalize"], _none),
    **{f"adjust_{what}": _factor for what in ("brightness", "contrast", "saturation", "sharpness")},
    **{f"resize {mode}": _resize(mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", *LANCZOS)},
    **{f"resized_crop {mode}": _resized_crop(mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")},
    "erase": _erase,
    "crop": lambda r, h, w: (
        (r.randint(-4, h - 1), r.randint(-4, w - 1), r.randint(5, h + 3), r.randint(5, w + 3)),
        {},
    ),
    "pad": lambda r, h, w: (([r.randint(0, 4) for _ in range(4)],), {"fill": r.choice([0, 9, None])}),
    "rotate quarters": lambda r, h, w: ((r.choice([90, 180, 270]),), {"expand": True}),
    "permute_channels": lambda r, h, w: ((r.sample(range(3), 3),), {}),
    "adjust_hue": lambda r, h, w: ((r.choice([r.uniform(-0.5, 0.5), 0.1, 0.0]),), {}),
    "posterize": lambda r, h, w: ((r.randint(1, 8),), {}),
    "solarize": lambda r, h, w: ((r.random(),), {}),
    "rgb_to_grayscale": lambda r, h, w: ((r.choice([1, 3]),), {}),
    "gaussian_noise": lambda r, h, w: ((r.uniform(-0.1, 0.1), r.uniform(0, 0.4), r.random() < 0.5), {}),
    "normalize": lambda r, h, w: (([r.random() for _ in range(3)], [r.uniform(0.1, 1) for _ in range(3)]), {}),
    "to_dtype": lambda r, h, w: ((r.choice([torch.uint8, torch.float32, torch.float16]), r.random() < 0.7), {}),
}
#: Older releases of torchvision know no noise for bytes.
NOT_FOR_BYTES = [("normalize", torch.uint8), *([] if _has_noise_for_bytes() else [("gaussian_noise", torch.uint8)])]
NOT_FOR_FLOATS_OF_V1 = [("equalize", torch.float32), ("posterize", torch.float32)]
NOT_FOR_PICTURES = ("gaussian_noise", "normalize", "to_dtype")


def _image(r: random.Random, dtype: torch.dtype) -> Tensor:
    height, width = r.choice([(32, 32), (16, 24), (r.randint(5, 40), r.randint(5, 40))])
    generator = torch.Generator().manual_seed(r.getrandbits(32))
    x = torch.rand(r.choice([1, 3]), height, width, generator=generator)
    kind = r.choice(["noise", "flat", "black and white", "levels"])
    x = x[:, :1, :1] if kind == "flat" else x.round() if kind == "black and white" else x
    x = x.expand(3, height, width)  # grey if there is one channel
    if dtype == torch.uint8:
        x = x.mul(255).round().to(torch.uint8)
    elif kind == "levels":
        x = x.mul(255).round().div(255)
    channels_last = r.random() < 0.5
    return x.permute(1, 2, 0).contiguous().permute(2, 0, 1) if channels_last else x.contiguous()


def _check_exact_draws(name: str, dtype: torch.dtype, by: By, number: int, device: torch.device) -> None:
    """Compare all draws whose ops are exact by the table; in most cases these are all draws."""
    r = random.Random(name)
    functional = name.split()[0]
    call = getattr(older if by == "v1" else F, functional)
    for seed in range(number):
        x = _image(r, dtype)
        x = x.contiguous() if functional == "gaussian_noise" else x
        args, kwargs = DRAWS[name](r, *x.shape[1:])
        if functional == "solarize" and dtype == torch.uint8:
            args = (255 * args[0],)
        given = PIL.Image.fromarray(x.permute(1, 2, 0).numpy()) if by == "pillow" else x
        if by == "pillow":
            kwargs.pop("antialias", None)  # Pillow always antialiases
        torch.manual_seed(seed)
        expected = tensor_of(call(given, *args, **kwargs))
        torch.manual_seed(seed)
        if by == "pillow":
            with recording():
                ops = call(stand_in(given), *args, **kwargs).tape.ops
        else:
            ops = tuple(FUNCTIONALS[functional].encode(State(tuple(x.shape), dtype, fixed=by == "v2"), *args, **kwargs))
        if ops and not deviations(ops, Input(tuple(x.shape), dtype, by)):
            packed = pack_ops([(ops, (0,) * len(ops))], tuple(x.shape), dtype, available(device))
            made = replay_on(packed, x.to(device)[None]).cpu().reshape(expected.shape)
            assert made.dtype == expected.dtype and torch.equal(made, expected), (args, kwargs, x.shape)


CASES = [
    pytest.param(name, dtype, by, id=f"{name}-{by}-{str(dtype)[6:]}")
    for name in DRAWS
    for dtype, by in (
        (torch.uint8, "v2"),
        (torch.float32, "v2"),
        (torch.uint8, "v1"),
        (torch.float32, "v1"),
        (torch.uint8, "pillow"),
    )
    if (name, dtype) not in NOT_FOR_BYTES
    and not (by == "pillow" and name in NOT_FOR_PICTURES)
    and not (by == "v1" and ((name, dtype) in NOT_FOR_FLOATS_OF_V1 or "lanczos" in name))
    and hasattr(older if by == "v1" else F, name.split()[0])  # some are newer than the oldest torchvision
]


@pytest.mark.parametrize(("name", "dtype", "by"), CASES)
def test_exact_ops_are_equal(name: str, dtype: torch.dtype, by: By, device: torch.device) -> None:
    _check_exact_draws(name, dtype, by, FEW, device)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "by"), CASES)
def test_exact_ops_are_equal_on_many_images(name: str, dtype: torch.dtype, by: By, device: torch.device) -> None:
    _check_exact_draws(name, dtype, by, MANY, device)


def test_every_op_has_a_rule() -> None:
    fused = {operation.fused.operation.name for operation in OPERATIONS.values() if operation.fused is not None}
    fused |= {"fast_resample_ragged", "pixels"}
    unknown = {name for name, operation in OPERATIONS.items() if operation.rule is exactness.unbounded}
    assert unknown == fused


BYTES, FLOATS = (Input((3, 32, 32), dtype) for dtype in (torch.uint8, torch.float32))


def _off(given: Input, name: str, *args: Any, **kwargs: Any) -> list[str]:
    ops = FUNCTIONALS[name].encode(State(given.shape, given.dtype), *args, **kwargs)
    return list(deviations(ops, given).values())


@pytest.mark.parametrize(
    ("name", "args", "bytes", "floats"),
    [
        ("horizontal_flip", (), [], []),
        ("adjust_hue", (0.2,), [], []),
        ("gaussian_blur", ([3, 3], [1.0, 1.0]), [ONE_LEVEL], [LAST_DIGITS]),
        ("adjust_gamma", (2.0,), [ONE_LEVEL], [LAST_DIGITS]),
        ("resize", ([9, 9], InterpolationMode.NEAREST), [], []),
        ("resize", ([9, 9], InterpolationMode.BICUBIC), [], [LAST_DIGITS]),
        ("rotate", (20,), [NEIGHBOUR], [NEIGHBOUR]),
        ("rotate", (20, InterpolationMode.BILINEAR), [ONE_LEVEL], [LAST_DIGITS]),
        ("rotate", (90,), [], []),
    ],
)
def test_how_far_pixels_may_be_off(name: str, args: tuple[Any, ...], bytes: list[str], floats: list[str]) -> None:
    assert _off(BYTES, name, *args) == bytes
    assert _off(FLOATS, name, *args) == floats


def test_a_mean_is_exact_while_its_sum_is() -> None:
    """The sum of more than 65 793 bytes is rounded, and the pixels that fill no vector are rounded twice."""
    assert _off(Input((3, 256, 256), torch.uint8), "adjust_contrast", 0.5) == _off(BYTES, "adjust_saturation", 0.5)
    assert _off(Input((3, 320, 320), torch.uint8), "adjust_contrast", 0.5) == [ONE_LEVEL]
    assert _off(FLOATS, "adjust_contrast", 0.5) == [LAST_DIGITS]


def test_without_a_fused_sum_blends_are_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "_cpu_fuses", lambda alike: False)
    for name in ("adjust_saturation", "adjust_contrast", "adjust_sharpness"):
        assert _off(BYTES, name, 0.5) == [ONE_LEVEL]
    assert _off(FLOATS, "rgb_to_grayscale", 3) == [LAST_DIGITS]


def test_functions_of_v1_round_differently() -> None:
    bytes_, floats = (given._replace(by="v1") for given in (BYTES, FLOATS))
    for name in ("adjust_hue", "adjust_saturation", "adjust_contrast", "adjust_sharpness"):
        assert _off(bytes_, name, 0.5) == [ONE_LEVEL]
    assert _off(floats, "rgb_to_grayscale", 3) == [LAST_DIGITS]
    assert _off(bytes_, "adjust_brightness", 0.5) == []
    assert _off(bytes_, "rotate", 90) == [NEIGHBOUR]


def test_half_precision_was_not_compared() -> None:
    assert _off(Input((3, 32, 32), torch.float16), "adjust_brightness", 0.5) == [LAST_DIGITS]
    assert _off(Input((3, 32, 32), torch.float16), "crop", 1, 2, 8, 8) == []

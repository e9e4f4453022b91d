"""A fused track gives the track's results, interpreted on the CPU op by op with the kernels that it replaces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipediag.replay.ops import fuse
from pipediag.replay.ops.families import colour, pillow_colour, pointwise
from pipediag.replay.ops.families.pixel_programs import Codes, programs
from pipediag.replay.ops.fuse import fused
from pipediag.replay.ops.op import Op, Shape, State
from pipediag.replay.ops.table import FUNCTIONALS
from pipediag.replay.ops.triton.pixels import FLIP_HORIZONTALLY, FLIP_VERTICALLY, PixelOp, encode

Track = tuple[tuple[Op, ...], tuple[float, ...]]
UINT8, FLOAT = torch.uint8, torch.float32
SHAPE = (3, 12, 10)


def encoded(name: str, state: State, *args: Any, **kwargs: Any) -> list[Op]:
    """Return the ops of a call of torchvision's function."""
    ops: list[Op] = FUNCTIONALS[name].encode(state, *args, **kwargs)
    return ops


# ---- the meaning of fused ops


def interpret(track: Track, image: Tensor) -> Tensor:
    """Return the image after all ops; each must give the shape and dtype that it declares."""
    batch = image[None]
    for op in track[0]:
        batch = _apply(op, batch)
        assert (tuple(batch.shape[1:]), batch.dtype) == (op.shape, op.dtype), op.name
    return batch[0]


def _apply(op: Op, batch: Tensor) -> Tensor:
    if op.name == "pixels":
        return _pixels(op, batch)
    if op.name.startswith("fast_"):
        return _fast(op, batch)
    numbers = torch.tensor([op.numbers], dtype=torch.float64)
    bulk = torch.empty(0) if op.bulk is None else op.bulk[None]
    return op.kind.operation.apply([batch], numbers, op.static, bulk)


def _fast(op: Op, batch: Tensor) -> Tensor:
    assert batch.dtype in (UINT8, FLOAT)
    name, static = op.name.removeprefix("fast_"), op.static
    normalized: tuple[Any, Any] | None = None
    if name == "resample":
        *static, converted = static
        if converted is not None:
            assert batch.dtype == UINT8, "only bytes are converted while they are resized"
            batch = pointwise.converted(batch, FLOAT, scale={"multiply": True, "cast": False}[converted])
    elif name == "gaussian_blur":
        *static, mean, std = static
        normalized = None if mean is None else (mean, std)
    done = _apply(Op(name, tuple(static), op.numbers, op.shape, op.dtype), batch)
    return done if normalized is None else pointwise.normalized(done, *normalized)


def _pixels(op: Op, batch: Tensor) -> Tensor:
    """Run a program as the kernel does: flips while the image is read, then codes with operands, then normalization."""
    assert batch.dtype in (UINT8, FLOAT) and batch.shape[1] in (1, 3)
    (flips, *codes), operands, longest, contrasts, pillow = programs([op])
    codes, tables = codes[:longest], torch.tensor(codes[longest:], dtype=torch.int32).view(UINT8)
    assert len(codes) == longest and len(operands) == 2 * longest
    assert codes.count(PixelOp.CONTRAST) + codes.count(PixelOp.PILLOW_CONTRAST) == contrasts
    assert pillow or max(codes) < PixelOp.PILLOW_CONTRAST
    batch = batch.flip(-1) if flips & FLIP_HORIZONTALLY else batch
    batch = batch.flip(-2) if flips & FLIP_VERTICALLY else batch
    for code, first, second in zip(codes, operands[::2], operands[1::2], strict=True):
        if code == PixelOp.END:
            break
        if code == PixelOp.POINT:
            batch = pillow_colour.mapped(batch, tables.view(-1, batch.shape[1], 256)[int(first)][None])
        else:
            batch = _MEANING[PixelOp(code)](batch, first, second)
    dtype, mean, std = op.static
    assert batch.dtype == dtype
    return batch if mean is None else pointwise.normalized(batch, mean, std)


def _factor(kernel: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, float, float], Tensor]:
    return lambda x, factor, _: kernel(x, torch.tensor([factor], dtype=torch.float64))


def _to_float(x: Tensor, multiplier: float, divisor: float) -> Tensor:
    assert x.dtype == UINT8
    if divisor == 255:
        assert multiplier == 1
        return pointwise.converted_by_division(x, FLOAT)
    assert divisor == 1 and multiplier in (1, 1 / 255)
    return pointwise.converted(x, FLOAT, scale=multiplier != 1)


def _to_uint8(x: Tensor, multiplier: float, _: float) -> Tensor:
    assert x.dtype == FLOAT and multiplier in (1, 255.999)
    return pointwise.converted(x, UINT8, scale=multiplier != 1)


_MEANING: dict[PixelOp, Callable[[Tensor, float, float], Tensor]] = {
    PixelOp.BRIGHTNESS: _factor(colour.adjust_brightness),
    PixelOp.CONTRAST: _factor(colour.adjust_contrast),
    PixelOp.SATURATION: _factor(colour.adjust_saturation),
    PixelOp.HUE: _factor(colour.adjust_hue),
    PixelOp.GAMMA: lambda x, gamma, gain: colour.adjust_gamma(x, torch.tensor([gamma], dtype=torch.float64), gain=gain),
    PixelOp.GRAYSCALE: lambda x, *_: colour.grayscale(x, channels=x.shape[1]),
    PixelOp.INVERT: lambda x, *_: colour.invert(x),
    PixelOp.SOLARIZE: _factor(colour.solarize),
    PixelOp.POSTERIZE: lambda x, levels, _: colour.posterize(x, torch.tensor([math.log2(levels)])),
    PixelOp.TO_FLOAT: _to_float,
    PixelOp.TO_UINT8: _to_uint8,
    PixelOp.PILLOW_CONTRAST: _factor(pillow_colour.adjust_contrast),
    PixelOp.PILLOW_SATURATION: _factor(pillow_colour.adjust_saturation),
    PixelOp.PILLOW_HUE: lambda x, steps, _: pillow_colour.adjust_hue(x, torch.tensor([(steps + 0.5) / 255])),
    PixelOp.PILLOW_GRAYSCALE: lambda x, *_: pillow_colour.grayscale(x, channels=x.shape[1]),
}


# ---- any tracks


class Drawing:
    """Recorded calls of torchvision's functions on an image."""

    def __init__(self, draw: st.DrawFn, state: State) -> None:
        self.draw = draw
        self.state = state
        self.in_range = True  # some functions are not defined for other values
        self.normalized = False

    def number(self, low: float, high: float) -> float:
        return self.draw(st.floats(low, high, allow_subnormal=False))

    def calls(self) -> dict[str, Callable[[], list[Op]]]:
        """The functions that can be called on the image in its state."""
        state = self.state
        floating = state.dtype == FLOAT
        calls: dict[str, Callable[[], list[Op]]] = {
            "hflip": lambda: encoded("horizontal_flip", state),
            "vflip": lambda: encoded("vertical_flip", state),
            "brightness": lambda: self._encode("adjust_brightness", self.number(0.2, 1.8)),
            "contrast": lambda: self._encode("adjust_contrast", self.number(0.2, 1.8)),
            "saturation": lambda: self._encode("adjust_saturation", self.number(0.2, 1.8)),
            "invert": lambda: self._encode("invert"),
            "solarize": lambda: self._encode("solarize", self.number(0.1, 0.9) * (1 if floating else 255)),
            "grey": lambda: encoded("rgb_to_grayscale", state, 3 if state.channels == 3 else 1),
            "grey of one channel": lambda: encoded("rgb_to_grayscale", state, 1),
            "colour": lambda: encoded("grayscale_to_rgb", state),
            "crop": self._crop,
            "box": self._box,
            "resize": lambda: encoded("resize", state, self._sides(), *self._filter()),
            "blur": lambda: encoded("gaussian_blur", state, 3, [self.number(0.3, 2)] * 2),
            "affine": lambda: encoded(
                "affine", state, self.number(-30, 30), [1, -1], 1.1, [3.0, 0.0], "bilinear", fill=[0.5]
            ),
            "rotate": lambda: encoded("rotate", state, self.number(5, 30), "nearest", expand=True),
            "turn": lambda: encoded("rotate", state, 90, expand=True),
            "pad": lambda: encoded("pad", state, [1, 0, 2, 1], fill=1),
            "sharpness": lambda: self._encode("adjust_sharpness", self.number(0.5, 2)),
            "scaled": lambda: encoded("to_dtype", state, UINT8 if floating else FLOAT, scale=True),
            "cast": lambda: encoded("to_dtype", state, FLOAT),
            "older": lambda: pointwise.convert_image_dtype(state, UINT8 if floating else FLOAT),
        }
        if state.channels == 3:
            calls["permute"] = lambda: encoded("permute_channels", state, self.draw(st.permutations(range(3))))
        if floating and not self.normalized:
            calls["normalize"] = lambda: encoded("normalize", state, *((0.4, 0.5, 0.6)[: state.channels],) * 2)
        if self.in_range:
            calls["gamma"] = lambda: self._encode(
                "adjust_gamma", self.number(0.4, 2.5), self.draw(st.sampled_from([1, 0.9]))
            )
            calls["hue"] = lambda: self._encode("adjust_hue", self.number(-0.5, 0.5))
            calls["posterize"] = lambda: self._encode("posterize", self.draw(st.integers(1, 7)))
        else:
            del calls["scaled"], calls["older"]
        return calls

    def call(self) -> list[Op]:
        name = self.draw(st.sampled_from(sorted(self.calls())))
        made = self.calls()[name]()
        if made:
            self.state = self.state._replace(shape=made[-1].shape, dtype=made[-1].dtype)
            self.normalized = self.normalized or made[-1].name == "normalize"
            overshoots = made[-1].name == "resample" and made[-1].static[2] == "bicubic"
            overshoots = overshoots or made[-1].name == "normalize" or made[-1].static[1:] == ("cast",)
            self.in_range = self.in_range and not (overshoots and self.state.dtype == FLOAT)
        return made

    def _encode(self, name: str, *numbers: float) -> list[Op]:
        return encoded(name, self.state, *numbers)

    def _sides(self) -> list[int]:
        return [self.draw(st.integers(4, 14)), self.draw(st.integers(4, 14))]

    def _filter(self) -> tuple[str, None, bool]:
        return (
            self.draw(st.sampled_from(["bilinear", "bicubic", "nearest", "nearest-exact"])),
            None,
            self.draw(st.booleans()),
        )

    def _place(self) -> tuple[int, int, int, int]:
        """A box inside the image, or sometimes one that reaches outside it."""
        height, width = self.state.size
        if self.draw(st.integers(0, 4)) == 0:
            return -1, 2, height, width
        top, left = self.draw(st.integers(0, height - 3)), self.draw(st.integers(0, width - 3))
        return top, left, self.draw(st.integers(3, height - top)), self.draw(st.integers(3, width - left))

    def _crop(self) -> list[Op]:
        return encoded("crop", self.state, *self._place())

    def _box(self) -> list[Op]:
        mode, _, antialias = self._filter()
        return encoded("resized_crop", self.state, *self._place(), self._sides(), mode, antialias)


class Case(NamedTuple):
    track: Track
    image: Tensor


@st.composite
def cases(draw: st.DrawFn) -> Case:
    channels, dtype = draw(st.sampled_from([1, 3])), draw(st.sampled_from([UINT8, FLOAT]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    image = torch.randint(0, 256, (channels, 12, 10), generator=generator, dtype=torch.uint8)
    drawing = Drawing(draw, State((channels, 12, 10), dtype))
    made: list[Op] = []
    sites: list[float] = []
    for link in range(draw(st.integers(1, 9))):
        for op in drawing.call():
            made.append(op)
            sites.append(link)
    return Case((tuple(made), tuple(sites)), image if dtype == UINT8 else image / 255)


def check_alike(ours: Tensor, theirs: Tensor) -> None:
    """Floats summed in another order may differ in the last bits, and one value in a hundred by a level."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    apart = (ours.double() - theirs.double()).abs()
    floor = 1e-5 * max(1.0, float(theirs.max() - theirs.min())) if theirs.is_floating_point() else 0
    assert float((apart > floor).double().mean()) <= 0.01


@given(cases())
def test_a_fused_track_means_the_same(case: Case) -> None:
    """It keeps links in order, adds no ops, and has no two programs in a row that could be one."""
    track, image = case
    made, sites = fused(track, tuple(image.shape), image.dtype)
    check_alike(interpret((made, sites), image), interpret(track, image))
    assert len(made) == len(sites) <= len(track[0])
    assert list(sites) == sorted(sites)
    for one, other in itertools.pairwise(made):
        assert not (one.name == other.name == "pixels") or one.static[1] is not None


# ---- what is fused


def track(*made: list[Op]) -> Track:
    """The ops of several links."""
    together = [(op, site) for site, link in enumerate(made) for op in link]
    return tuple(op for op, _ in together), tuple(float(site) for _, site in together)


def names(track: Track) -> list[str]:
    return [op.name for op in track[0]]


def state(shape: Shape = SHAPE, dtype: torch.dtype = UINT8) -> State:
    return State(shape, dtype)


def factor(name: str, number: float, of: State | None = None) -> list[Op]:
    return encoded(name, of or state(), number)


RESIZED = {"size": [6, 5], "interpolation": "bilinear"}


def test_colours_and_flips_become_one_op() -> None:
    one = track(
        encoded("horizontal_flip", state()),
        factor("adjust_brightness", 1.5),
        encoded("vertical_flip", state()),
        factor("adjust_contrast", 0.5),
        factor("adjust_contrast", 0.75),
    )
    (op,), sites = fused(one, SHAPE, UINT8)
    both = FLIP_HORIZONTALLY | FLIP_VERTICALLY
    codes = Codes(both, 2, (PixelOp.BRIGHTNESS, PixelOp.CONTRAST, PixelOp.CONTRAST), (), False)
    operands = (1.5, 0.0, 0.5, 0.5, 0.75, 0.25)
    assert op == Op("pixels", (UINT8, None, None), (codes, *operands), SHAPE, UINT8)
    assert len(sites) == 1


def test_two_flips_undo_one_another() -> None:
    (op,), _ = fused(track(encoded("horizontal_flip", state()), encoded("horizontal_flip", state())), SHAPE, UINT8)
    assert op.numbers == (Codes(0, 0, (), (), False),)


def test_a_conversion_and_a_normalization_end_a_run() -> None:
    floats = state(dtype=FLOAT)
    chain = track(
        encoded("horizontal_flip", state()),
        encoded("to_dtype", state(), FLOAT, scale=True),
        encoded("normalize", floats, [0.4], [0.3]),
    )
    (op,), _ = fused(chain, SHAPE, UINT8)
    numbers = (Codes(FLIP_HORIZONTALLY, 0, (PixelOp.TO_FLOAT,), (), False), 1 / 255, 1.0)
    assert op == Op("pixels", (FLOAT, (0.4,), (0.3,)), numbers, SHAPE, FLOAT)
    again, _ = fused(track(encoded("normalize", floats, [0.4], [0.3]), encoded("invert", floats)), SHAPE, FLOAT)
    assert [one.static[1] for one in again] == [(0.4,), None]


@pytest.mark.parametrize("how", ["multiply", "divide", "cast"])
def test_a_conversion_alone_stays_what_it_is(how: str) -> None:
    one = track([Op("to_dtype", (FLOAT, how), (), SHAPE, FLOAT)])
    assert names(fused(one, SHAPE, UINT8)) == ["to_dtype"]


@pytest.mark.parametrize(("how", "joined"), [("multiply", True), ("cast", True), ("divide", False)])
def test_a_conversion_joins_the_resizing_after_it(how: str, joined: bool) -> None:
    convert = [Op("to_dtype", (FLOAT, how), (), SHAPE, FLOAT)]
    resize = encoded("resize", state(dtype=FLOAT), **RESIZED)
    made, sites = fused(track(convert, resize), SHAPE, UINT8)
    if joined:
        (op,) = made
        assert op == Op("fast_resample", (*resize[0].static, how), resize[0].numbers, (3, 6, 5), FLOAT)
        assert sites == (1,)
    else:
        assert [op.name for op in made] == ["to_dtype", "fast_resample"]
        assert made[1].static == (*resize[0].static, None)


def test_a_normalization_joins_the_blur_before_it() -> None:
    floats = state(dtype=FLOAT)
    blur, normalize = encoded("gaussian_blur", floats, 3, 0.7), encoded("normalize", floats, [0.4], [0.3])
    made, sites = fused(track(blur, normalize), SHAPE, FLOAT)
    assert made == (Op("fast_gaussian_blur", (3, 3, (0.4,), (0.3,)), (0.7, 0.7), SHAPE, FLOAT),)
    assert sites == (0,)


def test_no_more_than_a_normalization_joins_the_blur_before_it() -> None:
    floats = state(dtype=FLOAT)
    flipped = track(
        encoded("gaussian_blur", floats, 3, 0.7),
        encoded("horizontal_flip", floats),
        encoded("normalize", floats, [0.4], [0.3]),
    )
    assert names(fused(flipped, SHAPE, FLOAT)) == ["fast_gaussian_blur", "pixels"]
    converted = track(
        encoded("gaussian_blur", state(), 3, 0.7),
        encoded("to_dtype", state(), FLOAT, True),
        encoded("normalize", floats, [0.4], [0.3]),
    )
    assert names(fused(converted, SHAPE, UINT8)) == ["fast_gaussian_blur", "pixels"]


def test_a_second_normalization_does_not_join_the_blur() -> None:
    floats = state(dtype=FLOAT)
    first, second = encoded("normalize", floats, [0.4], [0.3]), encoded("normalize", floats, [0.1], [0.2])
    made, _ = fused(track(encoded("gaussian_blur", floats, 3, 0.7), first, second), SHAPE, FLOAT)
    assert [op.static[-2:] for op in made] == [((0.4,), (0.3,)), ((0.1,), (0.2,))]


@pytest.mark.parametrize(
    "op",
    [
        encoded("affine", state(), 9.0, [1, 2], 1.0, [0.0, 0.0], fill=[3]),
        encoded("rotate", state(), 9.0, "bilinear"),
        encoded("perspective", state(), [[0, 0], [9, 0], [9, 9], [0, 9]], [[1, 0], [9, 1], [8, 9], [0, 8]]),
    ],
    ids=lambda made: made[0].name,
)
def test_warps_have_a_fast_kernel(op: list[Op]) -> None:
    made, _ = fused(track(op), SHAPE, UINT8)
    assert made == (Op(f"fast_{op[0].name}", op[0].static, op[0].numbers, op[0].shape, op[0].dtype),)


def test_a_crop_goes_before_colours_and_becomes_the_box_of_a_resizing() -> None:
    cut = state((3, 8, 7))
    resize = encoded("resize", cut, **RESIZED)
    one = track(
        factor("adjust_brightness", 1.5), factor("adjust_hue", 0.1), encoded("crop", state(), 2, 1, 8, 7), resize
    )
    made, sites = fused(one, SHAPE, UINT8)
    assert [op.name for op in made] == ["pixels", "fast_resample"]
    assert made[0].shape == SHAPE
    assert made[1].numbers == (2, 1, 8, 7) and made[1].shape == (3, 6, 5)
    assert list(sites) == sorted(sites) and sites[-1] == 3


def test_a_crop_at_the_beginning_becomes_the_box_of_a_resizing() -> None:
    one = track(encoded("crop", state(), 2, 1, 8, 7), encoded("resize", state((3, 8, 7)), **RESIZED))
    (op,), sites = fused(one, SHAPE, UINT8)
    assert (op.name, op.numbers, op.shape, sites) == ("fast_resample", (2, 1, 8, 7), (3, 6, 5), (1,))


def test_a_crop_without_a_resizing_goes_first() -> None:
    cut = (3, 8, 7)
    one = track(
        factor("adjust_brightness", 1.5),
        encoded("to_dtype", state(), FLOAT, True),
        encoded("crop", state(dtype=FLOAT), 2, 1, 8, 7),
    )
    (crop, rest), sites = fused(one, SHAPE, UINT8)
    assert crop == Op("crop", (8, 7), (2, 1), cut, UINT8)
    assert (rest.name, rest.shape, rest.dtype) == ("pixels", cut, FLOAT)
    assert list(sites) == sorted(sites)


def test_warps_of_pillow_have_a_fused_kernel() -> None:
    static, matrix = (8, 7, "bicubic", (1, 2, 3)), (1.0, 0.1, 2.0, 0.2, 1.0, -3.0)
    op = Op("pillow_affine", static, matrix, (3, 8, 7), UINT8)
    (made,), _ = fused(track([op]), SHAPE, UINT8)
    assert made == Op("fast_pillow_affine", static, matrix, (3, 8, 7), UINT8)


def test_a_crop_passes_a_table_of_levels() -> None:
    table = torch.arange(256, dtype=UINT8).expand(3, 256)
    one = track([Op("pillow_point", (), (), SHAPE, UINT8, table)], encoded("crop", state(), 2, 1, 8, 7))
    (crop, point), _ = fused(one, SHAPE, UINT8)
    assert (crop.name, point.name, point.shape) == ("crop", "pixels", (3, 8, 7))
    assert point.numbers[1] is table


def test_a_crop_that_reaches_outside_the_image_stays() -> None:
    """Its black border must not be changed by the colours."""
    one = track(encoded("invert", state()), encoded("crop", state(), -2, 0, 12, 10))
    assert names(fused(one, SHAPE, UINT8)) == ["pixels", "crop"]


@pytest.mark.parametrize("between", ["adjust_contrast", "adjust_sharpness"])
def test_a_crop_does_not_pass_ops_that_read_other_pixels(between: str) -> None:
    one = track(factor(between, 0.5), encoded("crop", state(), 2, 1, 8, 7))
    assert names(fused(one, SHAPE, UINT8))[-1] == "crop"


def test_a_crop_passes_a_change_of_channels() -> None:
    one = track(encoded("rgb_to_grayscale", state(), 1), encoded("crop", state((1, 12, 10)), 2, 1, 8, 7))
    made, _ = fused(one, SHAPE, UINT8)
    assert [(op.name, op.shape) for op in made] == [("crop", (3, 8, 7)), ("grayscale", (1, 8, 7))]


COLOURS = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_gamma")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 12, 10), UINT8), ((2, 12, 10), FLOAT), (SHAPE, torch.float64), (SHAPE, torch.float16), ((12, 10), UINT8)],
    ids=str,
)
def test_other_images_keep_their_colours_and_flips(shape: Shape, dtype: torch.dtype) -> None:
    of = state(shape, dtype)
    one = track(encoded("horizontal_flip", of), *(factor(name, 0.5, of) for name in COLOURS), encoded("invert", of))
    assert fused(one, shape, dtype) == one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int32], ids=str)
def test_other_dtypes_keep_their_kernels(dtype: torch.dtype) -> None:
    of = state(dtype=dtype)
    one = track(
        encoded("horizontal_flip", of),
        encoded("affine", of, 9.0, [1, 2], 1.0, [0.0, 0.0]),
        encoded("rotate", of, 9.0),
        encoded("gaussian_blur", of, 3, 0.5),
        encoded("resize", of, **RESIZED),
    )
    assert fused(one, SHAPE, dtype) == one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int16, torch.bool], ids=str)
def test_conversions_of_other_dtypes_do_not_join_a_resizing(dtype: torch.dtype) -> None:
    of = state(dtype=dtype)
    one = track(encoded("to_dtype", of, FLOAT, scale=True), encoded("resize", state(dtype=FLOAT), **RESIZED))
    assert names(fused(one, SHAPE, dtype)) == ["to_dtype", "fast_resample"]


def test_a_conversion_that_does_not_end_in_float32_is_not_fused() -> None:
    one = track(encoded("to_dtype", state(), torch.float16, scale=True))
    assert fused(one, SHAPE, UINT8) == one


def test_noise_and_drawn_values_are_kept() -> None:
    floats = state(dtype=FLOAT)
    one = track(encoded("gaussian_noise", floats), encoded("erase", floats, 1, 2, 3, 4, torch.rand(3, 3, 4)))
    for mine, want in zip(fused(one, SHAPE, FLOAT)[0], one[0], strict=True):
        assert mine is want


def test_nothing_to_fuse() -> None:
    assert fused(((), ()), SHAPE, UINT8) == ((), ())


def test_fusing_one_track_leaves_the_track_alone() -> None:
    one = track(
        factor("adjust_brightness", 1.5),
        encoded("crop", state(), 2, 1, 8, 7),
        encoded("resize", state((3, 8, 7)), **RESIZED),
    )
    kept = (tuple(one[0]), tuple(one[1]))
    fused(one, SHAPE, UINT8)
    assert one == kept


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue", "gamma"])
@pytest.mark.parametrize("number", [0.3, 1.7, 1 / 3])
def test_operands_are_those_of_the_kernel(name: str, number: float) -> None:
    (op,), _ = fused(track(factor(f"adjust_{name}", number)), SHAPE, UINT8)
    assert (op.numbers[0].codes, op.numbers[1:]) == _encoded(PixelOp[name.upper()], number)


def test_operands_of_levels_are_those_of_the_kernel() -> None:
    one = track(factor("posterize", 3), factor("solarize", 99.0), encoded("invert", state()))
    (op,), _ = fused(one, SHAPE, UINT8)
    codes, operands = zip(
        _encoded(PixelOp.POSTERIZE, 3), _encoded(PixelOp.SOLARIZE, 99.0), _encoded(PixelOp.INVERT), strict=True
    )
    assert op.numbers[0].codes == sum(codes, ())
    assert op.numbers[1:] == sum(operands, ())


def _encoded(code: PixelOp, *parameters: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    known, *operands = encode(code, *parameters)
    return (known,), tuple(operands)


def test_the_fusion_is_computed_once_for_all_sizes() -> None:
    """And for all crops that lie inside the image."""
    before = fuse._way.cache_info().misses
    for side in range(20, 40):
        whole = state((3, side, side + 1))
        one = track(
            factor("adjust_contrast", side / 40, whole),
            encoded("to_dtype", whole, FLOAT, scale=True),
            encoded("crop", state((3, side, side + 1), FLOAT), side - 15, 2, 9, 11),
            encoded("gaussian_blur", state((3, 9, 11), FLOAT), 7),
        )
        for place in (whole.shape, (3, 19, 19)):
            made, _ = fused(one, place, UINT8)
            assert [op.shape for op in made if op.name != "crop"][-1] == (3, 9, 11)
    assert fuse._way.cache_info().misses <= before + 1


# ---- programs of a launch


def test_programs_are_padded_to_the_longest() -> None:
    short, _ = fused(track(encoded("horizontal_flip", state())), SHAPE, UINT8)
    long, _ = fused(
        track(factor("adjust_contrast", 0.25), factor("posterize", 3), encoded("vertical_flip", state())), SHAPE, UINT8
    )
    codes, operands, longest, contrasts, _ = programs([*short, *long, *short])
    assert list(codes) == [1, 2, 1, 0, 0, PixelOp.CONTRAST, PixelOp.POSTERIZE, 0, 0]
    assert list(operands) == [0, 0, 0, 0, 0.25, 0.75, 8.0, 0.125, 0, 0, 0, 0]
    assert (longest, contrasts) == (2, 1)


def test_programs_of_flips_alone_have_one_code() -> None:
    (flip,), _ = fused(track(encoded("horizontal_flip", state())), SHAPE, UINT8)
    codes, operands, *rest = programs([flip, flip])
    assert (list(codes), list(operands), rest) == ([1, 1, 0, 0], [0, 0, 0, 0], [1, 0, False])


# ---- pictures


def table(channels: int, seed: int) -> list[Op]:
    levels = torch.randint(0, 256, (256 * channels,), generator=torch.Generator().manual_seed(seed))
    return pillow_colour.point(state((channels, 12, 10)), levels.tolist())


@given(st.data(), st.sampled_from([1, 3]))
def test_a_fused_picture_is_the_same(data: st.DataObject, channels: int) -> None:
    now = state((channels, 12, 10))
    factors = st.floats(0, 3) | st.just(1.0)
    calls: dict[str, Callable[[], list[Op]]] = {
        "brightness": lambda: pillow_colour.adjusted("brightness", now, data.draw(factors)),
        "contrast": lambda: pillow_colour.adjusted("contrast", now, data.draw(factors)),
        "saturation": lambda: pillow_colour.adjusted("saturation", now, data.draw(factors)),
        "hue": lambda: pillow_colour.encode_hue(now, data.draw(st.floats(-0.5, 0.5))),
        "grey": lambda: pillow_colour.rgb_to_grayscale(now, channels),
        "point": lambda: table(channels, data.draw(st.integers(0, 3))),
        "flip": lambda: encoded("horizontal_flip", now),
        "autocontrast": lambda: pillow_colour.autocontrast(now),
    }
    one = track(*[calls[name]() for name in data.draw(st.lists(st.sampled_from(sorted(calls)), max_size=6))])
    image = torch.randint(0, 256, now.shape, generator=torch.Generator().manual_seed(1), dtype=UINT8)
    assert torch.equal(interpret(fused(one, now.shape, UINT8), image), interpret(one, image))


def test_colours_of_pictures_become_one_op() -> None:
    one = track(
        encoded("horizontal_flip", state()),
        pillow_colour.adjusted("saturation", state(), 1.5),
        table(3, 0),
        pillow_colour.adjusted("contrast", state(), 0.5),
        pillow_colour.encode_hue(state(), -0.1),
    )
    assert names(fused(one, SHAPE, UINT8)) == ["pixels"]


def test_equal_tables_are_sent_once() -> None:
    made = [fused(track(table(3, seed), table(3, 7)), SHAPE, UINT8)[0][0] for seed in (5, 6, 5)]
    codes, operands, longest, contrasts, pillow = programs(made)
    assert (longest, contrasts, pillow) == (2, 0, True)
    assert list(operands[::2]) == [0, 1, 2, 1, 0, 1]
    sent = torch.tensor(codes[3 + 3 * 2 :], dtype=torch.int32).view(UINT8).view(-1, 3, 256)
    assert [torch.equal(one, table(3, seed)[0].bulk) for one, seed in zip(sent, (5, 7, 6), strict=True)] == [True] * 3

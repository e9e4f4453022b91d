"""Encode recorded functional calls of torchvision as ops.

Each function of :data:`ENCODERS` takes the state of a recording image (its shape and dtype) and the arguments of the
functional of that name in ``torchvision.transforms.v2.functional``. It returns the ops to replay, an empty list if the
call changes nothing. It reads no pixels. The worker also does torchvision's arithmetic on Python floats here (matrices,
output sizes, anchors), so that a replay only needs numbers.

A transform calls its functional many times with the same settings and different drawn values. The functions of
:data:`PREPARED` do the work that depends on the state and the settings only, once; they return a function of the drawn
values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batched.warp_numbers import affine_numbers, perspective_numbers, rotate_numbers
from .op import NotRecordable, Op, State, inside

#: Returns the ops to replay for drawn values.
Encode = Callable[..., list[Op]]

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers


def interpolation_name(given: Any) -> str:
    """Return the name of a mode given as a string, an ``InterpolationMode`` or Pillow's number."""
    if isinstance(given, int):
        return INTERPOLATIONS[given]
    return str(getattr(given, "value", given))


def output_size(old: tuple[int, int], size: Any, max_size: int | None) -> tuple[int, int]:
    """Return (height, width) of a resized image, by the rule of ``torchvision.transforms.functional.resize``."""
    if isinstance(size, int):
        size = [size]
    if size is not None and len(size) == 2:
        return int(size[0]), int(size[1])
    height, width = old
    short, long = (width, height) if width <= height else (height, width)
    if size is None:
        if not isinstance(max_size, int):
            raise NotRecordable("max_size must be an integer where size is None")
        new_short, new_long = int(max_size * short / long), max_size
    else:
        new_short, new_long = size[0], int(size[0] * long / short)
        if max_size is not None and new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if width <= height else (new_short, new_long)


def pair(given: Any) -> tuple[Any, Any]:
    """Return two values; a single number, or a sequence of one, is used for both."""
    values = [given] if isinstance(given, (int, float)) else list(given)
    return values[0], values[-1]


def paddings(padding: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) in pixels."""
    given = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = {1: given * 4, 2: given * 2, 4: given}[len(given)]
    return int(left), int(top), int(right), int(bottom)


def fills(fill: Any) -> tuple[float, ...] | None:
    """Return one value for all channels, or one for each; None for torchvision's None, which differs from 0."""
    if fill is None:
        return None
    return tuple(float(v) for v in fill) if isinstance(fill, Sequence) else (float(fill),)


def horizontal_flip(state: State) -> list[Op]:
    return [state.op("horizontal_flip")]


def vertical_flip(state: State) -> list[Op]:
    return [state.op("vertical_flip")]


def crop(state: State, top: int, left: int, height: int, width: int) -> list[Op]:
    if top == left == 0 and (height, width) == state.size:
        return []
    return [state.op("crop", top, left, static=(height, width), shape=state.resized(height, width))]


_SIZES = 16  # limit on ops without numbers to reuse; most transforms have one output size


def prepare_crop(state: State) -> Encode:
    @functools.lru_cache(_SIZES)
    def sized(*size: int) -> Op:
        return state.op("crop", static=size, shape=state.resized(*size))

    def encode(top: int, left: int, height: int, width: int) -> list[Op]:
        whole = top == left == 0 and (height, width) == state.size
        return [] if whole else [sized(height, width).given(top, left)]

    return encode


def center_crop(state: State, output_size: Any) -> list[Op]:
    height, width = pair(output_size)
    return crop(state, _anchor(state.size[0], height), _anchor(state.size[1], width), height, width)


def _anchor(old: int, new: int) -> int:
    """Return where a central crop begins, in pixels; negative if the crop is larger than the image."""
    return -((new - old) // 2) if new > old else round((old - new) / 2.0)


def resize(
    state: State, size: Any, interpolation: Any = "bilinear", max_size: int | None = None, antialias: bool | None = True
) -> list[Op]:
    return _resized(state, output_size(state.size, size, max_size), interpolation, antialias)


def _resized(state: State, size: tuple[int, int], interpolation: Any, antialias: bool | None) -> list[Op]:
    if size == state.size:
        return []
    return [_resampled(state, size, interpolation, antialias).given(0, 0, *state.size)]


def prepare_resized_crop(
    state: State, size: Any, interpolation: Any = "bilinear", antialias: bool | None = True
) -> Encode:
    @functools.lru_cache(_SIZES)
    def sized(new: tuple[int, int]) -> Op:
        return _resampled(state, new, interpolation, antialias)

    def encode(top: int, left: int, height: int, width: int) -> list[Op]:
        box = (top, left, height, width)
        new = output_size((height, width), size, None)
        if inside(box, state.size) and new != (height, width):
            return [sized(new).given(*box)]
        cut = state._replace(shape=state.resized(height, width))
        return crop(state, *box) + _resized(cut, new, interpolation, antialias)

    return encode


def _resampled(state: State, size: tuple[int, int], interpolation: Any, antialias: bool | None) -> Op:
    mode = "nearest" if state.mask else interpolation_name(interpolation)
    if mode in ("lanczos", "box", "hamming"):
        raise NotRecordable(f"resizing with interpolation={mode!r} has no kernel on the device")
    if state.dtype == torch.bool and mode in ("bilinear", "bicubic"):
        raise NotRecordable("boolean pixels are interpolated")
    smooth = mode in ("bilinear", "bicubic") and bool(antialias)
    return state.op("resample", static=(*size, mode, smooth, state.fixed, None), shape=state.resized(*size))


def pad(state: State, padding: Any, fill: Any = None, padding_mode: str = "constant") -> list[Op]:
    left, top, right, bottom = paddings(padding)
    if not (left or top or right or bottom):
        return []
    height, width = state.size
    shape = state.resized(height + top + bottom, width + left + right)
    static = ((left, top, right, bottom), fills(fill), padding_mode)
    return [state.op("pad", static=static, shape=shape)]


def prepare_affine(state: State, interpolation: Any = "nearest", fill: Any = None, center: Any = None) -> Encode:
    op = state.op("affine", static=_warped(state, interpolation, fill))

    def encode(angle: float, translate: Any, scale: float, shear: Any) -> list[Op]:
        shears = (float(shear), 0.0) if isinstance(shear, (int, float)) else tuple(float(s) for s in shear)
        shears = (shears[0], shears[0]) if len(shears) == 1 else shears
        return [op.given(*affine_numbers(*state.size, angle, tuple(translate), scale, shears, center))]

    return encode


def prepare_rotate(
    state: State, interpolation: Any = "nearest", expand: bool = False, center: Any = None, fill: Any = None
) -> Encode:
    @functools.lru_cache(_SIZES)
    def sized(size: tuple[int, int]) -> Op:
        return state.op("rotate", static=(*size, *_warped(state, interpolation, fill)), shape=state.resized(*size))

    def encode(angle: float) -> list[Op]:
        turns = _quarter_turns(state, angle, expand, center)
        if turns is not None:
            height, width = state.size if turns % 2 == 0 else state.size[::-1]
            return [state.op("turn", static=(turns,), shape=state.resized(height, width))] if turns else []
        numbers, size = rotate_numbers(*state.size, angle, expand, center)
        return [sized(size).given(*numbers)]

    return encode


def _quarter_turns(state: State, angle: float, expand: bool, center: Any) -> int | None:
    """Return the number of 90-degree turns that torchvision makes without interpolation, or None if it interpolates."""
    angle = angle % 360
    if center is not None or angle % 90:
        return None
    turns = int(angle // 90)
    square = state.size[0] == state.size[1]
    return turns if turns % 2 == 0 or expand or square else None


def _warped(state: State, interpolation: Any, fill: Any) -> tuple[Any, ...]:
    mode = "nearest" if state.mask else interpolation_name(interpolation)
    if mode not in ("nearest", "bilinear"):
        raise NotRecordable(f"interpolation={mode!r} is not for tensors here")
    return mode, fills(fill)


def perspective(
    state: State,
    startpoints: Any,
    endpoints: Any,
    interpolation: Any = "bilinear",
    fill: Any = None,
    coefficients: Any = None,
) -> list[Op]:
    return prepare_perspective(state, startpoints, endpoints, interpolation, fill)(coefficients)


def prepare_perspective(
    state: State, startpoints: Any, endpoints: Any, interpolation: Any = "bilinear", fill: Any = None
) -> Encode:
    op = state.op("perspective", static=_warped(state, interpolation, fill))
    return lambda coefficients: [op.given(*perspective_numbers(startpoints, endpoints, coefficients))]


def elastic(state: State, displacement: Tensor, interpolation: Any = "bilinear", fill: Any = None) -> list[Op]:
    height, width = state.size
    if tuple(displacement.shape) != (1, height, width, 2):
        raise NotRecordable(f"a displacement of shape {tuple(displacement.shape)} does not fit the image")
    static = _warped(state, interpolation, fill)
    return [state.op("elastic", static=static, bulk=displacement[0].to(torch.float32))]


def five_crop(state: State, size: Any) -> tuple[list[Op], ...]:
    """Return one list of ops for each corner and the centre, in torchvision's order."""
    height, width = pair(size)
    below, beside = state.size[0] - height, state.size[1] - width
    if below < 0 or beside < 0:
        raise NotRecordable(f"crops of {height} x {width} are larger than the image")
    corners = ((0, 0), (0, beside), (below, 0), (below, beside))
    cuts = [crop(state, top, left, height, width) for top, left in corners]
    return (*cuts, center_crop(state, (height, width)))


def ten_crop(state: State, size: Any, vertical_flip: bool = False) -> tuple[list[Op], ...]:
    """Return the ops of :func:`five_crop`, and the same for the flipped image."""
    flipped = state.op("vertical_flip" if vertical_flip else "horizontal_flip")
    five = five_crop(state, size)
    return (*five, *([flipped, *cut] for cut in five))


def _prepare_factor(name: str) -> Callable[[State], Encode]:
    def prepare(state: State) -> Encode:
        op = _levelled(name, state).op(name)
        return lambda factor: [op.given(float(factor))]

    return prepare


def _levelled(name: str, state: State) -> State:
    """Return the state if its dtype holds intensity levels (uint8 or floating point).

    Raises:
        NotRecordable: the dtype is another one.
    """
    if state.dtype != torch.uint8 and not state.dtype.is_floating_point:
        raise NotRecordable(f"{name} of {state.dtype} has no kernel on the device")
    return state


def adjust_gamma(state: State, gamma: float, gain: float = 1) -> list[Op]:
    return [_levelled("gamma", state).op("adjust_gamma", float(gamma), static=(float(gain),))]


def _plain(name: str) -> Callable[..., list[Op]]:
    return lambda state: [_levelled(name, state).op(name)]


def rgb_to_grayscale(state: State, num_output_channels: int = 1, *, name: str = "grayscale") -> list[Op]:
    if num_output_channels not in (1, 3):
        raise NotRecordable("a grey image has one channel or three")
    if state.channels == num_output_channels == 1:
        return []
    return [state.op(name, static=(num_output_channels,), shape=(num_output_channels, *state.size))]


def grayscale_to_rgb(state: State) -> list[Op]:
    return [] if state.channels >= 3 else rgb_to_grayscale(state, 3)


def permute_channels(state: State, permutation: Any) -> list[Op]:
    return [state.op("permute_channels", *(int(i) for i in permutation))]


def gaussian_blur(state: State, kernel_size: Any, sigma: Any = None) -> list[Op]:
    return prepare_gaussian_blur(state, kernel_size)(sigma)


def prepare_gaussian_blur(state: State, kernel_size: Any) -> Encode:
    kernel = pair(kernel_size)
    op = state.op("gaussian_blur", static=kernel)

    def encode(sigma: Any = None) -> list[Op]:
        across, down = pair([side * 0.15 + 0.35 for side in kernel] if sigma is None else sigma)
        return [op.given(float(across), float(down))]

    return encode


def gaussian_noise(state: State, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> list[Op]:
    """Draw the noise here, from the generator that torchvision would use."""
    if state.strided:
        raise NotRecordable("noise is drawn in the order of the pixels in memory, which is unusual here")
    drawn = torch.randn(state.shape, dtype=state.dtype if state.dtype.is_floating_point else torch.float32)
    return [state.op("gaussian_noise", static=(float(mean), float(sigma), bool(clip)), bulk=drawn)]


def erase(state: State, i: int, j: int, h: int, w: int, v: Tensor, inplace: bool = False) -> list[Op]:
    """Encode one value per channel as numbers, and drawn pixels as bulk."""
    if v.numel() in (1, state.channels) and v.shape[-1] == v.shape[-2] == 1:
        values = v.flatten().tolist()
        values = values * state.channels if len(values) == 1 else values
        return [state.op("erase", i, j, h, w, *values)]
    drawn = v.to(torch.float32).expand(state.channels, h, w)
    return [state.op("erase_drawn", i, j, h, w, bulk=drawn)]


def normalize(state: State, mean: Any, std: Any, inplace: bool = False) -> list[Op]:
    means, stds = tuple(map(float, mean)), tuple(map(float, std))
    if {len(means), len(stds)} - {1, state.channels}:
        raise NotRecordable(f"{len(means)} means for {state.channels} channels")
    return [state.op("normalize", static=(means, stds))]


def to_dtype(state: State, dtype: torch.dtype = torch.float, scale: bool = False) -> list[Op]:
    return _converted(state, dtype, "multiply" if scale and not state.mask else "cast")


def _converted(state: State, dtype: torch.dtype, how: str) -> list[Op]:
    return [] if state.dtype == dtype else [state.op("to_dtype", static=(dtype, how), dtype=dtype)]


def convert_image_dtype(state: State, dtype: torch.dtype = torch.float) -> list[Op]:
    """Encode the v1 conversion, which divides where v2 multiplies by the inverse."""
    whole_to_float = dtype.is_floating_point and not state.dtype.is_floating_point
    return _converted(state, dtype, "divide" if whole_to_float else "multiply")


class Prepared(NamedTuple):
    """Functional in two steps, for a transform that calls it many times."""

    prepare: Callable[..., Encode]  # takes the state and all other arguments
    drawn: tuple[str, ...]  # the arguments of the returned function, in order

    def in_one_step(self, state: State, *args: Any, **kwargs: Any) -> list[Op]:
        """Encode a call of a functional whose drawn values come first."""
        count = len(self.drawn)
        drawn = (*args[:count], *[kwargs.pop(name) for name in self.drawn[len(args) :]])
        return self.prepare(state, *args[count:], **kwargs)(*drawn)


_DRAWN_FIRST: dict[str, Prepared] = {
    "crop": Prepared(prepare_crop, ("top", "left", "height", "width")),
    "resized_crop": Prepared(prepare_resized_crop, ("top", "left", "height", "width")),
    "affine": Prepared(prepare_affine, ("angle", "translate", "scale", "shear")),
    "rotate": Prepared(prepare_rotate, ("angle",)),
    "posterize": Prepared(_prepare_factor("posterize"), ("bits",)),
    "solarize": Prepared(_prepare_factor("solarize"), ("threshold",)),
    **{
        f"adjust_{what}": Prepared(_prepare_factor(f"adjust_{what}"), (f"{what}_factor",))
        for what in ("brightness", "contrast", "saturation", "hue", "sharpness")
    },
}

#: Functionals with settings and drawn values, by name.
PREPARED: dict[str, Prepared] = {
    **_DRAWN_FIRST,
    "perspective": Prepared(prepare_perspective, ("coefficients",)),
    "gaussian_blur": Prepared(prepare_gaussian_blur, ("sigma",)),
}

#: Encoders by the name of the functional.
ENCODERS: dict[str, Callable[..., list[Op]]] = {
    **{name: prepared.in_one_step for name, prepared in _DRAWN_FIRST.items()},
    "horizontal_flip": horizontal_flip,
    "vertical_flip": vertical_flip,
    "center_crop": center_crop,
    "resize": resize,
    "pad": pad,
    "perspective": perspective,
    "elastic": elastic,
    "adjust_gamma": adjust_gamma,
    "invert": _plain("invert"),
    "autocontrast": _plain("autocontrast"),
    "equalize": _plain("equalize"),
    "rgb_to_grayscale": rgb_to_grayscale,
    "grayscale_to_rgb": grayscale_to_rgb,
    "permute_channels": permute_channels,
    "gaussian_blur": gaussian_blur,
    "gaussian_noise": gaussian_noise,
    "erase": erase,
    "normalize": normalize,
    "to_dtype": to_dtype,
}

#: Calls that return a tuple of images.
SEVERAL: dict[str, Callable[..., tuple[list[Op], ...]]] = {"five_crop": five_crop, "ten_crop": ten_crop}

#: Functions of ``torchvision.transforms.functional`` (v1), and the encoder for each.
OLDER: dict[str, str] = {
    **{name: name for name in ENCODERS if name not in ("to_dtype", "grayscale_to_rgb", "permute_channels")},
    "hflip": "horizontal_flip",
    "vflip": "vertical_flip",
    "elastic_transform": "elastic",
    "to_grayscale": "rgb_to_grayscale",
}

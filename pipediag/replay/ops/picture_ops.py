"""Encode calls of Pillow's own methods on images of mode L and RGB as ops.

Each function takes the state of a recording picture and the arguments of the call of that name: a method of
``PIL.Image.Image`` (:data:`METHODS`), a function of ``PIL.ImageOps`` (:data:`IMAGE_OPS`) or a function of torchvision
(:data:`FUNCTIONS`). It returns the ops that repeat Pillow's pixels bit by bit, and raises :class:`NotRecordable` if
there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFilter
import torch

from . import encoders
from .batched import pillow, pillow_blur
from .batched.pillow_warp import affine_way
from .op import NotRecordable, Op, State, inside

#: Modes with one byte per channel, and their number of channels.
BANDS = {"L": 1, "RGB": 3}
MODES = {channels: mode for mode, channels in BANDS.items()}

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


def colour_of(colour: Any, channels: int) -> tuple[int, ...]:
    """Return the levels of any colour that Pillow takes; None is black."""
    levels: Any = PIL.Image.new(MODES[channels], (1, 1), colour or 0).getpixel((0, 0))
    return levels if isinstance(levels, tuple) else (levels,)


def transform(
    state: State,
    size: Sequence[int],
    method: Any,
    data: Sequence[float] | None = None,
    resample: int = 0,
    fill: int = 1,
    fillcolor: Any = None,
) -> list[Op]:
    if data is None or not isinstance(method, int) or 0 in size:
        raise NotRecordable("a picture is transformed by an object, or to nothing")
    width, height = size
    interpolation = encoders.interpolation_name(resample)
    if interpolation not in _INTERPOLATIONS:
        raise NotRecordable(f"interpolation={interpolation!r} is not for warps of pictures")
    numbers = tuple([float(number) for number in data])
    if method == PIL.Image.Transform.EXTENT:
        left, top, right, bottom = numbers
        method = PIL.Image.Transform.AFFINE
        numbers = ((right - left) / width, 0.0, left, 0.0, (bottom - top) / height, top)
    colour = colour_of(fillcolor, state.channels)
    if method == PIL.Image.Transform.AFFINE:
        return _affine(state, numbers[:6], (height, width), interpolation, colour)
    if method != PIL.Image.Transform.PERSPECTIVE:
        raise NotRecordable(f"a picture is transformed by the method {PIL.Image.Transform(method).name}")
    static = (height, width, interpolation, colour)
    return [state.op("pillow_perspective", *numbers[:8], static=static, shape=state.resized(height, width))]


def _affine(
    state: State,
    matrix: tuple[float, ...],
    size: tuple[int, int],
    interpolation: str,
    colour: tuple[int, ...],
) -> list[Op]:
    shape = state.resized(*size)
    if interpolation != "nearest":
        return [state.op("pillow_affine", *matrix, static=(*size, interpolation, colour), shape=shape)]
    way = affine_way(matrix, state.size, size)
    if way is None:
        raise NotRecordable("a picture is warped by a matrix that Pillow's fixed-point arithmetic cannot hold")
    name = "pillow_affine_in_fixed_point" if way.positions is None else "pillow_pick"
    return [state.op(name, *way.numbers, static=(*size, colour), shape=shape, bulk=way.positions)]


def resize(
    state: State,
    size: Sequence[int],
    resample: int | None = None,
    box: Sequence[float] | None = None,
    reducing_gap: float | None = None,
) -> list[Op]:
    width, height = (int(side) for side in size)
    if reducing_gap is not None:
        raise NotRecordable("a picture is resized with a reducing_gap")
    if resample not in (None, *encoders.INTERPOLATIONS):
        raise NotRecordable(f"a picture is resized with the filter {resample}, which has no kernel on the device")
    whole = (0, 0, *state.size[::-1])
    left, top, right, bottom = whole if box is None else box
    if (left, top, right, bottom) == whole:
        return _scaled(state, (height, width), PIL.Image.Resampling.BICUBIC if resample is None else resample)
    if left % 1 == top % 1 == 0 and (right - left, bottom - top) == (width, height):
        return crop(state, (left, top, right, bottom))
    if resample == PIL.Image.Resampling.NEAREST:
        x, y, end, below = map(np.float32, (left, top, right, bottom))
        matrix = (float(end - x) / width, 0.0, float(x), 0.0, float(below - y) / height, float(y))
        return _affine(state, matrix, (height, width), "nearest", colour_of(None, state.channels))
    raise NotRecordable("a picture is resized from a box inside it, whose filter reads the pixels around the box")


def _scaled(state: State, size: tuple[int, int], interpolation: Any) -> list[Op]:
    return [] if size == state.size else _resampled(state, (0, 0, *state.size), size, interpolation)


def _resampled(state: State, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: Any) -> list[Op]:
    """Encode the resizing of a box (top, left, height, width) inside the picture."""
    mode = encoders.interpolation_name(interpolation)
    mode = "nearest" if mode == "nearest-exact" else mode
    static = (*size, mode, True, True, pillow.first_pass(box[2:], size))
    return [state.op("resample", *box, static=static, shape=state.resized(*size))]


def resized_crop(
    state: State,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = "bilinear",
    antialias: bool | None = True,
) -> list[Op]:
    new = encoders.output_size((height, width), size, None)
    box = (top, left, height, width)
    if inside(box, state.size) and new != (height, width):
        return _resampled(state, box, new, interpolation)
    cut = state._replace(shape=state.resized(height, width))
    return encoders.crop(state, *box) + _scaled(cut, new, interpolation)


def crop(state: State, box: Sequence[float] | None = None) -> list[Op]:
    left, top, right, bottom = (0, 0, *state.size[::-1]) if box is None else map(round, box)
    if left >= right or top >= bottom:
        raise NotRecordable("a picture is cropped to nothing")
    return encoders.crop(state, top, left, bottom - top, right - left)


def transpose(state: State, method: int) -> list[Op]:
    turns, flip = _TRANSPOSED[method]
    shape = state.resized(*(state.size[::-1] if turns % 2 else state.size))
    turned = [state.op("turn", static=(turns,), shape=shape)] if turns else []
    return [*turned, state.op(flip, shape=shape)] if flip else turned


#: Number of counterclockwise quarter turns, and the flip after them.
_TRANSPOSED: dict[int, tuple[int, str]] = {
    PIL.Image.Transpose.FLIP_LEFT_RIGHT: (0, "horizontal_flip"),
    PIL.Image.Transpose.FLIP_TOP_BOTTOM: (0, "vertical_flip"),
    PIL.Image.Transpose.ROTATE_90: (1, ""),
    PIL.Image.Transpose.ROTATE_180: (2, ""),
    PIL.Image.Transpose.ROTATE_270: (3, ""),
    PIL.Image.Transpose.TRANSPOSE: (1, "vertical_flip"),
    PIL.Image.Transpose.TRANSVERSE: (1, "horizontal_flip"),
}


def convert(state: State, mode: str | None = None, matrix: Any = None, *unused: Any, **named: Any) -> list[Op]:
    if matrix or mode not in (None, *BANDS):
        raise NotRecordable(f"a picture of mode {MODES[state.channels]} is converted to {mode}")
    if mode is None or BANDS[mode] == state.channels:
        return []
    return rgb_to_grayscale(state, BANDS[mode])


def rgb_to_grayscale(state: State, num_output_channels: int = 1) -> list[Op]:
    return encoders.rgb_to_grayscale(state, num_output_channels, name="pillow_grayscale")


def adjusted(what: str, state: State, factor: float) -> list[Op]:
    """Encode torchvision's function ``adjust_{what}``."""
    return [state.op(f"pillow_adjust_{what}", float(factor))]


def adjust_hue(state: State, hue_factor: float) -> list[Op]:
    return adjusted("hue", state, hue_factor)


def point(state: State, lut: Sequence[float], mode: str | None = None) -> list[Op]:
    levels = np.rint(np.asarray(lut, np.float64)).clip(0, 255).astype(np.uint8)
    if mode is not None or len(levels) != 256 * state.channels:
        raise NotRecordable("a picture is mapped to another mode")
    tables = torch.from_numpy(levels).view(state.channels, 256)
    return [state.op("pillow_point", bulk=tables)]


def filtered(state: State, filter: Any) -> list[Op]:
    kind = type(filter)
    if kind is PIL.ImageFilter.SMOOTH:
        return [state.op("pillow_smooth")]
    if kind not in (PIL.ImageFilter.GaussianBlur, PIL.ImageFilter.BoxBlur):
        raise NotRecordable(f"the filter {kind.__name__} of Pillow has no kernel on the device")
    radii = encoders.pair(filter.radius)
    if min(radii) < 0:
        raise NotRecordable("a picture is blurred by a negative radius")
    passes = 1
    if kind is PIL.ImageFilter.GaussianBlur:
        across, down = radii
        radii = pillow_blur.gaussian_radius(across), pillow_blur.gaussian_radius(down)
        passes = pillow_blur.PASSES
    numbers = [number for radius in radii for number in pillow_blur.box_numbers(radius)]
    return [state.op("pillow_box_blur", *numbers, static=(passes,))]


def copy(state: State) -> list[Op]:
    return []


def expand(state: State, border: Any = 0, fill: Any = 0) -> list[Op]:
    return encoders.pad(state, border, colour_of(fill, state.channels))


def pad(state: State, padding: Any, fill: Any = None, padding_mode: str = "constant") -> list[Op]:
    levels = encoders.fills(fill) or (0.0,)
    if len(levels) not in (1, state.channels):
        raise NotRecordable(f"{len(levels)} fills for {state.channels} channels")
    if padding_mode != "constant":
        _check_padding(state, encoders.paddings(padding), padding_mode)
    return encoders.pad(state, padding, [min(max(int(level), 0), 255) for level in levels], padding_mode)


def _check_padding(state: State, padding: tuple[int, ...], mode: str) -> None:
    """Raise for a padding that torchvision leaves to numpy: larger than the image, or negative."""
    most = {"reflect": -1, "symmetric": 0}.get(mode)
    height, width = state.size
    for side, sides in ((width, padding[::2]), (height, padding[1::2])):
        if min(sides) < 0 or (most is not None and max(sides) > side + most):
            raise NotRecordable(f"padding_mode={mode!r} by more than a picture's own pixels")


def autocontrast(
    state: State, cutoff: Any = 0, ignore: Any = None, mask: Any = None, preserve_tone: bool = False
) -> list[Op]:
    if cutoff or ignore is not None or mask is not None or preserve_tone:
        raise NotRecordable("autocontrast with options has no kernel on the device")
    return [state.op("pillow_autocontrast")]


def equalize(state: State, mask: Any = None) -> list[Op]:
    if mask is not None:
        raise NotRecordable("equalize with a mask has no kernel on the device")
    return [state.op("equalize")]


METHODS: dict[str, Callable[..., list[Op]]] = {
    "transform": transform,
    "resize": resize,
    "crop": crop,
    "transpose": transpose,
    "convert": convert,
    "point": point,
    "filter": filtered,
    "copy": copy,
}

#: Those that read pixels themselves; the others call methods, except ``pad`` (:mod:`.pictures`).
IMAGE_OPS: dict[str, Callable[..., list[Op]]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "expand": expand,
}

#: Those that read pixels themselves, and ``resized_crop``, which is one op.
FUNCTIONS: dict[str, Callable[..., list[Op]]] = {
    "resized_crop": resized_crop,
    "pad": pad,
    "adjust_hue": adjust_hue,
    "rgb_to_grayscale": rgb_to_grayscale,
    "gaussian_blur": encoders.gaussian_blur,
    "elastic": encoders.elastic,
    "erase": encoders.erase,
    "permute_channels": encoders.permute_channels,
}

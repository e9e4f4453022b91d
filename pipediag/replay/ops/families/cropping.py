"""Crop, pad and flip: ops that only move pixels.

Kernels work on a whole batch, with a separate box for each sample.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from ..arguments import colour_of, fills, paddings, pair
from ..exactness import NEIGHBOUR, always, exact
from ..op import NotRecordable, Op, State
from ..operation import Box, Encode, Functional, Operation, Static, alike, drawn_first
from ..triton.pixels import FLIP_HORIZONTALLY, FLIP_VERTICALLY


def horizontal_flip(state: State) -> list[Op]:
    return [state.op("horizontal_flip")]


def vertical_flip(state: State) -> list[Op]:
    return [state.op("vertical_flip")]


def crop(state: State, top: int, left: int, height: int, width: int) -> list[Op]:
    if top == left == 0 and (height, width) == state.size:
        return []
    return [state.op("crop", top, left, static=(height, width), shape=state.resized(height, width))]


#: Limit on ops without numbers to reuse; most transforms have one output size.
SIZES = 16


def prepare_crop(state: State) -> Encode:
    @functools.lru_cache(SIZES)
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


def pad(state: State, padding: Any, fill: Any = None, padding_mode: str = "constant") -> list[Op]:
    left, top, right, bottom = paddings(padding)
    if not (left or top or right or bottom):
        return []
    if padding_mode in _OWN_PIXELS:
        _check_padding(state, (left, top, right, bottom), padding_mode)
    height, width = state.size
    shape = state.resized(height + top + bottom, width + left + right)
    static = ((left, top, right, bottom), fills(fill), padding_mode)
    return [state.op("pad", static=static, shape=shape)]


#: Modes of padding with the image's own pixels, and how many more than its side they may be.
_OWN_PIXELS = {"reflect": -1, "symmetric": 0}


# ---- pictures


def crop_picture(state: State, box: Sequence[float] | None = None) -> list[Op]:
    left, top, right, bottom = (0, 0, *state.size[::-1]) if box is None else map(round, box)
    if left >= right or top >= bottom:
        raise NotRecordable("a picture is cropped to nothing")
    return crop(state, top, left, bottom - top, right - left)


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


def copy(state: State) -> list[Op]:
    return []


def expand(state: State, border: Any = 0, fill: Any = 0) -> list[Op]:
    return pad(state, border, colour_of(fill, state.channels))


def pad_picture(state: State, padding: Any, fill: Any = None, padding_mode: str = "constant") -> list[Op]:
    levels = fills(fill) or (0.0,)
    if len(levels) not in (1, state.channels):
        raise NotRecordable(f"{len(levels)} fills for {state.channels} channels")
    if padding_mode != "constant":
        _check_padding(state, paddings(padding), padding_mode)
    return pad(state, padding, [min(max(int(level), 0), 255) for level in levels], padding_mode)


def _check_padding(state: State, padding: tuple[int, ...], mode: str) -> None:
    """Raise for a padding that torchvision leaves to numpy: larger than the image, or negative."""
    most = _OWN_PIXELS.get(mode)
    height, width = state.size
    for side, sides in ((width, padding[::2]), (height, padding[1::2])):
        if min(sides) < 0 or (most is not None and max(sides) > side + most):
            raise NotRecordable(f"padding_mode={mode!r} by more than a picture's own pixels")


# ---- kernels


def cropped(x: Tensor, top: Tensor, left: Tensor, *, height: int, width: int) -> Tensor:
    """Crop as ``crop_image`` of torchvision v2, bit by bit, with a separate position for each sample.

    ``top`` and ``left`` are ``(N,)``, whole numbers of any dtype. A box may extend beyond its image or lie outside it;
    the result is zero there.
    """
    rows = torch.arange(height, device=x.device) + top.to(torch.int64)[:, None]
    columns = torch.arange(width, device=x.device) + left.to(torch.int64)[:, None]
    near_rows, near_columns = rows.clamp(0, x.shape[2] - 1), columns.clamp(0, x.shape[3] - 1)
    outside = (rows != near_rows)[:, None, :, None] | (columns != near_columns)[:, None, None, :]
    return picked(x, near_rows, near_columns).masked_fill_(outside, 0)


def picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``x[n, c, rows[n, i], columns[n, j]]``."""
    samples = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
    return x[samples, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _pad(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    padding, fill, mode = static
    if fill is None or len(set(fill)) == 1:
        return F.pad_image(x, list(padding), fill=0 if fill is None else fill[0], padding_mode=mode)
    channels = [
        F.pad_image(x[:, c : c + 1], list(padding), fill=value, padding_mode=mode) for c, value in enumerate(fill)
    ]
    return torch.cat(channels, 1)


def _box(op: Op) -> Box:
    (top, left), (height, width) = op.numbers, op.static
    return int(top), int(left), height, width


OPERATIONS = (
    Operation("horizontal_flip", alike(lambda x: x.flip(-1)), exact, flip=FLIP_HORIZONTALLY),
    Operation("vertical_flip", alike(lambda x: x.flip(-2)), exact, flip=FLIP_VERTICALLY),
    Operation(
        "turn", lambda x, numbers, static, bulk: torch.rot90(x, k=static[0], dims=(-2, -1)), exact, always(NEIGHBOUR)
    ),
    Operation(
        "crop",
        lambda x, numbers, static, bulk: cropped(x, *numbers[:, :2].unbind(1), height=static[0], width=static[1]),
        exact,
        is_view=True,
        reads=_box,
        within=lambda op, box: None,
    ),
    Operation("pad", _pad, exact),
)
FUNCTIONALS = (
    Functional("horizontal_flip", horizontal_flip, aliases=("hflip",)),
    Functional("vertical_flip", vertical_flip, aliases=("vflip",)),
    drawn_first("crop", prepare_crop, "top", "left", "height", "width"),
    Functional("center_crop", center_crop),
    Functional("five_crop", five_crop, several=True),
    Functional("ten_crop", ten_crop, several=True),
    Functional("pad", pad),
)
METHODS = {"crop": crop_picture, "transpose": transpose, "copy": copy}
IMAGE_OPS = {"expand": expand}
OF_PICTURES = {"pad": pad_picture}

"""Resize, also a box of each image: a whole batch, with a separate box for each sample.

Each position along a resized axis is a short weighted sum of pixels. A *tap* is one summand: its index into the image
and its weight. The taps of all samples are computed on the device; their number must be known on the host and follows
from the size of the images, which no box exceeds. Pixels are gathered and summed tap by tap instead of multiplied by
matrices: this needs less memory and is independent of TF32.

uint8 images are resampled on every device as ATen resamples them on the CPU
(``aten/src/ATen/native/cpu/UpSampleKernel.cpp``): weights computed in float64 and rounded to fixed point, exact integer
sums, one rounding after the horizontal pass and another after the vertical one. Pillow does the same with more bits.
On CUDA, and in some releases on some CPUs, torchvision itself uses float32 and rounds once, which gives other pixels;
:func:`uint8_in_fixed_point` returns what it does here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2.functional import resize_image

from ..arguments import INTERPOLATIONS, colour_of, interpolation_name, output_size
from ..exactness import Deviation, Input, approximate
from ..op import Kind, NotRecordable, Op, State, inside
from ..operation import Box, Encode, Functional, Fused, Laid, Operation, Static, Values, drawn_first, from_triton
from . import pillow_filters as pillows
from .cropping import SIZES, crop, crop_picture, picked
from .pillow_warp import affine_picture

Interpolation: TypeAlias = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"]

_NEAREST = ("nearest", "nearest-exact")
#: Filters that torchvision has for tensors.
_OF_TENSORS = ("bilinear", "bicubic", "lanczos")
_HAS_LANCZOS = hasattr(torch.ops.aten, "_upsample_lanczos2d_aa")  # torch itself

#: ATen computes nearest pixels differently if height + width of the result exceed this.
DIRECT_LIMIT = 128
#: Maximum number of fractional bits of ATen's fixed-point weights, and the limit of the weights, which are int16.
MOST_FRACTION_BITS, WEIGHT_LIMIT = 22, 1 << 15


@functools.cache
def uint8_in_fixed_point() -> bool:
    """Return whether torchvision passes bilinear uint8 images on the CPU to ATen directly, not as float32.

    It depends on the processor and on the release; bicubic images have always been passed directly. It is tested on an
    image for which the two ways differ.
    """
    ramp = torch.arange(0, 250, 5, dtype=torch.uint8, device="cpu").view(1, 5, 10)
    native = interpolate(ramp[None], (3, 7), mode="bilinear", align_corners=False, antialias=True)
    return bool(torch.equal(resize_image(ramp, [3, 7], antialias=True), native[0]))


def resized_crops(
    x: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    *,
    size: tuple[int, int],
    interpolation: Interpolation,
    antialias: bool,
    fixed_point: bool = True,
    pillow: pillows.Pass | None = None,
) -> Tensor:
    """Crop and resize as ``resized_crop_image`` of torchvision v2, with a separate box for each sample.

    Bit-equal to the CPU's result for uint8 and for the nearest modes, otherwise within a few units in the last place.

    Args:
        x: images ``(N, C, H, W)`` of any strides.
        top, left, height, width: of the boxes, which lie inside the images: ``(N,)``, whole numbers of any dtype.
        size: height and width of the result.
        interpolation: the filter; boolean images are picked only, by the nearest modes.
        antialias: whether the filter grows with the scale if the image shrinks; the nearest modes ignore it.
        fixed_point: if False, uint8 images are resampled in float32 and rounded once.
        pillow: the pass that Pillow makes first, if uint8 images are resized as by Pillow, bit-equal, with any of its
            filters. ``antialias`` and ``fixed_point`` must be True then.
    """
    known = (*_NEAREST, *(pillows.FILTERS if pillow else _OF_TENSORS))
    if interpolation not in known:
        raise ValueError(f"interpolation {interpolation!r} is not one of {known}")
    if interpolation in _NEAREST:
        if pillow:
            rows, columns = pillows.nearest_pixels(height, size[0]), pillows.nearest_pixels(width, size[1])
        else:
            rows, columns = _nearest_pixels(x, height, width, size, interpolation)
        return picked(x, (rows + top[:, None]).to(torch.int64), (columns + left[:, None]).to(torch.int64))
    if x.dtype == torch.bool:
        raise TypeError("truth values are picked, not interpolated")
    fixed_point = fixed_point and x.dtype == torch.uint8
    real = torch.float64 if fixed_point or x.dtype == torch.float64 else torch.float32
    filter = _Filter(interpolation, antialias, fixed_point, real, pillow)
    return _resample(x, (top, height), (left, width), size, filter)


def _scale(extent: Tensor, out: int) -> Tensor:
    """Return box pixels per output position; CUDA would divide by a Python number as a multiplication by its
    reciprocal."""
    return extent / torch.full((), out, dtype=extent.dtype, device=extent.device)


def _steps(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=like.dtype, device=like.device)


# --- single pixels, without weights


def _nearest_pixels(
    x: Tensor, height: Tensor, width: Tensor, size: tuple[int, int], interpolation: str
) -> tuple[Tensor, Tensor]:
    """Return rows ``(N, size[0])`` and columns ``(N, size[1])``, counted from 0, of boxes ``height`` by ``width``
    ``(N,)``.

    Positions exactly between two pixels are common, so every rounding matters. ATen has direct code, in float32, for
    small results, and general code, in the image's own precision, for others.
    """
    direct = sum(size) <= DIRECT_LIMIT
    real = torch.float64 if x.dtype == torch.float64 and not direct else torch.float32

    def pixels(extent: Tensor, out: int) -> Tensor:
        extent = extent.to(real)[:, None]
        scale = _scale(extent, out)
        if interpolation == "nearest":
            position = scale * _steps(out, scale)
        elif direct:
            position = scale * (_steps(out, scale) + 0.5)
        else:
            scale = scale.double()
            position = (scale * (_steps(out, scale) + 0.5) - 0.5).to(real).clamp_(min=0) + 0.5
        return torch.minimum(position.float().floor(), extent - 1)

    return pixels(height, size[0]), pixels(width, size[1])


# --- weighted sums of pixels


class _Filter(NamedTuple):
    """Parameters of the weights other than the boxes; weights are computed in the dtype ``real``."""

    interpolation: str
    antialias: bool
    fixed_point: bool
    real: torch.dtype
    pillow: pillows.Pass | None

    @property
    def radius(self) -> float:
        """Number of pixels that the filter extends to either side if it does not shrink the image."""
        return pillows.FILTERS[self.interpolation].radius

    def taps(self, largest: int, out: int) -> int:
        """Return the maximum number of nonzero taps per position, for boxes of up to ``largest`` pixels."""
        return math.ceil(2 * self.radius * (max(1.0, largest / out) if self.antialias else 1))

    def weight(self, distance: Tensor) -> Tensor:
        """Return the weights of pixels at distances from the position. ATen's antialiasing filters are Pillow's."""
        if self.interpolation == "bicubic" and not self.antialias:
            return pillows.cubic(distance, -0.75)
        return pillows.FILTERS[self.interpolation].weight(distance)


class _Axis(NamedTuple):
    """Taps along one axis for ``N`` boxes: indices into the image and weights, both ``(K, N, out)``.

    Weights are floating, or int32 with ``fraction_bits`` ``(N,)`` fractional bits.
    """

    index: Tensor
    weight: Tensor
    fraction_bits: Tensor | None

    def part(self, boxes: slice, taps: int) -> _Axis:
        bits = None if self.fraction_bits is None else self.fraction_bits[boxes]
        return _Axis(self.index[:taps, boxes], self.weight[:taps, boxes], bits)


def _resample(
    x: Tensor,
    vertical: tuple[Tensor, Tensor],
    horizontal: tuple[Tensor, Tensor],
    size: tuple[int, int],
    filter: _Filter,
) -> Tensor:
    """Resize a box of each sample: origin and extent ``(N,)`` along either axis.

    The horizontal pass comes first, as in ATen, except where Pillow begins with the vertical one.
    """
    rows, columns = _axes((x.shape[2], x.shape[3]), vertical, horizontal, size, filter)
    passes = [(rows, 2), (columns, 3)] if filter.pillow == "down" else [(columns, 3), (rows, 2)]
    overshoots = filter.interpolation in ("bicubic", "lanczos")
    if filter.fixed_point:
        for axis, dim in passes:
            x = _fixed_point_pass(x, axis, dim, overshoots)
        return x
    total, zero = x.to(filter.real), torch.zeros((), dtype=filter.real, device=x.device)
    for axis, dim in passes:
        total = _weighted_sum(total, axis, dim, zero)
    if x.dtype == torch.uint8:
        total.clamp_(0, 255)
    return total.to(x.dtype) if x.is_floating_point() else total.round_().to(x.dtype)


def _axes(
    full: tuple[int, int],
    vertical: tuple[Tensor, Tensor],
    horizontal: tuple[Tensor, Tensor],
    size: tuple[int, int],
    filter: _Filter,
) -> tuple[_Axis, _Axis]:
    """Return the vertical and the horizontal taps; for a square result, compute both at once in half the launches."""
    taps = filter.taps(full[0], size[0]), filter.taps(full[1], size[1])
    if size[0] != size[1]:
        return _axis(*vertical, size[0], taps[0], filter), _axis(*horizontal, size[1], taps[1], filter)
    origin, extent = (torch.cat(pair) for pair in zip(vertical, horizontal, strict=True))
    both = _axis(origin, extent, size[0], max(taps), filter)
    boxes = len(vertical[0])
    return both.part(slice(boxes), taps[0]), both.part(slice(boxes, None), taps[1])


def _axis(origin: Tensor, extent: Tensor, out: int, taps: int, filter: _Filter) -> _Axis:
    """Return the taps of boxes ``(N,)`` along one axis."""
    extent = extent.to(filter.real)[:, None]
    position, weight = (_antialiased if filter.antialias else _interpolated)(extent, out, taps, filter)
    bits = None
    if filter.fixed_point:
        weight, peak = (weight, weight.amax((0, 2))) if filter.antialias else _merged(position, weight)
        bits = torch.full_like(peak, pillows.FRACTION_BITS, dtype=torch.int64) if filter.pillow else _fitting_bits(peak)
        weight, bits = _to_fixed_point(weight, bits), bits.to(torch.int32)
    return _Axis((position + origin[:, None]).to(torch.int64), weight, bits)


def _antialiased(extent: Tensor, out: int, taps: int, filter: _Filter) -> tuple[Tensor, Tensor]:
    """Return positions and weights of a filter as wide as the scale, both ``(taps, N, out)``.

    The arithmetic is that of Pillow's ``precompute_coeffs``, which ATen follows. The last taps of a position may have
    weight 0.
    """
    scale = _scale(extent, out)
    stretch = scale.clamp(min=1)
    centre = scale * (_steps(out, extent) + 0.5)
    support = filter.radius * stretch
    first = (centre - support + 0.5).floor_().clamp_(min=0)
    end = torch.minimum((centre + support + 0.5).floor_(), extent)
    position = first + _steps(taps, extent).view(-1, 1, 1)
    weight = filter.weight((position - centre + 0.5) * stretch.reciprocal()).mul_(position < end)
    total = weight.sum(0)
    return torch.minimum(position, extent - 1), weight.div_(total.masked_fill_(total == 0, 1))


def _interpolated(extent: Tensor, out: int, taps: int, filter: _Filter) -> tuple[Tensor, Tensor]:
    """Return positions and weights of the pixels around each centre, both ``(taps, N, out)``.

    A position outside the box moves to the nearest pixel in it. The roundings, with the integer part always taken in
    float32, are those of ATen's ``area_pixel_compute_source_index`` and ``guard_index_and_lambda``.
    """
    scale = _scale(extent, out).double()
    centre = (scale * (_steps(out, scale) + 0.5) - 0.5).to(filter.real)
    if filter.interpolation == "bilinear":
        centre = centre.clamp_(min=0)
    base = torch.minimum(centre.float().floor().to(filter.real), extent - 1)
    offset = (_steps(taps, extent) - (filter.radius - 1)).view(-1, 1, 1)
    weight = filter.weight(offset - (centre - base).clamp_(0, 1))
    return torch.minimum((base + offset).clamp_(min=0), extent - 1), weight


def _merged(position: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Add the weights of taps on one pixel into the last of them, so that they are rounded once; also return the peak
    ``(N,)``.

    ATen adds them one after the other and takes the peak over the intermediate sums as well.
    """
    order = _steps(len(position), position).view(-1, 1, 1, 1)
    later = order < order.transpose(0, 1)
    same = position[:, None] == position
    sums = (weight * (same & ~later)).sum(1)
    return sums.masked_fill((same & later).any(1), 0), sums.amax((0, 2))


def _fitting_bits(peak: Tensor) -> Tensor:
    """Return the most fractional bits ``(N,)`` for which ``peak`` ``(N,)`` fits an int16.

    Formula: ATen's ``_compute_index_ranges_int16_weights``.
    """
    bits = torch.arange(1, MOST_FRACTION_BITS + 1, device=peak.device)
    return ((peak[:, None] * _power_of_two(bits) + 0.5).floor_() < WEIGHT_LIMIT).sum(1)


def _to_fixed_point(weight: Tensor, bits: Tensor) -> Tensor:
    """Return weights ``(K, N, out)`` as int32 with fractional ``bits`` ``(N,)``, rounded half away from zero."""
    scaled = weight * _power_of_two(bits)[:, None]
    return (scaled.abs() + 0.5).floor_().copysign_(scaled).to(torch.int32)


def _power_of_two(exponent: Tensor) -> Tensor:
    return torch.bitwise_left_shift(1, exponent)


def _weighted_sum(x: Tensor, axis: _Axis, dim: int, start: Tensor) -> Tensor:
    """Return ``start`` plus the weighted taps; dimension ``dim`` of ``x`` becomes the positions of ``axis``."""
    shape = [*x.shape]
    shape[dim] = axis.index.shape[2]
    view = (-1, 1, 1, shape[3]) if dim == 3 else (-1, 1, shape[2], 1)
    total = start
    for tap, (index, weight) in enumerate(zip(axis.index, axis.weight, strict=True)):
        taken = x.gather(dim, index.view(view).expand(shape))
        total = total.addcmul_(taken, weight.view(view)) if tap else total.addcmul(taken, weight.view(view))
    return total


def _fixed_point_pass(x: Tensor, axis: _Axis, dim: int, overshoots: bool) -> Tensor:
    """Run one pass over uint8 images with integer weights, rounded half up.

    Without negative weights the result stays in range: rounding the weights adds less than half a level to their sum.
    """
    assert axis.fraction_bits is not None
    bits = axis.fraction_bits.view(-1, 1, 1, 1)
    total = _weighted_sum(x, axis, dim, _power_of_two(bits - 1))
    if overshoots:
        white = _power_of_two(bits + 8) - 1
        total.clamp_(torch.zeros_like(white), white)
    return total.bitwise_right_shift_(bits).to(torch.uint8)


# ---- operations


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
    @functools.lru_cache(SIZES)
    def sized(new: tuple[int, int]) -> Op:
        return _resampled(state, new, interpolation, antialias)

    def encode(top: int, left: int, height: int, width: int) -> list[Op]:
        box = (top, left, height, width)
        if height < 1 or width < 1:
            raise NotRecordable("an empty box is resized")
        new = output_size((height, width), size, None)
        if inside(box, state.size) and new != (height, width):
            return [sized(new).given(*box)]
        cut = state._replace(shape=state.resized(height, width))
        return crop(state, *box) + _resized(cut, new, interpolation, antialias)

    return encode


def _resampled(state: State, size: tuple[int, int], interpolation: Any, antialias: bool | None) -> Op:
    mode = "nearest" if state.mask else interpolation_name(interpolation)
    known = (
        (*_NEAREST, *_OF_TENSORS) if antialias and state.fixed and _HAS_LANCZOS else (*_NEAREST, "bilinear", "bicubic")
    )
    if mode not in known:
        raise NotRecordable(f"resizing with interpolation={mode!r} has no kernel on the device")
    if state.dtype == torch.bool and mode in _OF_TENSORS:
        raise NotRecordable("boolean pixels are interpolated")
    smooth = mode in _OF_TENSORS and bool(antialias)
    return state.op("resample", static=(*size, mode, smooth, state.fixed, None), shape=state.resized(*size))


def resize_picture(
    state: State,
    size: Sequence[int],
    resample: int | None = None,
    box: Sequence[float] | None = None,
    reducing_gap: float | None = None,
) -> list[Op]:
    width, height = (int(side) for side in size)
    if reducing_gap is not None:
        raise NotRecordable("a picture is resized with a reducing_gap")
    if resample not in (None, *INTERPOLATIONS):
        raise NotRecordable(f"a picture is resized with the filter {resample}, which has no kernel on the device")
    whole = (0, 0, *state.size[::-1])
    left, top, right, bottom = whole if box is None else box
    if (left, top, right, bottom) == whole:
        return _scaled(state, (height, width), PIL.Image.Resampling.BICUBIC if resample is None else resample)
    if left % 1 == top % 1 == 0 and (right - left, bottom - top) == (width, height):
        return crop_picture(state, (left, top, right, bottom))
    if resample == PIL.Image.Resampling.NEAREST:
        x, y, end, below = map(np.float32, (left, top, right, bottom))
        matrix = (float(end - x) / width, 0.0, float(x), 0.0, float(below - y) / height, float(y))
        return affine_picture(state, matrix, (height, width), "nearest", colour_of(None, state.channels))
    raise NotRecordable("a picture is resized from a box inside it, whose filter reads the pixels around the box")


def _scaled(state: State, size: tuple[int, int], interpolation: Any) -> list[Op]:
    return [] if size == state.size else _by_pillow(state, (0, 0, *state.size), size, interpolation)


def _by_pillow(state: State, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: Any) -> list[Op]:
    """Encode the resizing of a box (top, left, height, width) inside the picture."""
    mode = interpolation_name(interpolation)
    mode = "nearest" if mode == "nearest-exact" else mode
    static = (*size, mode, True, True, pillows.first_pass(box[2:], size))
    return [state.op("resample", *box, static=static, shape=state.resized(*size))]


def resized_crop_picture(
    state: State,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = "bilinear",
    antialias: bool | None = True,
) -> list[Op]:
    new = output_size((height, width), size, None)
    box = (top, left, height, width)
    if inside(box, state.size) and new != (height, width):
        return _by_pillow(state, box, new, interpolation)
    cut = state._replace(shape=state.resized(height, width))
    return crop(state, *box) + _scaled(cut, new, interpolation)


def _settings(static: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of a resize, as its kernels name them."""
    height, width, interpolation, antialias, fixed, pillow = static
    return {
        "size": (height, width),
        "interpolation": interpolation,
        "antialias": antialias,
        "fixed_point": pillow is not None or _in_fixed_point(interpolation, fixed),
        "pillow": pillow,
    }


def _in_fixed_point(interpolation: str, fixed: bool) -> bool:
    """Return whether uint8 images are resized in fixed point on this machine; v1 (``fixed`` is False) never does."""
    return fixed and (interpolation in ("bicubic", "lanczos") or uint8_in_fixed_point())


def _kernel(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return resized_crops(x, *numbers[:, :4].unbind(1), **_settings(static))


_FUSED_CROP = from_triton("resample", "resized_crop")
_FUSED_RAGGED = from_triton("resample", "resized_crop_ragged")


def _fused_kernel(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    *settings, converted, height, width = static
    return _FUSED_CROP(x, *numbers, **_converting(settings, converted), largest=(height, width))


def _ragged_kernel(memory: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    """Resize images of different sizes, all with the same number of channels, at the offsets in ``memory`` that
    ``numbers`` gives."""
    *settings, converted, height, width, channels, layout = static
    box, image = numbers[:4], numbers[4:]
    return _FUSED_RAGGED(
        memory,
        *image,
        *box,
        **_converting(settings, converted),
        largest=(height, width),
        channels=channels,
        layout=layout,
    )


def _converting(settings: Sequence[Any], converted: str | None) -> dict[str, Any]:
    """Return the settings of a resize that also converts its input, in the way that ``converted`` names."""
    out_dtype = torch.float32 if converted else None
    return {**_settings(settings), "out_dtype": out_dtype, "scale": converted == "multiply"}


def _laid(ops: Sequence[Op], places: Sequence[tuple[int, int, int]]) -> Laid:
    """Add height and width of the largest box, and lay out a row for each number, which the kernels take separately."""
    rows = [op.numbers for op in ops]
    largest = [int(max(row[side] for row in rows)) for side in (2, 3)]
    rows = [(*row, *place) for row, place in zip(rows, places, strict=True)] if places else rows
    columns = list(zip(*rows, strict=True))
    return Laid((*ops[0].static, *largest), Values(columns, (len(columns), len(rows)), torch.float64), None)


def _box(op: Op) -> Box:
    top, left, height, width = map(int, op.numbers)
    return top, left, height, width


def _is_fused(kind: Kind) -> bool:
    """Return whether there is a fused kernel: of Pillow's filters, two have one."""
    return kind.static[2] in ("bilinear", "bicubic") or (kind.static[-1] is None and kind.static[2] in _NEAREST)


def _rule(op: Op, given: Input) -> Deviation:
    _, _, interpolation, _, fixed, pillow = op.static
    in_integers = pillow is not None or (given.dtype == torch.uint8 and _in_fixed_point(interpolation, fixed))
    return None if in_integers or interpolation.startswith("nearest") else approximate(op, given)


_FUSED = Operation(
    "fast_resample",
    _fused_kernel,
    ragged=True,
    lay=_laid,
    by_number=True,
    in_memory=Operation("fast_resample_ragged", _ragged_kernel, lay=_laid),
)
OPERATIONS = (
    Operation(
        "resample",
        _kernel,
        _rule,
        reads=_box,
        within=lambda op, box: op._replace(numbers=(0, 0, *box[2:])),
        ragged=True,
        fused=Fused(_FUSED, further=(None,), takes=_is_fused),
    ),
)
FUNCTIONALS = (
    Functional("resize", resize),
    drawn_first("resized_crop", prepare_resized_crop, "top", "left", "height", "width"),
)
METHODS = {"resize": resize_picture}
OF_PICTURES = {"resized_crop": resized_crop_picture}

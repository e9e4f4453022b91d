"""A sample's ops as the device's fused kernels take them: fewer launches, each image read and written less often.

Colour ops on the same pixels become one op, ``pixels``: a little program that one launch runs for all samples, each in
its own order. A conversion joins the resizing after it, a normalization the blur before it. Only uint8 and float32
images of one or three channels are taken; whatever else stays as it is, for the eager kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .ops import EACH_PIXEL, Op, Shape, inside
from .triton.pixels import FLIP_HORIZONTALLY, FLIP_VERTICALLY, PixelOp, encode

Track = tuple[tuple[Op, ...], tuple[float, ...]]

#: Ops that another kernel takes, and what their static part gets: a conversion before, a normalization after.
_ALSO_FAST: dict[str, tuple[None, ...]] = {
    "resample": (None,),
    "affine": (),
    "rotate": (),
    "perspective": (),
    "gaussian_blur": (None, None),
}
#: Fill values and means for so many channels are kernel arguments.
_CHANNELS = 4
_FLIPS = {"horizontal_flip": FLIP_HORIZONTALLY, "vertical_flip": FLIP_VERTICALLY}
_CODES = {
    "adjust_brightness": PixelOp.BRIGHTNESS,
    "adjust_contrast": PixelOp.CONTRAST,
    "adjust_saturation": PixelOp.SATURATION,
    "adjust_hue": PixelOp.HUE,
    "adjust_gamma": PixelOp.GAMMA,
    "grayscale": PixelOp.GRAYSCALE,
    "invert": PixelOp.INVERT,
    "solarize": PixelOp.SOLARIZE,
    "posterize": PixelOp.POSTERIZE,
}
_ON_PIXELS = {*_FLIPS, *_CODES, "to_dtype", "normalize"}
_TO_FLOAT = {"multiply": (1.0 / 255.0, 1.0), "divide": (1.0, 255.0), "cast": (1.0, 1.0)}
_TO_UINT8 = {"multiply": (255.0 + 1.0 - 1e-3,), "cast": (1.0,)}
_DTYPES = (torch.uint8, torch.float32)


def fused(track: Track, shape: Shape, dtype: torch.dtype) -> Track:
    """The ops and their sites for an image of ``shape`` and ``dtype``, fused."""
    track = _cropped_first(track, tuple(shape), dtype)
    ops: list[Op] = []
    sites: list[float] = []
    taken: list[torch.dtype] = []  # what each of the ops is given
    run: list[Op] = []
    before = (tuple(shape), dtype)  # the image that the next op takes
    begun = dtype  # what the first op of the run was given

    def end_run() -> None:
        if run:
            # Samples that have an op less before theirs still meet: the site is that of the op before, and a little.
            sites.append((sites[-1] if sites else -1) + 0.5)
            ops.append(run[0] if len(run) == 1 and run[0].name == "to_dtype" else _pixels(run))
            taken.append(begun)
            run.clear()

    for op, site in zip(*track, strict=True):
        if _is_pixel_op(op, before):
            begun = begun if run else before[1]
            run.append(op)
            if op.name == "normalize":  # comes last
                end_run()
        else:
            end_run()
            ops.append(_fast(op, before))
            sites.append(site)
            taken.append(before[1])
        before = (op.shape, op.dtype)
    end_run()
    return _joined(ops, sites, taken)


def _cropped_first(track: Track, shape: Shape, dtype: torch.dtype) -> Track:
    """A crop goes before the ops on single pixels that precede it, and becomes the box of a resizing that follows."""
    k = 0
    for op in track[0]:
        if op.name not in EACH_PIXEL:
            break
        k += 1
    if k == len(track[0]) or track[0][k].name != "crop":
        return track
    if not inside((*track[0][k].numbers, *track[0][k].static), (shape[-2], shape[-1])):
        return track
    ops, sites = list(track[0]), list(track[1])
    crop, site = ops.pop(k), sites.pop(k)
    whole = (0, 0, *crop.static)
    if k < len(ops) and ops[k].name == "resample" and ops[k].numbers == whole:
        ops[k] = ops[k]._replace(numbers=(*crop.numbers, *crop.static))
        return tuple(ops), tuple(sites)
    before = [op._replace(shape=(*op.shape[:-2], *crop.static)) for op in ops[:k]]
    cropped = crop._replace(shape=(*shape[:-2], *crop.static), dtype=dtype)
    return (cropped, *before, *ops[k:]), (sites[0] if k else site, *sites)


def _is_pixel_op(op: Op, before: tuple[Shape, torch.dtype]) -> bool:
    if op.name not in _ON_PIXELS:
        return False
    shape, dtype = before
    if dtype not in _DTYPES or len(shape) != 3 or shape[0] not in (1, 3) or op.shape != shape:
        return False
    if op.name == "to_dtype":
        known: dict[str, Any] = _TO_UINT8 if op.dtype == torch.uint8 else _TO_FLOAT
        return bool(op.dtype in _DTYPES and op.static[1] in known)
    return bool(op.name != "normalize" or dtype == torch.float32)


def _pixels(run: Sequence[Op]) -> Op:
    """One op for a run: its numbers are the flips, how many contrasts, then code and operands of each operation."""
    flips, contrasts = 0, 0
    program: list[float] = []
    normalized: tuple[Any, ...] = (None, None)
    for op in run:
        if op.name in _FLIPS:
            flips ^= _FLIPS[op.name]
        elif op.name == "normalize":
            normalized = op.static
        else:
            contrasts += op.name == "adjust_contrast"
            program.extend(_encoded(op))
    last = run[-1]
    return Op("pixels", (last.dtype, *normalized), (flips, contrasts, *program), last.shape, last.dtype)


def _encoded(op: Op) -> tuple[float, ...]:
    if op.name == "to_dtype":
        how = op.static[1]
        if op.dtype == torch.uint8:
            return encode(PixelOp.TO_UINT8, *_TO_UINT8[how])
        return encode(PixelOp.TO_FLOAT, *_TO_FLOAT[how])
    gain = op.static if op.name == "adjust_gamma" else ()
    return encode(_CODES[op.name], *op.numbers, *gain)


def _fast(op: Op, before: tuple[Shape, torch.dtype]) -> Op:
    if op.name in _ALSO_FAST and before[1] in _DTYPES and op.dtype == before[1] and _channels(before[0]) <= _CHANNELS:
        return Op(f"fast_{op.name}", op.static + _ALSO_FAST[op.name], op.numbers, op.shape, op.dtype)
    return op


def _joined(ops: Sequence[Op], sites: Sequence[float], taken: Sequence[torch.dtype]) -> Track:
    """A conversion before a resizing and a normalization after a blur become part of it."""
    made: list[Op] = []
    kept: list[float] = []
    for k, (op, site) in enumerate(zip(ops, sites, strict=True)):
        last = made[-1] if made else None
        from_bytes = k > 0 and taken[k - 1] == torch.uint8
        if last is not None and op.name == "fast_resample" and from_bytes and _only_converts(last):
            made[-1] = Op(op.name, (*op.static[:-1], last.static[1]), op.numbers, op.shape, op.dtype)
            kept[-1] = site
        elif last is not None and _only_blurs(last) and _only_normalizes(op):
            made[-1] = Op(last.name, (*last.static[:-2], *op.static[1:]), last.numbers, op.shape, op.dtype)
        else:
            made.append(op)
            kept.append(site)
    return tuple(made), tuple(kept)


def _only_converts(op: Op) -> bool:
    return op.name == "to_dtype" and op.dtype == torch.float32 and op.static[1] != "divide"


def _only_blurs(op: Op) -> bool:
    return op.name == "fast_gaussian_blur" and op.static[-1] is None


def _channels(shape: Shape) -> int:
    return shape[0] if len(shape) > 2 else 1


def _only_normalizes(op: Op) -> bool:
    if op.name != "pixels" or any(op.numbers) or len(op.numbers) > 2:
        return False
    return op.static[0] == torch.float32 and op.static[1] is not None


def programs(ops: Sequence[Op]) -> tuple[list[int], list[float], int, int]:
    """The flips and codes of a launch, one after the other, its operands, and the most operations and contrasts.

    Programs shorter than the longest are filled up with the code that ends them.
    """
    longest = max(1, max((len(op.numbers) - 2) // 3 for op in ops))
    flips = [int(op.numbers[0]) for op in ops]
    codes: list[int] = []
    operands: list[float] = []
    for op in ops:
        program = op.numbers[2:] + (0.0,) * (3 * longest + 2 - len(op.numbers))
        codes.extend(int(code) for code in program[::3])
        for first, second in zip(program[1::3], program[2::3], strict=True):
            operands += (first, second)
    return flips + codes, operands, longest, max(int(op.numbers[1]) for op in ops)

"""Encode runs of colour ops and flips as programs. One launch runs the programs of all samples, in any order of ops."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..op import Kind, Op, Shape
from ..operation import Laid, Operation, Static, Values
from ..triton.pixels import CONTRASTS, PixelOp, encode

_TO_FLOAT = {"multiply": (1.0 / 255.0, 1.0), "divide": (1.0, 255.0), "cast": (1.0, 1.0)}
_TO_UINT8 = {"multiply": (255.0 + 1.0 - 1e-3,), "cast": (1.0,)}
DTYPES = (torch.uint8, torch.float32)


class Codes(NamedTuple):
    """Program without its operands, which follow it in the numbers of an op, two for each code."""

    flips: int  # ``FLIP_HORIZONTALLY``, ``FLIP_VERTICALLY``, both or 0
    contrasts: int  # the number of codes that need the image's mean
    codes: tuple[int, ...]
    points: tuple[int, ...]  # indices of the codes whose first operand is a table
    pillow: bool  # whether some codes are Pillow's


class Programs(NamedTuple):
    """Arguments of one launch."""

    #: As int32: the flips of each sample, the codes of each sample, and all tables, four levels in a number.
    numbers: array[int]
    operands: array[float]  # two for each code
    longest: int  # the largest number of codes in a program; shorter programs are padded with the code that ends them
    contrasts: int  # the largest number of codes in a program that need the image's mean
    pillow: bool  # whether some codes are Pillow's


def is_pixel_op(kind: Kind, channels: Shape, dtype: torch.dtype) -> bool:
    """Return whether a program can hold the op, on images of these channels and this dtype."""
    if dtype not in DTYPES or channels not in ((1,), (3,)) or kind.channels != channels:
        return False
    if kind.name == "to_dtype":
        known: dict[str, Any] = _TO_UINT8 if kind.dtype == torch.uint8 else _TO_FLOAT
        return bool(kind.dtype in DTYPES and kind.static[1] in known)
    if kind.name == "normalize":
        return bool(dtype == torch.float32)
    return kind.operation.code is not None or bool(kind.operation.flip)


def codes_of(run: Sequence[Kind]) -> Codes:
    """Return the program of a run of ops."""
    flips, codes = 0, []
    for kind in run:
        code = _code(kind)
        if code is not None:
            codes.append(int(code))
        flips ^= kind.operation.flip
    contrasts = sum(code in CONTRASTS for code in codes)
    points = tuple([k for k, code in enumerate(codes) if code == PixelOp.POINT])
    return Codes(flips, contrasts, tuple(codes), points, max(codes, default=0) >= PixelOp.PILLOW_CONTRAST)


def _code(kind: Kind) -> PixelOp | None:
    """Return the program code of an op; None for flips, made by the read, and normalization, made by the write."""
    if kind.name == "to_dtype":
        return PixelOp.TO_UINT8 if kind.dtype == torch.uint8 else PixelOp.TO_FLOAT
    code = kind.operation.code
    return None if code is None else PixelOp(code)


_WITH_FACTOR = (
    PixelOp.BRIGHTNESS,
    PixelOp.HUE,
    PixelOp.SOLARIZE,
    PixelOp.PILLOW_CONTRAST,
    PixelOp.PILLOW_SATURATION,
)


def operands_of(kind: Kind) -> Callable[[Op], tuple[Any, float]] | None:
    """Return the function from an op to its two operands, as by :func:`encode`; None if it has no code.

    The first operand of POINT is its table.
    """
    code = _code(kind)
    if code is None:
        return None
    if code is PixelOp.POINT:
        return lambda op: (op.bulk, 0.0)
    if code in (PixelOp.CONTRAST, PixelOp.SATURATION):
        return lambda op: (op.numbers[0], 1.0 - op.numbers[0])
    if code in _WITH_FACTOR:
        return lambda op: (op.numbers[0], 0.0)
    if code in (PixelOp.GAMMA, PixelOp.POSTERIZE, PixelOp.PILLOW_HUE):
        return lambda op: encode(code, op.numbers[0], *kind.static)[1:]
    parameters: tuple[float, ...] = ()
    if kind.name == "to_dtype":
        parameters = _TO_FLOAT[kind.static[1]] if code is PixelOp.TO_FLOAT else _TO_UINT8[kind.static[1]]
    always = encode(code, *parameters)[1:]
    return lambda op: always


def programs(ops: Sequence[Op]) -> Programs:
    """Return the arguments of the launch that runs the programs of ``ops``. Equal tables are sent once."""
    made: list[Codes] = [op.numbers[0] for op in ops]
    longest = max(1, max([len(one.codes) for one in made]))
    codes = [one.flips for one in made]
    operands: list[float] = []
    tables: dict[bytes, int] = {}
    for op, one in zip(ops, made, strict=True):
        codes += one.codes
        begin = len(operands)
        operands += op.numbers[1:]
        for k in one.points:
            table = op.numbers[1 + 2 * k].numpy().tobytes()
            operands[begin + 2 * k] = tables.setdefault(table, len(tables))
        missing = longest - len(one.codes)
        if missing:
            codes += (0,) * missing
            operands += (0.0, 0.0) * missing
    numbers = array("i", codes)
    numbers.frombytes(b"".join(tables))
    contrasts, pillow = max([one.contrasts for one in made]), any(one.pillow for one in made)
    return Programs(numbers, array("d", operands), longest, contrasts, pillow)


def _laid(ops: Sequence[Op], places: Sequence[tuple[int, int, int]]) -> Laid:
    numbers, operands, longest, contrasts, pillow = programs(ops)
    return Laid(
        (*ops[0].static, longest, contrasts, pillow),
        Values(numbers, (len(numbers),), torch.int32),
        Values(operands, (len(ops), longest, 2), torch.float32),
    )


def _pixels(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    """Run programs: ``numbers`` as in :class:`Programs`, ``bulk`` their operands."""
    from ..triton import pixels

    dtype, mean, std, longest, contrasts, pillow = static
    samples = len(x)
    flips, codes, tables = numbers.tensor_split((samples, samples * (1 + longest)))
    return pixels.run(
        x,
        codes.view(samples, longest),
        bulk,
        tables=tables.view(torch.uint8).view(-1, x.shape[1], 256),
        flips=flips,
        contrast=contrasts,
        pillow=pillow,
        out_dtype=dtype,
        mean=mean,
        std=std,
    )


OPERATIONS = (Operation("pixels", _pixels, lay=_laid),)

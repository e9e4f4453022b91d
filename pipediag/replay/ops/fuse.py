"""Fuse a sample's ops for the device's fused kernels: fewer launches, and each image is read and written less often.

Colour ops and flips that follow each other become one op, ``pixels`` (:mod:`.families.pixel_programs`). A conversion
joins the resize after it, a normalization the blur before it. Only ops on uint8 and float32 images are fused: colour
ops with one or three channels, resize, warps and blur with up to four. Other ops stay for the eager kernels.

The result for a track depends on the kinds of its ops, and on whether a crop lies inside the image. So the fusion is
computed once for all samples with the same kinds; for each sample only the numbers are assembled.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .families.pixel_programs import DTYPES, Codes, codes_of, is_pixel_op, operands_of
from .op import Kind, Op, Shape, Track, inside, op_of

Ops = tuple[Op, ...]

#: Maximum number of channels whose fill values and means are passed as kernel arguments.
_CHANNELS = 4
_WAYS = 1024  # limit on cached fusions


def fused(track: Track, shape: Shape, dtype: torch.dtype) -> Track:
    """Return the fused ops and their sites for an image of ``shape`` (channels first) and ``dtype``."""
    ops, sites = track
    return _way(tuple([op.kind for op in ops]), sites, tuple(shape[:-2]), dtype).fused(ops, shape)


class _Part(NamedTuple):
    """Op of a fused track."""

    kind: Kind
    site: float
    at: int  # index in the unfused track of the op that has the numbers and the shape
    cut: Shape = ()  # height and width in place of the shape's, if a crop was moved before the op
    box: int | None = None  # index of the crop that is this resize's box
    run: tuple[_Part, ...] = ()  # the ops that form one program

    @property
    def codes(self) -> Codes:
        return codes_of([part.kind for part in self.run])


class _Way:
    """Fusion for all tracks of the same kinds and sites, for images of the same channels and dtype."""

    def __init__(self, kinds: tuple[Kind, ...], sites: tuple[float, ...], channels: Shape, dtype: torch.dtype) -> None:
        self._parts = [_Part(kind, site, at) for at, (kind, site) in enumerate(zip(kinds, sites, strict=True))]
        self._image = (channels, dtype)
        first = next((k for k, kind in enumerate(kinds) if not kind.operation.each_pixel), None)
        self._crop = first if first is not None and kinds[first].name == "crop" else None
        self._made: dict[str, tuple[list[Callable[[Ops], Op]], tuple[float, ...]]] = {}

    def fused(self, ops: Ops, shape: Shape) -> Track:
        where = "stays" if self._crop is None else self._where_crop_goes(ops[self._crop :], shape)
        if where not in self._made:
            parts = _fused(self._with_crop(where), *self._image)
            self._made[where] = [_made(part, self._parts) for part in parts], tuple([part.site for part in parts])
        made, sites = self._made[where]
        return tuple([make(ops) for make in made]), sites

    def _where_crop_goes(self, ops: Ops, shape: Shape) -> str:
        """Return where a crop goes: "first", before the preceding ops on single pixels; "resized", into the box of the
        resize that follows; or "stays", because it reaches outside the image."""
        crop, size = ops[0], ops[0].static
        if not inside((*crop.numbers, *size), (shape[-2], shape[-1])):
            return "stays"
        resized = len(ops) > 1 and ops[1].name == "resample" and ops[1].numbers == (0, 0, *size)
        return "resized" if resized else "first"

    def _with_crop(self, where: str) -> list[_Part]:
        parts, k = self._parts.copy(), self._crop
        if k is None or where == "stays":
            return parts
        crop = parts.pop(k)
        if where == "resized":
            parts[k] = parts[k]._replace(box=crop.at)
            return parts
        size = crop.kind.static
        before = [part._replace(cut=size) for part in parts[:k]]
        kind = Kind(crop.kind.name, size, *self._image)
        return [crop._replace(kind=kind, site=self._parts[0].site, cut=size), *before, *parts[k:]]


_way = functools.lru_cache(_WAYS)(_Way)


def _fused(parts: Sequence[_Part], channels: Shape, dtype: torch.dtype) -> list[_Part]:
    made: list[_Part] = []
    taken: list[torch.dtype] = []  # input dtype of each part
    run: list[_Part] = []
    before = (channels, dtype)  # channels and dtype of the next op's input
    begun = dtype  # input dtype of the first op of the run

    def end_run() -> None:
        if run:
            # Half a site after the op before, so that samples with one op less in the run share the site.
            site = (made[-1].site if made else -1) + 0.5
            alone = len(run) == 1 and run[0].kind.name == "to_dtype"
            made.append(run[0]._replace(site=site) if alone else _program(run, site))
            taken.append(begun)
            run.clear()

    for part in parts:
        if is_pixel_op(part.kind, *before):
            begun = begun if run else before[1]
            run.append(part)
            if part.kind.name == "normalize":  # must be last
                end_run()
        else:
            end_run()
            kind = _fast(part.kind, *before)
            made.append(part if kind is part.kind else _Part(kind, part.site, part.at, part.cut, part.box))
            taken.append(before[1])
        before = (part.kind.channels, part.kind.dtype)
    end_run()
    return _joined(made, taken)


def _program(run: Sequence[_Part], site: float) -> _Part:
    last = run[-1]
    normalized = last.kind.static if last.kind.name == "normalize" else (None, None)
    kind = Kind("pixels", (last.kind.dtype, *normalized), last.kind.channels, last.kind.dtype)
    return _Part(kind, site, last.at, last.cut, run=tuple(run))


def _fast(kind: Kind, channels: Shape, dtype: torch.dtype) -> Kind:
    fused = kind.operation.fused
    few = not channels or channels[0] <= _CHANNELS
    if fused is None or not few or not fused.takes(kind) or kind.dtype != dtype:
        return kind
    if dtype not in ((torch.uint8,) if fused.on_bytes else DTYPES):
        return kind
    return Kind(fused.operation.name, kind.static + fused.further, kind.channels, dtype)


def _joined(parts: Sequence[_Part], taken: Sequence[torch.dtype]) -> list[_Part]:
    """Merge a conversion into the resize after it, and a normalization into the blur before it."""
    made: list[_Part] = []
    for k, part in enumerate(parts):
        last, kind = made[-1].kind if made else None, part.kind
        converts = last is not None and last.name == "to_dtype" and last.dtype == torch.float32
        blurs = last is not None and last.name == "fast_gaussian_blur" and last.static[-1] is None
        normalizes = part.run and kind.static[1] is not None and part.codes[:3] == (0, 0, ())
        from_bytes = k > 0 and taken[k - 1] == torch.uint8
        if last is not None and converts and last.static[1] != "divide" and from_bytes and kind.name == "fast_resample":
            static = (*kind.static[:-1], last.static[1])
            made[-1] = part._replace(kind=Kind(kind.name, static, kind.channels, kind.dtype))
        elif last is not None and blurs and normalizes:
            static = (*last.static[:-2], *kind.static[1:])
            made[-1] = made[-1]._replace(kind=Kind(last.name, static, kind.channels, kind.dtype))
        else:
            made.append(part)
    return made


# ---- the ops of a sample


def _made(part: _Part, track: Sequence[_Part]) -> Callable[[Ops], Op]:
    """Return the function that builds the part's op from the ops of a sample."""
    kind, at, box = part.kind, part.at, part.box
    if part.run:
        return _made_program(part)
    if box is not None:
        return lambda ops: op_of((kind, ops[at].shape, (*ops[box].numbers, *ops[box].shape[-2:]), None))
    if part.cut:
        shape = (*kind.channels, *part.cut)
        return lambda ops: op_of((kind, shape, ops[at].numbers, ops[at].bulk))
    if kind is track[at].kind:
        return operator.itemgetter(at)
    return lambda ops: op_of((kind, ops[at].shape, ops[at].numbers, None))


def _made_program(part: _Part) -> Callable[[Ops], Op]:
    kind, at, codes = part.kind, part.at, part.codes
    cut = (*kind.channels, *part.cut) if part.cut else None
    steps = [(one.at, operands) for one in part.run if (operands := operands_of(one.kind)) is not None]

    def make(ops: Ops) -> Op:
        numbers: list[Any] = [codes]
        for place, operands in steps:
            numbers += operands(ops[place])
        return op_of((kind, cut or ops[at].shape, tuple(numbers), None))

    return make

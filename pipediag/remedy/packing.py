"""A batch on its way from a worker to the device: one piece of memory, and what is to be done with it.

The memory holds the untouched images, the numbers of all ops, drawn noise and row indices side by side, so that one
copy brings all of it to the device, asynchronously where it is pinned. Images of one shape lie together and form a
group; whatever else the batch holds travels in its own structure.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors

from ..ladder import tree
from .fuse import fused, programs
from .images import RecordingImage, RecordingMask, RecordingPicture, RecordingStack, is_recording
from .ops import EACH_PIXEL, NotRecordable, Op, Shape, inside
from .program import Program, Rows, Step, Take, merge
from .tape import Tape

_ALIGNED = 16

Box = tuple[int, int, int, int]  # top, left, height, width


class Section(NamedTuple):
    """A tensor inside the memory."""

    offset: int  # in bytes
    shape: Shape
    dtype: torch.dtype

    def of(self, memory: Tensor) -> Tensor:
        size = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : self.offset + size].view(self.dtype).view(self.shape)


class Selection(NamedTuple):
    """Images of one group: all (None), a stretch, or those whose rows a section holds."""

    group: int
    rows: range | Section | None


class Launch(NamedTuple):
    """One step of the replay, ready for the device."""

    name: str
    static: tuple[Any, ...]
    shape: Shape
    dtype: torch.dtype
    takes: tuple[Selection, ...]
    numbers: Section | None  # (samples, numbers of each), float64; as the kernel wants them for a fused one
    bulk: Section | None
    group: int
    in_place: bool


class Source(NamedTuple):
    """A group of untouched images of one shape: ``(rows, C, H, W)``, or ``(rows, H, W, C)`` from pictures."""

    section: Section
    channels_last: bool


class Leaf:
    """Stands in the batch where a tensor will be: result ``number``, viewed as ``shape``, then mixed and wrapped.

    No dataclass or named tuple: those count as containers of a batch, and are walked into.
    """

    __slots__ = ("mixes", "number", "shape", "wrap")

    def __init__(
        self, number: int, shape: Shape, mixes: Sequence[tuple[str, Any]], wrap: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.number = number
        self.shape = shape
        self.mixes = mixes
        self.wrap = wrap


class Result(NamedTuple):
    """The images of one leaf: those of ``takes``, brought into ``order`` where they are not."""

    takes: tuple[Selection, ...]
    order: Section | None


@dataclass
class Packed:
    """Everything of one batch. What loaders do with a batch (pinning, moving between processes) works on it."""

    memory: Tensor  # uint8, 1-d
    sources: list[Source]  # none where the images are on the device already
    launches: list[Launch]
    results: list[Result]
    batch: Any

    def pin_memory(self, device: Any = None) -> Packed:
        """As the loader's pinning thread asks for it."""
        return replace(self, memory=self.memory.pin_memory(), batch=pin_memory(self.batch, device))


def pack(batch: Any, fuse: bool = False) -> Packed:
    """Pack a collated batch with recording images in it.

    Args:
        batch: of any structure; stacks of recording images and single ones become :class:`Leaf`.
        fuse: whether the device has the fused kernels. These also resize images of different sizes in one launch, so
            that only the part of an image that a random crop needs is sent.

    Raises:
        NotRecordable: the batch holds a picture, or nothing that was recorded.
    """
    tapes: list[Tape] = []
    members: list[range] = []

    def leaf(value: Any) -> Any:
        if not is_recording(value):
            _look_for_images(value)
            return value
        begin = len(tapes)
        tapes.extend(image.tape for image in _images(value))
        members.append(range(begin, len(tapes)))
        wrap = {RecordingImage: tv_tensors.Image, RecordingMask: tv_tensors.Mask}.get(type(value))
        return Leaf(len(members) - 1, tuple(value.shape), getattr(value, "mixes", ()), wrap)

    structure = tree.map_leaves(batch, leaf)
    if not tapes:
        raise NotRecordable("no image of the batch was recorded")
    images = _Images()
    places = []
    tracks: list[Any] = [tape.track() for tape in tapes]
    for k, box in enumerate(_boxes(tapes, tracks, fuse)):
        places.append(images.place(tapes[k].source, box))
        if box is not None:
            ops, sites = tracks[k]
            tracks[k] = _trimmed(ops, sites, box)
    kinds = images.kinds
    if fuse:
        tracks = [_fused(track, kinds[group]) for track, (group, _) in zip(tracks, places, strict=True)]
    # A group of usual layout is like one that the device has made: their images may be taken together.
    program = merge(tracks, places, [kind if kind[2] else kind[:2] for kind in kinds], members)
    return _Writer(images.groups, kinds, program).packed(structure)


def pack_ops(tracks: Sequence[Any], shape: Shape, dtype: torch.dtype, fuse: bool = False) -> Packed:
    """Pack what is to be done with a batch of images that are on the device: ops and sites for each of its rows."""
    kind = (shape, dtype, False)
    rows = range(len(tracks))
    program = merge(
        [_fused(track, kind) if fuse else track for track in tracks], [(0, row) for row in rows], [kind[:2]], [rows]
    )
    return _Writer([], [], program).packed(None)


def _look_for_images(value: Any) -> None:
    """Raise where a recorded image is lost: turned into an empty tensor, or inside an object of the user's."""
    if isinstance(value, Tensor):
        if value.is_meta:
            raise NotRecordable("an image was turned into another tensor")
    elif not isinstance(value, (int, float, str, bytes, type(None), np.ndarray, np.generic)):
        try:
            pickle.dumps(value)  # a recorded image refuses
        except NotRecordable:
            raise
        except Exception:
            return


def _images(value: Any) -> Iterator[Any]:
    if isinstance(value, RecordingStack):
        for part in value.parts:
            yield from _images(part)
    elif isinstance(value, RecordingPicture):
        raise NotRecordable("the batch holds pictures, which become tensors only after the loader")
    else:
        yield value


def _fused(track: Any, kind: tuple[Any, ...]) -> Any:
    shape, dtype, channels_last = kind
    return fused(track, (shape[2], *shape[:2]) if channels_last else shape, dtype)


# ---- sending no more of an image than is needed


def _boxes(tapes: Sequence[Tape], tracks: Sequence[Any], resized: bool) -> list[Box | None]:
    """For each image the part that is sent, None for the whole: several views may need more than the image."""
    boxes = [_needed(tape, ops, resized) for tape, (ops, _) in zip(tapes, tracks, strict=True)]
    needed: dict[int, float] = {}
    for tape, box in zip(tapes, boxes, strict=True):
        share = 1.0 if box is None else box[2] * box[3] / math.prod(tape.source_size)
        needed[id(tape.source)] = needed.get(id(tape.source), 0.0) + share
    return [box if needed[id(tape.source)] <= 1 else None for tape, box in zip(tapes, boxes, strict=True)]


def _needed(tape: Tape, ops: Sequence[Op], resized: bool) -> Box | None:
    for op in ops:
        if op.name in EACH_PIXEL:
            continue
        if op.name == "crop":
            box = (*op.numbers, *op.static)
        elif op.name == "resample" and resized:
            box = op.numbers
        else:
            return None
        top, left, height, width = (int(number) for number in box)
        part = inside(box, tape.source_size) and (height, width) != tape.source_size
        return (top, left, height, width) if part else None
    return None


def _trimmed(ops: tuple[Op, ...], sites: tuple[int, ...], box: Box) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Ops and sites for an image of which only ``box`` is sent: a crop has been made then, a resizing is of it all."""
    before: list[Op] = []
    for k, op in enumerate(ops):
        if op.name == "crop":
            return (*before, *ops[k + 1 :]), (*sites[:k], *sites[k + 1 :])
        if op.name == "resample":
            return (*before, op._replace(numbers=(0, 0, *box[2:])), *ops[k + 1 :]), sites
        before.append(op._replace(shape=(*op.shape[:-2], *box[2:])))
    raise AssertionError("a part of an image is sent only where an op needs no more")


class _Images:
    """The images of a batch in groups of one shape, dtype and layout; an image that several views share once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], int] = {}  # by what makes images alike
        self.groups: list[list[Tensor]] = []
        self._known: dict[Any, tuple[int, int]] = {}
        self._pixels: dict[int, Tensor] = {}

    @property
    def kinds(self) -> list[tuple[Any, ...]]:
        """Shape, dtype and whether the channels come last, of each group."""
        return list(self._groups)

    def place(self, source: Any, box: Box | None) -> tuple[int, int]:
        """(group, row) of the image, or of the part of it."""
        known = (id(source), box)
        if known not in self._known:
            pixels, channels_last = self._of(source), not isinstance(source, Tensor)
            if box is not None:
                rows, columns = slice(box[0], box[0] + box[2]), slice(box[1], box[1] + box[3])
                pixels = pixels[rows, columns] if channels_last else pixels[..., rows, columns]
            kind = (tuple(pixels.shape), pixels.dtype, channels_last)
            group = self._groups.setdefault(kind, len(self.groups))
            if group == len(self.groups):
                self.groups.append([])
            self._known[known] = group, len(self.groups[group])
            self.groups[group].append(pixels)
        return self._known[known]

    def _of(self, source: Any) -> Tensor:
        if isinstance(source, Tensor):
            return source.as_subclass(Tensor)
        if id(source) not in self._pixels:
            array = np.array(source).reshape(source.height, source.width, -1)
            self._pixels[id(source)] = torch.from_numpy(array)
        return self._pixels[id(source)]


# ---- writing it down


class _Writer:
    def __init__(self, groups: list[list[Tensor]], kinds: list[tuple[Any, ...]], program: Program) -> None:
        self._groups = groups
        self._kinds = kinds
        self._program = program
        self._end = 0
        self._parts: list[tuple[Section, Any]] = []

    def packed(self, structure: Any) -> Packed:
        sources = [
            Source(self._section(group, (len(group), *kind[0]), kind[1]), kind[2])
            for group, kind in zip(self._groups, self._kinds, strict=True)
        ]
        launches = [self._launch(step, sources) for step in self._program.steps]
        results = [
            Result(self._selections(takes), None if order is None else self._indices(order))
            for takes, order in self._program.outputs
        ]
        memory = _memory(self._end)
        for section, values in self._parts:
            _write(section.of(memory), values)
        return Packed(memory, sources, launches, results, structure)

    def _launch(self, step: Step, sources: list[Source]) -> Launch:
        op = step.ops[0]
        rows = [one.numbers for one in step.ops]
        static = op.static
        numbers = bulk = None
        if op.name == "pixels":
            codes, operands, longest, contrasts = programs(step.ops)
            static = (*static, longest, contrasts)
            numbers = self._section(codes, (len(codes),), torch.int32)
            bulk = self._section(operands, (len(rows), longest, 2), torch.float32)
            rows = [()]
        elif op.name == "erase_drawn":
            rows, bulk = self._packed_one_after_another(step.ops)
        elif op.bulk is not None:
            drawn = [one.bulk for one in step.ops]
            bulk = self._section(drawn, (len(drawn), *op.bulk.shape), op.bulk.dtype)
        if op.name == "fast_resample":
            static = (*static, *(int(max(row[side] for row in rows)) for side in (2, 3)))
            rows = [(*row, *where) for row, where in zip(rows, self._whereabouts(step.takes, sources), strict=True)]
            rows = list(zip(*rows, strict=True))  # number by number: the kernels take each by itself
        if rows[0]:
            numbers = self._section(rows, (len(rows), len(rows[0])), torch.float64)
        takes = self._selections(step.takes)
        return Launch(op.name, static, op.shape, op.dtype, takes, numbers, bulk, step.group, step.in_place)

    def _packed_one_after_another(self, ops: Sequence[Op]) -> tuple[list[tuple[float, ...]], Section]:
        """Drawn values of different sizes in a row; each sample's numbers end with where its own begin."""
        rows, begin = [], 0
        for op in ops:
            assert op.bulk is not None
            rows.append((*op.numbers, begin))
            begin += op.bulk.numel()
        flat = torch.cat([op.bulk.reshape(-1) for op in ops if op.bulk is not None])
        return rows, self._section(flat, (begin,), torch.float32)

    def _whereabouts(self, takes: Sequence[Take], sources: list[Source]) -> Iterator[tuple[float, float, float]]:
        """Byte offset, height and width of each untouched image; zeros for an image that lies in no source."""
        for group, rows in takes:
            if group >= len(sources):
                yield from [(0, 0, 0)] * self._count(group, rows)
                continue
            section, channels_last = sources[group]
            size = math.prod(section.shape[1:]) * section.dtype.itemsize
            height, width = section.shape[1:3] if channels_last else section.shape[-2:]
            for row in range(section.shape[0]) if rows is None else rows:
                yield section.offset + row * size, height, width

    def _count(self, group: int, rows: Rows) -> int:
        return self._program.rows[group] if rows is None else len(rows)

    def _selections(self, takes: Sequence[Take]) -> tuple[Selection, ...]:
        return tuple(
            Selection(group, self._indices(rows) if isinstance(rows, tuple) else rows) for group, rows in takes
        )

    def _indices(self, rows: tuple[int, ...]) -> Section:
        return self._section(list(rows), (len(rows),), torch.int64)

    def _section(self, values: Any, shape: Shape, dtype: torch.dtype) -> Section:
        section = Section(self._end, shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        self._end += -(-size // _ALIGNED) * _ALIGNED
        self._parts.append((section, values))
        return section


def _memory(size: int) -> Tensor:
    if get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    # In memory that the training process can map, as torch's own collate function does it: it is written once.
    storage = torch.UntypedStorage._new_shared(max(1, size))
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))


def _write(place: Tensor, values: Any) -> None:
    if isinstance(values, Tensor):
        place.copy_(values)
    elif isinstance(values[0], Tensor):
        torch.stack(values, out=place)
    else:
        place.copy_(torch.from_numpy(np.array(values)).view(place.shape))

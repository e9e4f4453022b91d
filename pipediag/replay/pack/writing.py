"""Write a batch's memory: the images, the other tensors, and the numbers of the launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ..decode.decoding import Files
from ..decode.undecoded import Undecoded, is_undecoded
from ..decode.undecoded_tensors import UndecodedTensor
from ..ops.op import Shape
from .packed_batch import Launch, Packed, Plain, Result, Section, Selection, Source
from .program import Program, Step, Take
from .ring import Claim, Ring, shared_memory

_ALIGNED = 16  # bytes


class Memory:
    """Layout of a batch's memory. It may have one gap, which is not sent: for pixels that the device decodes."""

    def __init__(self) -> None:
        self._end = 0
        self._parts: list[tuple[Section | Plain, Any]] = []
        self._known: dict[int, Plain] = {}  # by the id of its values: a batch may hold a tensor twice
        self._left_out = 0  # bytes of the gap

    def section(self, values: Any, shape: Shape, dtype: torch.dtype) -> Section:
        section = self._next(shape, dtype)
        self._parts.append((section._replace(offset=section.offset - self._left_out), values))
        return section

    def gap(self, shapes: Sequence[Shape]) -> tuple[int, list[Section]]:
        """Leave the gap for uint8 tensors of these shapes. Return its size in bytes, and the place of each."""
        assert not self._left_out
        begin = self._end
        places = [self._next(shape, torch.uint8) for shape in shapes]
        self._left_out = self._end - begin
        return self._left_out, places

    def plain(self, values: Any, shape: Shape, dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> Plain:
        plain = self._known.get(id(values))
        if plain is None:
            plain = self._known[id(values)] = Plain(self._next(shape, dtype), stride)
            self._parts.append((plain, values))
        return plain

    def _next(self, shape: Shape, dtype: torch.dtype) -> Section:
        section = Section(self._end, shape, dtype)
        self._end += -(-section.nbytes // _ALIGNED) * _ALIGNED
        return section

    def written(self, ring: Ring | None) -> tuple[Tensor, Claim | None]:
        """Write the memory and return it; in a worker, memory that the training process can map."""
        memory, claim = self._room(ring, self._end - self._left_out)
        try:
            for place, values in self._parts:
                _write(place.of(memory), values)
        except BaseException:
            if claim is not None:
                claim.abandon()
            raise
        return memory, claim

    def _room(self, ring: Ring | None, nbytes: int) -> tuple[Tensor, Claim | None]:
        claim = None if ring is None else ring.claim(nbytes)
        if claim is not None:
            return claim.memory, claim
        storage = None if get_worker_info() is None else shared_memory(max(1, nbytes))
        if storage is None:
            return torch.empty(nbytes, dtype=torch.uint8), None
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,)), None


class Writer:
    """Writer of a program's images, launches and numbers into the memory.

    ``groups`` are the images by group, and ``kinds`` the shape, dtype and channels-last flag of each group.
    """

    def __init__(
        self,
        memory: Memory,
        groups: Sequence[list[Tensor | Undecoded]],
        kinds: Sequence[tuple[Any, ...]],
        program: Program,
    ) -> None:
        self._memory = memory
        self._program = program
        self._files: Files | None = None
        sections: dict[int, Section] = {}
        encoded = []
        for k, (group, (shape, dtype, _)) in enumerate(zip(groups, kinds, strict=True)):
            if is_undecoded(group[0]):
                encoded.append(k)
            else:
                sections[k] = memory.section(group, (len(group), *shape), dtype)
        if encoded:
            files: list[Any] = [groups[k] for k in encoded]
            places = self._left_to_decode(files, [(len(groups[k]), *kinds[k][0]) for k in encoded])
            sections.update(zip(encoded, places, strict=True))
        self._sources = [Source(sections[k], kind[2]) for k, kind in enumerate(kinds)]

    def _left_to_decode(self, groups: Sequence[Sequence[Undecoded]], shapes: Sequence[Shape]) -> list[Section]:
        """Send files, and return the place of each group's pixels, of ``shapes`` ``(N, height, width, 3)``."""
        images = [image for group in groups for image in group]
        data = [image.encoded.data for image in images]
        how = [(image.encoded.sampling, isinstance(image, UndecodedTensor)) for image in images]
        sent = self._memory.section(data, (sum(map(len, data)),), torch.uint8)
        begins = accumulate(map(len, data), initial=sent.offset)
        nbytes, places = self._memory.gap(shapes)
        targets = [
            (place.offset + row * 3 * height * width, height, width)
            for place, (number, height, width, _) in zip(places, shapes, strict=True)
            for row in range(number)
        ]
        rows = [
            (begin, len(file), *target, *one)
            for begin, file, target, one in zip(begins, data, targets, how, strict=False)
        ]
        self._files = Files(places[0].offset, nbytes, np.array(rows))
        return places

    def packed(self, structure: Any, ring: Ring | None = None) -> Packed:
        launches = [self._launch(step) for step in self._program.steps]
        results = [
            Result(self._selections(takes), None if order is None else self._indices(order))
            for takes, order in self._program.outputs
        ]
        memory, claim = self._memory.written(ring)
        return Packed(memory, self._sources, launches, results, structure, claim, self._files)

    def _launch(self, step: Step) -> Launch:
        op, operation = step.ops[0], step.ops[0].kind.operation
        takes = () if step.ragged else self._selections(step.takes)
        static, *read = operation.lay(step.ops, self._whereabouts(step.takes) if step.ragged else ())
        numbers, bulk = (None if values is None else self._memory.section(*values) for values in read)
        if step.ragged:
            assert operation.in_memory is not None
            operation, static = operation.in_memory, (*static, *self._layout(step.takes[0].group))
        return Launch(operation.name, static, op.shape, op.dtype, takes, numbers, bulk, step.group, step.in_place)

    def _layout(self, group: int) -> tuple[int, str]:
        """Return the number of channels and the layout of a group's images."""
        (_, *shape), channels_last = self._sources[group].section.shape, self._sources[group].channels_last
        channels = 1 if len(shape) == 2 else shape[2] if channels_last else shape[0]
        return channels, "hwc" if channels_last and channels > 1 else "chw"

    def _whereabouts(self, takes: Sequence[Take]) -> list[tuple[int, int, int]]:
        """Return the byte offset, height and width of each image."""
        places = []
        for group, rows in takes:
            section, channels_last = self._sources[group]
            size = math.prod(section.shape[1:]) * section.dtype.itemsize
            height, width = section.shape[1:3] if channels_last else section.shape[-2:]
            for row in range(section.shape[0]) if rows is None else rows:
                places.append((section.offset + row * size, height, width))
        return places

    def _selections(self, takes: Sequence[Take]) -> tuple[Selection, ...]:
        return tuple(
            Selection(group, self._indices(rows) if isinstance(rows, tuple) else rows) for group, rows in takes
        )

    def _indices(self, rows: tuple[int, ...]) -> Section:
        return self._memory.section(list(rows), (len(rows),), torch.int64)


def _write(place: Tensor, values: Any) -> None:
    if isinstance(values, Tensor):
        place.copy_(values)
    elif isinstance(values[0], bytes):
        files = [np.frombuffer(file, np.uint8) for file in values]
        np.concatenate(files, out=place.numpy())
    elif isinstance(values[0], Tensor):
        torch.stack(values, out=place)
    else:
        place.copy_(torch.from_numpy(np.array(values)).view(place.shape))

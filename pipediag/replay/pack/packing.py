"""Pack a batch in a worker for transfer to the device.

Images of one shape are stored together as a group, and the batch's other plain tensors beside them. All other values
stay in the batch's own containers.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ...usercode import tree
from ...usercode.attributes import is_exactly
from ...usercode.objects import FILLED, holds_twice, leaves, refers_back, taken_apart, why_whole
from ...usercode.paths import parts
from ..decode.decoding import Files
from ..decode.undecoded import Undecoded, UndecodedTensor, decoded, is_undecoded
from ..layout import contiguous, is_dense, may_overlap
from ..ops.fuse import fused
from ..ops.op import NotRecordable, Op, Shape, inside
from ..ops.operation import Box
from ..record.batches import Parts, is_named_tuple, is_plain
from ..record.images import Unreadable
from ..record.memory import Memory as Shared
from ..record.pictures import RecordingPicture
from ..record.session import session
from ..record.substitutes import is_recording
from ..record.tape import Tape
from ..record.views import Elsewhere, memories_of, region_of, simplified
from ..storage import place_of
from .packed_batch import Arranged, Held, Kept, Launch, Leaf, Object, Packed, Plain, Result, Section, Selection, Source
from .program import Program, Step, Take, merge
from .ring import Claim, Ring, shared_memory

_ALIGNED = 16  # bytes


_TWICE = "which may refer to itself, or holds one container in two places"
_SHARED = "the batch holds an image that shares memory with another part of it, or with the dataset's"


class NoneRecorded(NotRecordable):
    """Error: a batch holds no recorded image."""


def pack(
    batch: Any,
    fuse: bool = False,
    ring: Ring | None = None,
    check: Callable[[Tape], None] = lambda tape: None,
    here: bool = False,
) -> Packed:
    """Pack a collated batch that contains recording images.

    Args:
        batch: any structure. Stacks of recording images and single ones become :class:`Leaf`, other arrangements of
            them :class:`Arranged`; plain tensors and :class:`Parts` become :class:`Plain`.
        fuse: True if the device has the fused kernels. They resize images of different sizes in one launch, so only the
            part of an image that a random crop needs is sent.
        ring: written to if it has a free slot.
        check: is called with the tape of each image, and may raise.
        here: whether the loop gets the batch in this process.

    Raises:
        NoneRecorded: the batch holds no recorded image.
        NotRecordable: the batch holds a Pillow image, or two images that share memory.
    """
    memory = Memory()
    gathered = _Gathered(memory, batch, check, here)
    structure, tapes = gathered.placed(batch), gathered.tapes
    if not tapes:
        raise NoneRecorded("no image of the batch was recorded")
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
    # The layout counts only if channels are last: other originals may be taken together with images made on the device.
    program = merge(tracks, places, [kind if kind[2] else kind[:2] for kind in kinds], gathered.members)
    return Writer(memory, images.groups, kinds, program).packed(structure, ring)


def pack_any(
    batch: Any,
    stood: int,
    fuse: bool = False,
    ring: Ring | None = None,
    check: Callable[[Tape], None] = lambda tape: None,
    here: bool = False,
) -> Packed:
    """Pack a batch as :func:`pack` does, also if chance has left all of its images as they are.

    ``stood`` is the number of images that had been replaced before its samples were made.
    """
    try:
        return pack(batch, fuse, ring, check, here)
    except NoneRecorded:
        if session.stood == stood or any(map(is_recording, leaves(batch))):  # nothing was recorded, or code needed it
            raise
        NotRecordable.raised -= 1  # nothing is hidden by code of the user's
        return pack_plain(batch, ring, here)


def pack_plain(batch: Any, ring: Ring | None = None, here: bool = False) -> Packed:
    """Pack a batch without recorded images: no launches, only plain tensors in one memory."""
    memory = Memory()
    structure = _Placing(memory, batch, here).placed(batch)
    written, claim = memory.written(ring)
    return Packed(written, [], [], [], structure, claim)


def pack_ops(tracks: Sequence[Any], shape: Shape, dtype: torch.dtype, fuse: bool = False) -> Packed:
    """Pack only the ops for a batch of images ``shape`` on the device: ``tracks`` holds ops and sites for each."""
    kind = (shape, dtype, False)
    rows = range(len(tracks))
    program = merge(
        [_fused(track, kind) if fuse else track for track in tracks], [(0, row) for row in rows], [kind[:2]], [rows]
    )
    return Writer(Memory(), [], [], program).packed(None)


class _Placing:
    """Puts a batch's plain tensors into ``memory``, and placeholders in their place.

    ``here``, in the loop's process, other code may hold the same tensors and containers: those without recorded images
    stay. From a worker, torch sends tensors that share memory so that they still do.
    """

    def __init__(self, memory: Memory, batch: Any, here: bool) -> None:
        self._memory = memory
        self._is_here = here
        self._is_argument = False  # of a recorded call, and no part of the batch
        self._placed: dict[int, tuple[Any, Held]] = {}  # by id: containers with their placeholders
        plain = {id(leaf): leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and is_plain(leaf)}
        self._places = Counter(place_of(leaf)[0] for leaf in plain.values())  # how many tensors lie in a memory

    def placed(self, obj: Any) -> Any:
        """Return an object of the batch with placeholders.

        Tensors inside containers of the user's own types stay, because such a container might look at its items. So do
        those with gaps in their memory, which torch sends as they are.
        """
        if isinstance(obj, Parts):
            return self._memory.plain(obj.tensors, obj.shape, obj.dtype)
        stays = self._is_here and not self._is_argument
        if stays and not any(map(_is_made, leaves(obj))):
            return Kept(obj)
        obj = decoded(obj)
        if is_plain(obj) and is_dense(obj) and self._places[place_of(obj)[0]] <= 1:
            stride, shape = tuple(obj.stride()), tuple(obj.shape)
            return self._memory.plain(obj, shape, obj.dtype, None if stride == contiguous(shape) else stride)
        if stays and is_exactly(obj, *FILLED):
            return self._held(obj)
        if is_exactly(obj, list, tuple):
            return type(obj)([self.placed(item) for item in obj])
        if is_named_tuple(obj) and not tree.moves_itself(obj):
            return type(obj)(*(self.placed(item) for item in obj))
        if is_exactly(obj, dict, OrderedDict, defaultdict) or tree.is_user_dict(obj):
            twin = copy.copy(obj)
            twin.update((key, self.placed(value)) for key, value in obj.items())
            return twin
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type) and not tree.moves_itself(obj):
            twin = copy.copy(obj)
            for field in dataclasses.fields(obj):
                object.__setattr__(twin, field.name, self.placed(getattr(obj, field.name)))
            return twin
        return tree.map_leaves(obj, self._other)

    def _held(self, obj: Any) -> Held:
        if id(obj) not in self._placed:
            held = Held(obj)
            self._placed[id(obj)] = obj, held
            held.parts.update((step, self.placed(part)) for step, part in parts(obj))
        return self._placed[id(obj)][1]

    def _other(self, value: Any) -> Any:
        """Return what takes the place of another leaf."""
        return value


def _is_made(leaf: Any) -> bool:
    """Return whether a leaf stands for what is still to be made."""
    return isinstance(leaf, Parts) or is_recording(leaf) or is_undecoded(leaf)


class _Gathered(_Placing):
    """Also gathers the recording images.

    It is no function inside :func:`pack`: one that refers to itself is a cycle, which would keep the images.
    """

    def __init__(self, memory: Memory, batch: Any, check: Callable[[Tape], None], here: bool) -> None:
        super().__init__(memory, batch, here)
        self.tapes: list[Tape] = []  # of all images
        self.members: list[range] = []  # which of them each :class:`Leaf` holds
        self._check = check
        self._open: set[int] = set()  # ids of the user's objects that are being taken apart, or were
        self._known: dict[int, tuple[Any, Any]] = {}  # by the id of the image, with it: a batch may hold it twice
        #: By the id of a memory: the images that lie there, with the ids of all memories of each.
        self._lie: dict[int, list[tuple[list[int], Any]]] = {}

    def placed(self, obj: Any) -> Any:
        """Also put the content of the user's objects in their place, if they hold a recording image."""
        content = None if is_recording(obj) else taken_apart(obj)
        if content is None or not any(map(is_recording, leaves(obj))):
            return super().placed(obj)
        if id(obj) not in self._known:
            if id(obj) in self._open or holds_twice(content.parts) or refers_back(obj):
                raise NotRecordable(f"the batch holds it in an object of type {content.cls.__name__}, {_TWICE}")
            self._open.add(id(obj))
            self._known[id(obj)] = obj, Object(content.changed(self.placed), obj)
        return self._known[id(obj)][1]

    def _other(self, value: Any) -> Any:
        if not is_recording(value):
            if taken_apart(value) is not None and any(map(is_recording, leaves(value))):
                return self.placed(value)
            check_holds_no_image(value)
            return value
        if id(value) not in self._known:
            made = simplified(value) if self._is_argument else self._given(value)
            elsewhere = Elsewhere(value) if self._is_here else None
            if isinstance(made, tuple):
                before, self._is_argument = self._is_argument, True
                args, kwargs = self.placed(made[1:])
                self._is_argument = before
                self._known[id(value)] = value, Arranged(made[0], args, kwargs, elsewhere)
            else:
                self._known[id(value)] = value, self._leaf(made, elsewhere) if is_recording(made) else self.placed(made)
        return self._known[id(value)][1]

    def _given(self, value: Any) -> Any:
        """Return what stands for a recorded image, or the user's own if it is that.

        Raises:
            NotRecordable: the loop could write into it, and change another part of the batch or what is the user's.
        """
        made = simplified(value)
        if not isinstance(made, (Unreadable, tuple)):
            return made
        if self._is_here and isinstance(made, Unreadable) and made.tape.is_users and made.tape.is_original:
            return made.tape.given
        memories = memories_of(value)
        keys = [*map(id, memories)]
        for memory in memories:
            users = memory.real if isinstance(memory, Shared) else None
            if users is not None and (self._is_here or place_of(users)[0] in self._places):
                raise NotRecordable(_SHARED)
            others = self._lie.setdefault(id(memory), [])
            if any(keys != of or may_overlap(region_of(value), region_of(other)) for of, other in others):
                raise NotRecordable(_SHARED)
            others.append((keys, value))
        return made

    def _leaf(self, value: Any, elsewhere: Elsewhere | None) -> Leaf:
        begin = len(self.tapes)
        self.tapes.extend(image.tape for image in _images(value))
        for tape in self.tapes[begin:]:
            tape.check()
            self._check(tape)
        self.members.append(range(begin, len(self.tapes)))
        wrap = None if value.stands_for is Tensor else value.stands_for
        stride = value.strides()
        if stride == contiguous(value.shape):
            stride = None
        return Leaf(len(self.members) - 1, tuple(value.shape), getattr(value, "mixes", ()), wrap, stride, elsewhere)


def check_holds_no_image(value: Any) -> None:
    """Check that no recorded image is lost in a leaf of a batch.

    Raises:
        NotRecordable: one became an empty tensor, or is inside an object of the user's.
    """
    if isinstance(value, Tensor):
        if value.is_meta:
            raise NotRecordable("an image was turned into another tensor")
    elif not isinstance(value, (int, float, str, bytes, type(None), np.ndarray, np.generic)):
        try:
            pickle.dumps(value)
        except NotRecordable:  # raised by a recorded image
            held = f"the batch holds it in an object of type {type(value).__name__}"
            raise NotRecordable(f"{held}, {why_whole(value) or 'which is no known container'}") from None
        except Exception:
            pass


def _images(value: Any) -> Iterator[Any]:
    if isinstance(value, RecordingPicture):
        raise NotRecordable("the batch holds pictures, which become tensors only after the loader")
    yield from value.singles()


def _fused(track: Any, kind: tuple[Any, ...]) -> Any:
    shape, dtype, channels_last = kind
    return fused(track, (shape[2], *shape[:2]) if channels_last else shape, dtype)


# ---- send only the needed part of an image


def _boxes(tapes: Sequence[Tape], tracks: Sequence[Any], fuse: bool) -> list[Box | None]:
    """Return the box of each image to send, or None to send the whole image.

    The whole image is sent once if the boxes of all its views together are larger.
    """
    boxes = [_needed(tape, ops, fuse) for tape, (ops, _) in zip(tapes, tracks, strict=True)]
    needed: dict[int, float] = {}
    for tape, box in zip(tapes, boxes, strict=True):
        share = 1.0 if box is None else box[2] * box[3] / math.prod(tape.source_size)
        needed[id(tape.source)] = needed.get(id(tape.source), 0.0) + share
    return [box if needed[id(tape.source)] <= 1 else None for tape, box in zip(tapes, boxes, strict=True)]


def _needed(tape: Tape, ops: Sequence[Op], fuse: bool) -> Box | None:
    """Return the box that the first op on more than single pixels reads, such as a crop; None for the whole image.

    The parts have different sizes, which only a fused kernel takes together if their results have one size.
    """
    op = next((op for op in ops if not op.kind.operation.each_pixel), None)
    if op is None or op.kind.operation.reads is None or is_undecoded(tape.source):
        return None
    if op.kind.operation.ragged and not fuse:
        return None
    box = op.kind.operation.reads(op)
    return box if inside(box, tape.source_size) and box[2:] != tape.source_size else None


def _trimmed(ops: tuple[Op, ...], sites: tuple[int, ...], box: Box) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Return ops and sites for an image of which only ``box`` is sent."""
    k = next(k for k, op in enumerate(ops) if not op.kind.operation.each_pixel)
    before = [op._replace(shape=(*op.shape[:-2], *box[2:])) for op in ops[:k]]
    within = ops[k].kind.operation.within
    assert within is not None
    op = within(ops[k], box)
    if op is None:
        return (*before, *ops[k + 1 :]), (*sites[:k], *sites[k + 1 :])
    return (*before, op, *ops[k + 1 :]), sites


class _Images:
    """Images of a batch in groups of one shape, dtype and layout. An image that several views share is stored once.

    Images that the device decodes have groups of their own, stored as the bytes of their files.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], int] = {}  # by shape, dtype, layout and whether the images are encoded
        self.groups: list[list[Tensor | Undecoded]] = []
        self._known: dict[Any, tuple[int, int]] = {}
        self._pixels: dict[int, Tensor] = {}

    @property
    def kinds(self) -> list[tuple[Any, ...]]:
        """Shape, dtype and channels-last flag of each group."""
        return [kind[:3] for kind in self._groups]

    def place(self, source: Any, box: Box | None) -> tuple[int, int]:
        """Add the image, or its part, unless it is there already; return its group and row."""
        known = (id(source), box)
        if known not in self._known:
            if is_undecoded(source):
                image: Tensor | Undecoded = source
                kind: tuple[Any, ...] = ((source.height, source.width, 3), torch.uint8, True, True)
            else:
                image, channels_last = self._of(source), not isinstance(source, Tensor)
                if box is not None:
                    rows, columns = slice(box[0], box[0] + box[2]), slice(box[1], box[1] + box[3])
                    image = image[rows, columns] if channels_last else image[..., rows, columns]
                kind = (tuple(image.shape), image.dtype, channels_last, False)
            group = self._groups.setdefault(kind, len(self.groups))
            if group == len(self.groups):
                self.groups.append([])
            self._known[known] = group, len(self.groups[group])
            self.groups[group].append(image)
        return self._known[known]

    def _of(self, source: Any) -> Tensor:
        if isinstance(source, Tensor):
            return source.as_subclass(Tensor)
        if id(source) not in self._pixels:
            array = np.array(source).reshape(source.height, source.width, -1)
            self._pixels[id(source)] = torch.from_numpy(array)
        return self._pixels[id(source)]


# ---- write the memory


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
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu"), None
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (nbytes,)), None


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

"""Describe what moves: which transforms are recorded, from which link on, and why the rest stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torchvision.transforms import functional as older

from ..usercode.links import Link, links_of
from ..usercode.places import label
from ..usercode.stand_ins import standing_in
from ..usercode.transform_slots import Slot, find_slots, inner_slots
from .custom import Moved, Shapes, Watched
from .custom.fingerprint import digest
from .decode.undecoded import undecoded_pictures, undecoded_tensors
from .ops.exactness import Input, deviations, may_be_off
from .ops.op import NotRecordable, Op
from .ops.table import CUSTOM
from .record.drawing import Draw
from .record.hooks import recording
from .record.images import RecordingTensor
from .record.pictures import RecordingPicture
from .record.plain_code import Calls, Site
from .record.recorder import Recorder, with_pixels
from .record.substitutes import is_recording
from .record.tape import Tape

Path = tuple[int, ...]
#: A link of a chain: the path of its transform, and the link's index.
Place = tuple[Path, int]


@dataclass(frozen=True)
class Piece:
    """Transform that is recorded from link ``start`` on.

    ``path`` is the index of its slot below the dataset, then of the slot inside the transform found there, and so on.
    ``links`` names the links of its chain, so that another transform in its place is noticed.
    """

    path: Path
    start: int
    links: tuple[str, ...]

    @property
    def stays(self) -> tuple[str, ...]:
        return self.links[: self.start]

    @property
    def moves(self) -> tuple[str, ...]:
        return self.links[self.start :]


class Certified(NamedTuple):
    """What a certificate says may be off on other samples: names of ops, and the links that chance skipped in all."""

    ops: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """Plan of what is recorded.

    Attributes:
        pieces: the transforms.
        reasons: why other links are not recorded.
        begins: the calls of plain code at which a recording begins on a real image.
        called: all calls of plain code that are recorded, in order.
        compared: functions of plain code that a certificate has compared; None if any may be recorded.
        fuse: True if the device has the fused kernels.
        decodes: True if JPEGs are decoded on the device.
        undecoded: why JPEGs are not decoded on the device, if that was allowed.
        copies: True if images are copied before they are replaced, for a dataset that overwrites them.
        refused: functions whose replay differs too much.
        certified: what its certificate says may be off; None if there is no certificate yet.
        own: the user's own links that were proven to work on the device.
        moved: the same links in their form for the device. It is not sent to the workers.
    """

    pieces: tuple[Piece, ...] = ()
    reasons: tuple[str, ...] = ()
    begins: frozenset[Site] = frozenset()
    called: tuple[Site, ...] = ()
    compared: frozenset[str] | None = None
    fuse: bool = False
    decodes: bool = False
    undecoded: str = ""
    copies: bool = False
    refused: frozenset[str] = frozenset()
    certified: Certified | None = None
    own: Mapping[Place, Shapes] = field(default_factory=dict)
    moved: Mapping[Place, Moved] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "moved": {}}

    @property
    def moves(self) -> bool:
        """True if anything is recorded."""
        return bool(self.pieces or self.begins)

    def __str__(self) -> str:
        lines = []
        if self.begins:
            lines.append(f"moves to the device: {', '.join(map(str, self.called))}")
        for piece in self.pieces:
            lines.append(f"moves to the device: {', '.join(piece.moves)}")
            if self.decodes:
                lines.append("decoded on the device: JPEGs")
            if piece.stays:
                lines.append(f"stays in the workers: {', '.join(piece.stays)}")
        undecoded = [f"JPEGs are decoded in the workers: {self.undecoded}"] if self.undecoded else []
        return "\n".join([*(lines or ["nothing moves"]), *undecoded, *(f"- {reason}" for reason in self.reasons)])

    def link(self, site: int, function: str) -> str:
        """Return the name of the user's transform that called a function, or of the function if two could have."""
        names = {piece.links[site] for piece in self.pieces if 0 <= site < len(piece.links)}
        return names.pop() if len(names) == 1 else function

    def check(self, tape: Tape) -> None:
        """Raise if the pixels of an image may be off after an op of which the certificate says nothing.

        Raises:
            NotRecordable: they may.
        """
        if self.certified is None:
            return
        shape, dtype = tape.begun.shape, tape.begun.dtype
        for op in tape.ops:
            if op.name not in self.certified.ops and may_be_off(op.kind, shape, dtype):
                self._check_calls(tape, self.certified)
                return
            shape, dtype = op.shape, op.dtype

    def _check_calls(self, tape: Tape, certified: Certified) -> None:
        ops = iter(tape.ops)
        shape, dtype = tape.begun.shape, tape.begun.dtype
        for call in tape.calls:
            mine = [next(ops) for _ in range(call.ops)]
            of_v1 = getattr(call.fn, "__module__", "") == older.__name__
            off = deviations(mine, Input(shape, dtype, "v1" if of_v1 else "v2")).keys() - certified.ops
            if off and self.link(call.site, call.name) not in certified.links:
                raise NotRecordable(f"{call.name} may give other pixels, and was not in the samples that were compared")
            shape, dtype = (mine[-1].shape, mine[-1].dtype) if mine else (shape, dtype)

    @contextmanager
    def recording(self, twins: Any = None, calls: Calls | None = None) -> Iterator[None]:
        """Record inside the context as the plan allows, with the ``twins`` of real images if given.

        ``calls`` are the calls of plain code at which recordings begin, if not the plan's.
        """
        if calls is None and self.begins:
            calls = Calls(self.begins, self.compared)
        with ExitStack() as undo:
            undo.enter_context(recording(self.refused, self.copies or twins is not None, twins, calls))
            if self.decodes:
                undo.enter_context(undecoded_pictures())
                undo.enter_context(undecoded_tensors())
            yield

    @contextmanager
    def installed(
        self, recorders: Sequence[tuple[Slot, Recorder]], twins: Any = None, calls: Calls | None = None
    ) -> Iterator[None]:
        """Record inside the context, with the results of :meth:`recorders` in place of the dataset's transforms."""
        with self.recording(twins, calls), in_slots(recorders):
            yield

    def recorders(self, dataset: Any, kind: type[Recorder] = Recorder) -> list[tuple[Slot, Recorder]]:
        """Return the plan's slots in this process's dataset, with a recorder of this ``kind`` for each.

        Raises:
            NotRecordable: the dataset holds other transforms than those the plan was made for.
        """
        found = []
        for piece in self.pieces:
            try:
                slot = slot_at(dataset, piece.path)
            except IndexError:
                raise NotRecordable("the dataset keeps its transforms elsewhere than when the plan was made") from None
            recorder = kind(slot.get(), piece.start, proven(piece.path, self.own))
            if names(recorder.links) != piece.links:
                raise NotRecordable("the dataset has other transforms than when the plan was made")
            found.append((slot, recorder))
        return found


@contextmanager
def in_slots(recorders: Iterable[tuple[Slot, Recorder]]) -> Iterator[None]:
    """Let the recorders have the calls of the transforms in the slots inside the context."""
    with ExitStack() as undo:
        for slot, recorder in recorders:
            undo.enter_context(slot.replaced(standing_in(recorder.transform, recorder)))
        yield


def slot_at(dataset: Any, path: Path) -> Slot:
    slot = find_slots(dataset)[path[0]]
    for number in path[1:]:
        slot = inner_slots(slot.get())[number]
    return slot


def link_at(dataset: Any, place: Place) -> Link:
    path, site = place
    return links_of(slot_at(dataset, path).get())[site]


def moved_links(plan: Plan, dataset: Any, code_only: bool = False) -> list[tuple[str, str]]:
    """Return the name and the digest of every link that a plan moves, in order.

    With ``code_only`` the digest leaves out settings, but for the user's own links that were proven with theirs.

    Raises:
        IndexError: the dataset keeps its transforms elsewhere than when the plan was made.
    """
    found = []
    for piece in plan.pieces:
        links = links_of(slot_at(dataset, piece.path).get())
        for site, (name, link) in enumerate(zip(piece.moves, links[piece.start :], strict=False), piece.start):
            without = code_only and (piece.path, site) not in plan.own
            found.append((name, digest(link, named_only=True, code_only=without)))
    # The folder of a file's name depends on where the script was started.
    return found + [(f"{site.function} ({os.path.basename(site.file)}:{site.line})", site.text) for site in plan.called]


def names(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(label(link) for link in links)


def proven(path: Path, own: Mapping[Place, Shapes]) -> dict[int, Callable[[Link], Draw]]:
    """Return what makes the functions that record the proven links of a transform, by the link's index."""
    return {place[1]: partial(_records, place, shapes) for place, shapes in own.items() if place[0] == path}


def _records(place: Place, shapes: Shapes, link: Link) -> Draw:
    watched = Watched(link, shapes.proven)

    def draw(image: Any) -> Any:
        if not is_recording(image):  # code before it needed pixels
            return link(image)
        if watched.changed():
            return with_pixels(link, image)
        tape = image.tape
        if isinstance(image, RecordingPicture):
            raise NotRecordable("it was proven on tensors only")
        if tape.source is None:
            raise NotRecordable("it gets several images at once, or parts of such")
        shape, dtype = shapes.out(tape.state.shape, tape.state.dtype)
        return RecordingTensor.of(tape.then([Op(CUSTOM, (place,), (), shape, dtype)], shapes.fn))

    return draw

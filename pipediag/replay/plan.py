"""Describe what moves: which transforms are recorded, from which link on, and why the rest stays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchvision.transforms import functional as older

from ..usercode.links import Link, links_of
from ..usercode.places import label
from ..usercode.stand_ins import standing_in
from ..usercode.transform_slots import Slot, find_slots, inner_slots
from .decode.undecoded import undecoded_pictures, undecoded_tensors
from .fingerprint import digest
from .ops.exactness import Input, deviations, may_be_off
from .ops.op import NotRecordable
from .record.hooks import recording
from .record.plain_code import Calls, Site
from .record.recorder import Recorder
from .record.tape import Tape

Path = tuple[int, ...]


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
    """Plan of what is recorded."""

    pieces: tuple[Piece, ...] = ()  # the transforms
    reasons: tuple[str, ...] = ()  # why other links are not recorded
    begins: frozenset[Site] = frozenset()  # the calls of plain code at which a recording begins on a real image
    called: tuple[Site, ...] = ()  # all calls of plain code that are recorded, in order
    #: Functions of plain code that a certificate has compared; None if any may be recorded.
    compared: frozenset[str] | None = None
    fuse: bool = False  # True if the device has the fused kernels
    decodes: bool = False  # True if JPEGs are decoded on the device
    undecoded: str = ""  # why JPEGs are not decoded on the device, if that was allowed
    refused: frozenset[str] = frozenset()  # functions whose replay differs too much
    certified: Certified | None = None  # what its certificate says may be off; None if there is no certificate yet

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
            undo.enter_context(recording(self.refused, twins, calls))
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
            recorder = kind(slot.get(), piece.start)
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


def moved_links(plan: Plan, dataset: Any, code_only: bool = False) -> list[tuple[str, str]]:
    """Return the name and the digest of every link that a plan moves, in order.

    With ``code_only`` the digest leaves out settings.

    Raises:
        IndexError: the dataset keeps its transforms elsewhere than when the plan was made.
    """
    found = []
    for piece in plan.pieces:
        links = links_of(slot_at(dataset, piece.path).get())
        for name, link in zip(piece.moves, links[piece.start :], strict=False):
            found.append((name, digest(link, named_only=True, code_only=code_only)))
    return found


def moved_calls(plan: Plan) -> list[tuple[str, str, int, str]]:
    """Return function, file, line and its text for every call of plain code that a plan moves."""
    # The folder of a file's name depends on where the script was started.
    return [(site.function, os.path.basename(site.file), site.line, site.text) for site in plan.called]


def names(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(label(link) for link in links)

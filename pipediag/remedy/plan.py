"""What can be moved, found out on the user's own samples.

Each transform of the dataset is tried: its chain is recorded from the first link on; where a link cannot be recorded
it stays in the worker, with all before it, and the trial goes on behind it. A transform that holds others and is no
chain itself is opened where it cannot be recorded as a whole.
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ladder import randomness
from ..ladder.places import label
from ..ladder.slots import Slot, find_slots, inner_slots
from .custom import Moved, Shapes, prove
from .drawing import Draw
from .ops import NotRecordable, Op
from .packing import pack
from .recorder import Link, Recorder, holds_recording, links_of, run, unhidden
from .tape import RecordingTensor, recording, session

Path = tuple[int, ...]
#: A link of a chain: the path of its transform and its number there.
Place = tuple[Path, int]

_DEPTH = 3


@dataclass(frozen=True)
class Piece:
    """One transform that is recorded from link ``start`` on.

    ``path`` is the number of its slot below the dataset, then of the slot inside the transform found there, and so
    on; ``links`` names the links of its chain, so that another transform found there later is noticed.
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


@dataclass(frozen=True)
class Plan:
    """What is recorded, and why the rest is not.

    ``refused`` names functions whose replay differs too much. ``own`` names the links that are code of the user's own
    and were proven to work on the device, ``moved`` holds them as they work there; only the first travels to the
    workers.
    """

    pieces: tuple[Piece, ...]
    reasons: tuple[str, ...] = ()
    allow_approximate: bool = False
    fuse: bool = False
    refused: frozenset[str] = frozenset()
    own: Mapping[Place, Shapes] = field(default_factory=dict)
    moved: Mapping[Place, Moved] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "moved": {}}

    def __str__(self) -> str:
        lines = []
        for piece in self.pieces:
            lines.append(f"moves to the device: {', '.join(piece.moves)}")
            if piece.stays:
                lines.append(f"stays in the workers: {', '.join(piece.stays)}")
        return "\n".join([*(lines or ["nothing moves"]), *(f"- {reason}" for reason in self.reasons)])

    @contextmanager
    def at_work(self, dataset: Any) -> Iterator[None]:
        """The dataset's transforms replaced by their recorders, inside.

        Raises:
            NotRecordable: the dataset holds other transforms than those the plan was made for.
        """
        with self.installed(self.recorders(dataset)):
            yield

    @contextmanager
    def installed(self, recorders: Sequence[tuple[Slot, Recorder]]) -> Iterator[None]:
        """The same with recorders made before."""
        with ExitStack() as undo, recording(self.allow_approximate, self.refused):
            for slot, recorder in recorders:
                undo.enter_context(slot.replaced(recorder))
            yield

    def recorders(self, dataset: Any) -> list[tuple[Slot, Recorder]]:
        """The slots that the plan names in this process's dataset, and a recorder for each."""
        found = []
        for piece in self.pieces:
            try:
                slot = _slot_at(dataset, piece.path)
            except IndexError:
                raise NotRecordable("the dataset keeps its transforms elsewhere than when the plan was made") from None
            recorder = Recorder(slot.get(), piece.start, _proven(piece.path, self.own))
            if _names(recorder.links) != piece.links:
                raise NotRecordable("the dataset has other transforms than when the plan was made")
            found.append((slot, recorder))
        return found


def make_plan(
    dataset: Any,
    collate: Any,
    indices: Sequence[Any],
    allow_approximate: bool = False,
    fuse: bool = False,
    device: torch.device | None = None,
    refused: frozenset[str] = frozenset(),
) -> Plan:
    """Try on the samples at ``indices`` what of the dataset's transforms can be recorded.

    Links of the user's own that only they and the pixels know are moved to ``device`` where a proof on the same
    samples allows it. Leaves the process's random generators as they were. An error of the dataset's own is the
    user's to see.
    """
    moved: dict[Place, Moved] = {}
    stay: dict[Place, str] = {}
    while True:
        trial = _Trial(dataset, {place: one.shapes for place, one in moved.items()})
        with randomness.undisturbed(), recording(allow_approximate, refused):
            try:
                samples = [trial.sample(index) for index in indices]
                samples = [trial.sample(index) for index in indices]  # under what the last of them has taught
                pack(collate(samples), fuse)
                pieces, reasons = trial.pieces(), trial.reasons()
            except NotRecordable as error:
                pieces, reasons = [], [*trial.reasons(), str(error)]
        place = next((place for place in trial.own_code() if place not in stay), None)
        if device is None or place is None:
            why = (*reasons, *stay.values())
            return Plan(tuple(pieces), why, allow_approximate, fuse, refused, trial.own, moved)
        proof = _proof(dataset, place, indices, device)
        if isinstance(proof, Moved):
            moved[place] = proof
        else:
            stay[place] = proof


def _proof(dataset: Any, place: Place, indices: Sequence[Any], device: torch.device) -> Moved | str:
    """The link at ``place`` on the device, or why it has to stay; proven on what it gets for the samples."""
    path, site = place
    slot = _slot_at(dataset, path)
    watch = _Watch(slot.get(), site)
    with slot.replaced(watch), randomness.undisturbed():
        for index in indices:
            dataset[index]
    link = watch.links[site]
    if not watch.images or not watch.alike:
        return f"{label(link)}: it takes or gives something else than one plain tensor"
    proof = prove(link, watch.images, device)
    return proof if isinstance(proof, Moved) else f"{label(link)}: {proof.reason}"


class _Watch:
    """Stands for a transform and runs it for real; keeps what one of its links was given."""

    def __init__(self, transform: Any, site: int) -> None:
        self.links = links_of(transform)
        self.images: list[Tensor] = []
        self.alike = True
        self._site = site

    def __call__(self, *args: Any) -> Any:
        for site, link in enumerate(self.links):
            given = args
            args = run((link,), args)
            if site == self._site:
                tensors = all(type(value) is Tensor for value in (*given, *args))
                self.alike = self.alike and len(given) == 1 and tensors
                if self.alike:
                    self.images.append(given[0])
        return args if len(args) > 1 else args[0]


def _proven(path: Path, own: Mapping[Place, Shapes]) -> dict[int, Draw]:
    """What records the proven links of one transform."""
    return {site: _records(place, shapes) for place, shapes in own.items() if place[0] == path for site in place[1:]}


def _records(place: Place, shapes: Shapes) -> Draw:
    def draw(image: Any) -> Any:
        tape = image.tape
        if tape.state.pillow:
            raise NotRecordable("it was proven on tensors only")
        shape, dtype = shapes.out(tape.state.shape, tape.state.dtype)
        return RecordingTensor.of(tape.then([Op("custom", (place,), (), shape, dtype)], shapes.fn))

    return draw


class _Trial:
    """Scouts in all slots of a dataset."""

    def __init__(self, dataset: Any, own: Mapping[Place, Shapes]) -> None:
        self.own = own
        self._dataset = dataset
        self._slots = find_slots(dataset)
        self._scouts = [_Scout(slot.get(), (k,), own) for k, slot in enumerate(self._slots)]

    def sample(self, index: Any) -> Any:
        with ExitStack() as undo:
            for slot, scout in zip(self._slots, self._scouts, strict=True):
                undo.enter_context(slot.replaced(scout))
            return self._dataset[index]

    def pieces(self) -> list[Piece]:
        return [piece for scout in self._scouts for piece in scout.pieces()]

    def reasons(self) -> list[str]:
        return list(dict.fromkeys(reason for scout in self._scouts for reason in scout.reasons()))

    def own_code(self) -> Iterator[Place]:
        """Links that stay only because nothing but the user knows what they do."""
        for scout in self._scouts:
            yield from scout.own_code()


class _Scout(Recorder):
    """A recorder that finds out from which link on it can record."""

    def __init__(self, transform: Any, path: Path, own: Mapping[Place, Shapes]) -> None:
        super().__init__(transform, 0, _proven(path, own))
        self._own = own
        self._path = path
        self._recorded = False
        self._reasons: dict[int, str] = {}
        self._inner: list[tuple[Slot, _Scout]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kept = randomness.state()
        while self.start < len(self.links):
            before = [_state_of(link) for link in self.links]
            session.site = self.start
            try:
                with unhidden():
                    result = super().__call__(*args, **kwargs)
                if not holds_recording(result):
                    return result  # neither an image went in, nor came one out
                self._look_for_changes(before)
                self._recorded = True
                return result
            except Exception as error:
                # Whatever goes wrong with recording images: run for real, it does not, or shows the user's own error.
                randomness.restore(kept)
                site = max(session.site, self.start)
                why = "" if isinstance(error, NotRecordable) else f"{type(error).__name__}: "
                self._reasons[site] = f"{why}{error}"
                self.start = site + 1
        return self._inside(*args, **kwargs)

    def _look_for_changes(self, before: list[bytes | None]) -> None:
        for site in range(self.start, len(self.links)):
            if before[site] is not None and _state_of(self.links[site]) != before[site]:
                session.site = site
                raise NotRecordable("it keeps state from call to call")

    def _inside(self, *args: Any, **kwargs: Any) -> Any:
        """The transform itself, with scouts in the slots inside it where it is none of torchvision's own."""
        if self._inner is None:
            opened = len(self.links) == 1 and len(self._path) < _DEPTH and self.links[0] is self.transform
            slots = inner_slots(self.transform) if opened else []
            self._inner = [(slot, _Scout(slot.get(), (*self._path, k), self._own)) for k, slot in enumerate(slots)]
        with ExitStack() as undo:
            for slot, scout in self._inner:
                undo.enter_context(slot.replaced(scout))
            return self.transform(*args, **kwargs)

    def pieces(self) -> Iterator[Piece]:
        if self.start < len(self.links):
            if self._recorded:
                yield Piece(self._path, self.start, _names(self.links))
            return
        for _, scout in self._inner or ():
            yield from scout.pieces()

    def own_code(self) -> Iterator[Place]:
        """The link that ends what can be recorded, where it is no library's and an image goes through it."""
        if self.start - 1 in self._reasons and _is_users(self.links[self.start - 1]):
            yield self._path, self.start - 1
        for _, scout in self._inner or ():
            yield from scout.own_code()

    def reasons(self) -> Iterator[str]:
        for site, reason in sorted(self._reasons.items()):
            yield f"{label(self.links[site])}: {reason}"
        for _, scout in self._inner or ():
            yield from scout.reasons()


def _names(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(label(link) for link in links)


def _slot_at(dataset: Any, path: Path) -> Slot:
    slot = find_slots(dataset)[path[0]]
    for number in path[1:]:
        slot = inner_slots(slot.get())[number]
    return slot


def _is_users(link: Link) -> bool:
    module = getattr(link if isinstance(link, types.FunctionType) else type(link), "__module__", "") or ""
    return module.split(".")[0] not in ("torchvision", "torch", "builtins")


def _state_of(link: Link) -> bytes | None:
    """What an object of the user's keeps, to see whether a call changes it; None where that cannot be told."""
    if not _is_users(link) or isinstance(link, types.FunctionType):
        return None
    try:
        return pickle.dumps(vars(link))
    except Exception:
        return None

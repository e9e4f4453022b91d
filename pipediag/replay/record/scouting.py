"""Find out on the user's own samples which transforms can be recorded.

The chain of each transform is recorded from its first link on. A link that cannot be recorded stays in the worker, with
all links before it, and the trial continues after it. A transform that contains others without being a chain is opened
if it cannot be recorded as a whole.

:func:`find` runs the user's code on recording images, in a process of its own. :func:`scouted` makes a batch that is
trained on: the code of libraries is tried beside it, and the user's code runs once, on real images.
"""

from __future__ import annotations

import itertools
import pickle
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ...frames import is_users
from ...usercode import randomness
from ...usercode.contents import is_library, line_that_asks_types, reached
from ...usercode.links import Link, links_of, passed_on
from ...usercode.objects import leaves, replaced
from ...usercode.places import label, short
from ...usercode.transform_slots import Slot, find_slots, inner_slots
from ..decode.undecoded import decoded, is_undecoded
from ..fingerprint import digest
from ..ops.op import NotRecordable
from ..pack.packing import NoneRecorded, pack
from ..plan import Path, Piece, Plan, in_slots, names
from ..storage import place_of
from .batches import assembled, batch_of, fetched
from .call import itself
from .images import RecordingStack, needs_pixels
from .pictures import RecordingPicture
from .plain_code import Site, Tried
from .recorder import Recorder, holds_recording, unhidden
from .session import session, why_not_now
from .substitutes import is_recording
from .tape import Tape
from .twins import is_librarys
from .views import RecordingView

_DEPTH = 3  # of transforms that are opened
_NO_IMAGE = "it gets no image that can be recorded"
_AFTER = "the code after the transforms"
_KEPT = "the dataset keeps what its transforms have made"
_NONE_UNDECODED = "none reaches the moved transforms undecoded"
#: Number of calls of a transform that are tried beside a batch.
_BESIDE = 16


class _NoImage(NotRecordable):
    """Error: no image went in, or none came out."""


def find(dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], start: Plan) -> Plan:
    """Try on the samples at ``indices`` which of the dataset's transforms can be recorded.

    ``start`` says what is allowed. An error of the dataset itself is raised unchanged.
    """
    trial = _Trial(dataset)
    asks = _asks_types(dataset, collate, without=trial.links)
    plan = start
    with randomness.undisturbed():
        try:
            with plan.recording():
                first = trial.all(indices)
            with plan.recording():
                again = trial.all(indices)  # from the start links that the first pass found
                trial.look_for_kept(first, again)
                packed = pack(assembled(collate, again), plan.fuse)
        except NoneRecorded:
            plan = replace(plan, reasons=trial.why_none(again))
        except NotRecordable as error:
            plan = replace(plan, reasons=(*trial.reasons(), _why(error)))
        else:
            if plan.decodes and packed.files is None:
                plan = replace(plan, decodes=False, undecoded=_NONE_UNDECODED)
            plan = replace(plan, pieces=() if asks else trial.pieces(), reasons=trial.reasons())
        return _with_calls(plan, dataset, collate, indices, asks or trial.asks)


#: Maximum number of passes to find the calls from which on nothing needs the pixels.
_PASSES = 32
#: Beginnings of reasons that hold no more where calls of plain code move.
_OF_NO_CALLS = ("no transform was found", _AFTER)


def _with_calls(plan: Plan, dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], asks: str) -> Plan:
    """Return the plan with the calls of plain code at which a recording can begin: none if code ``asks`` for types."""
    if asks:
        return replace(plan, reasons=(*plan.reasons, asks))
    stays: dict[Site, str] = {}
    for _ in range(_PASSES):
        tried = Tried(stays)
        try:
            with randomness.undisturbed():
                begins = _pass(plan, dataset, collate, indices, tried)
        except Exception as error:
            if tried.blamed:
                continue
            why = _why(error) if isinstance(error, NotRecordable) else f"{type(error).__name__}: {error}"
            reasons = () if isinstance(error, NoneRecorded) else (f"the calls in your code: {why}",)
            begins = frozenset()
        else:
            if tried.blamed:
                continue
            reasons = ()
        reasons = (*dict.fromkeys(f"{site}: {why}" for site, why in stays.items()), *reasons)
        if not begins:
            return replace(plan, reasons=(*plan.reasons, *reasons))
        known = tuple(why for why in plan.reasons if not why.startswith(_OF_NO_CALLS))
        return replace(plan, begins=begins, called=tried.called, reasons=(*known, *reasons))
    return plan


#: Maximum number of values to look at.
_MOST_READ = 20_000


def _asks_types(*roots: Any, without: Sequence[Any] = ()) -> str:
    """Return where the user's code asks for the exact type of an object, which differs for a recorded image, or "".

    It may do so for a later sample only.
    """
    for value in itertools.islice(reached(*roots, without=without), _MOST_READ):
        if isinstance(value, types.FunctionType) and not is_library(value):
            line = line_that_asks_types(value.__code__)
            if line is not None:
                where = f"{short(value.__code__.co_filename)}:{line}"
                return f"{where} asks for the exact type of an object, which a recorded image has not: use isinstance()"
    return ""


def _pass(
    plan: Plan, dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], tried: Tried
) -> frozenset[Site]:
    """Make a batch, and return the calls at which the recording of its images began."""
    with plan.installed(plan.recorders(dataset), calls=tried), session.going_on(), unhidden():
        samples = fetched(dataset, indices)
        batch = assembled(collate, samples)
        images = [leaf for leaf in leaves(batch) if is_recording(leaf)]
        for picture in images:
            if isinstance(picture, RecordingPicture):
                session.needed_for = "the batch holds it as a picture, and only tensors are sent"
                picture.tape.is_needed()
        begins = tried.begun(images)
        if begins:
            pack(batch, plan.fuse)
    return begins


def has_only_librarys(dataset: Any) -> bool:
    """Return whether the dataset has transforms, and all are torchvision's: no code of the user's runs in them."""
    links = [link for slot in find_slots(dataset) for link in links_of(slot.get())]
    return bool(links) and all(map(is_librarys, links))


def scouted(dataset: Any, fetch: Callable[[], Any], collate: Callable[[Any], Any], start: Plan) -> tuple[Any, Plan]:
    """Return the batch of the samples that ``fetch`` returns, made as without the remedy, and what can be recorded.

    Before a transform runs, its links are tried on an image without pixels, from the same random state. The dataset
    :func:`has_only_librarys`. An error of the dataset itself is raised unchanged.
    """
    made: list[weakref.ref[Any]] = []
    trial = _Trial(dataset, partial(_Beside, made))
    with start.recording(), in_slots(trial.scouts):
        samples = fetch()
        batch = batch_of(samples, collate)
        batch = replaced(batch, decoded) if start.decodes else batch
    try:
        plan = trial.plan(start)
        del samples, trial
        if _is_kept(made, batch):
            plan = replace(start, reasons=(*plan.reasons, _KEPT))
    except Exception as error:  # not the dataset's: its batch is made
        plan = replace(start, reasons=(f"looking for what can move failed with {type(error).__name__}: {error}",))
    return batch, plan


def _is_kept(made: list[weakref.ref[Any]], batch: Any) -> bool:
    """Return whether an image that a transform has made lives on, outside of the batch."""
    images = [leaf for leaf in leaves(batch) if _has_pixels(leaf)]
    handed = {id(image) for image in images} | {_memory(image) for image in images if isinstance(image, Tensor)}
    living = [image for ref in made if (image := ref()) is not None and id(image) not in handed]
    return any(not isinstance(image, Tensor) or _memory(image) not in handed for image in living)


def _memory(tensor: Tensor) -> tuple[str, int]:
    if tensor.layout != torch.strided:  # it has no memory of its own
        return "tensor", id(tensor)
    return "memory", place_of(tensor)[0]


def _why(error: NotRecordable) -> str:
    """Return the error with the line of the user's code, outside of the transforms, that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    if not frames:
        return str(error)
    return f"{_AFTER}, {short(frames[-1].filename)}:{frames[-1].lineno}: {error}"


class _Trial:
    """Scouts in all slots of a dataset."""

    def __init__(self, dataset: Any, kind: Callable[..., _Scout] | None = None) -> None:
        self._dataset = dataset
        make = kind or _Scout
        self.scouts = [(slot, make(slot.get(), (k,))) for k, slot in enumerate(find_slots(dataset))]
        several, links = len(self.scouts) > 1, [scout.links for _, scout in self.scouts]
        self._links = [tuple(map(digest, some)) if several and all(map(is_librarys, some)) else k
                       for k, some in enumerate(links)]  # fmt: skip

    @property
    def links(self) -> list[Link]:
        return [link for _, scout in self.scouts for link in scout.links]

    @property
    def asks(self) -> str:
        """Where a link asks for the exact type of an object, or ""."""
        return next((scout.asks for _, scout in self.scouts if scout.asks), "")

    def all(self, indices: Sequence[Any]) -> list[Any]:
        with in_slots(self.scouts):
            samples: list[Any] = fetched(self._dataset, indices)
        return samples

    def look_for_kept(self, samples: Sequence[Any], again: Sequence[Any]) -> None:
        """Raise if a sample that was requested twice was made only once."""
        known = {id(tape) for tape in _beginnings(samples)}
        if any(id(tape) in known for tape in _beginnings(again)):
            raise NotRecordable(_KEPT)

    def pieces(self) -> tuple[Piece, ...]:
        """Return the transforms that can be recorded, and others of equal links of libraries that were not called yet,
        such as those of a later part of a ``ChainDataset``."""
        pieces = tuple(piece for _, scout in self.scouts for piece in scout.pieces())
        starts = {self._links[piece.path[0]]: piece.start for piece in pieces if len(piece.path) == 1}
        uncalled = [k for k, (_, scout) in enumerate(self.scouts) if not scout.called and self._links[k] in starts]
        return (*pieces, *(Piece((k,), starts[self._links[k]], names(self.scouts[k][1].links)) for k in uncalled))

    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reason for _, scout in self.scouts for reason in scout.reasons()))

    def plan(self, start: Plan) -> Plan:
        """Return what can be recorded of the transforms, whatever is done with their results."""
        pieces = self.pieces()
        if not pieces:
            return replace(start, reasons=self.why_none(()))
        plan = replace(start, pieces=pieces, reasons=self.reasons())
        if plan.decodes and not any(scout.undecoded for _, scout in self.scouts):
            plan = replace(plan, decodes=False, undecoded=_NONE_UNDECODED)
        return plan

    def why_none(self, samples: Sequence[Any]) -> tuple[str, ...]:
        """Return why a batch of these samples holds no recorded image."""
        if any(True for _ in _beginnings(samples)):
            return (*self.reasons(), "the collate function puts no recorded image into the batch")
        if not self.scouts:
            return ("no transform was found on the dataset",)
        called = tuple(dict.fromkeys(scout.why_no_image() for _, scout in self.scouts if scout.called))
        return self.reasons() or called or ("no transform was found that the dataset calls",)


def _beginnings(samples: Sequence[Any]) -> Iterator[Tape]:
    """Yield the original tape of every recorded image."""
    for leaf in leaves(list(samples)):
        if isinstance(leaf, RecordingStack):
            yield from _beginnings(leaf.parts)
        elif is_recording(leaf):
            yield leaf.tape.first


class _Scout(Recorder):
    """Recorder that finds the first link from which it can record."""

    def __init__(self, transform: Any, path: Path) -> None:
        super().__init__(transform, 0)
        self._path = path
        self.called = self._recorded = False
        self._met_undecoded = False
        self._given: list[Any] = []  # arrays, tensors and Pillow images among the arguments of its last call
        self._reasons: dict[int, str] = {}
        self._inner: list[tuple[Slot, _Scout]] | None = None
        self.asks = ""  # where a link asks for the exact type of an object: it stays, and so does what is inside of it
        for site, link in enumerate(self.links):
            if not is_librarys(link) and (asks := _asks_types(link)):
                self._reasons[site], self.start, self._inner, self.asks = asks, site + 1, [], asks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kept, begun = randomness.state(), self.start
        self._note_call(args, kwargs)
        while self.start < len(self.links):
            before = [_state_of(link) for link in self.links]
            session.site = self.start
            try:
                with unhidden():
                    result = super().__call__(*args, **kwargs)
                if not holds_recording(result):
                    raise _NoImage(_NO_IMAGE)
                for view in tree_leaves(result):
                    if isinstance(view, RecordingView) and session.calls is None:
                        raise NotRecordable(needs_pixels(view.call[0]))
                self._look_for_changes(before)
                self._recorded = True
                return result
            except Exception as error:
                # Any error may come from the recording images. If it is the user's own, the run with pixels raises it.
                randomness.restore(kept)
                self._move_on(error)
        self._look_for_labels(begun)
        return self._inside(*args, **kwargs)

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record in copies of the user's lists and dicts, and return what stands for an image that chance has left."""
        return self.from_start(*tree_map(itself, (args, kwargs)))

    def _note_call(self, args: Any, kwargs: Any) -> None:
        self.called = True
        self._given = [part for part in tree_leaves((args, kwargs)) if _has_pixels(part)] or self._given

    def _move_on(self, error: Exception) -> None:
        """Begin behind the link that raised the error."""
        site = max(session.site, self.start)
        why = "" if isinstance(error, NotRecordable) else f"{type(error).__name__}: "
        self._reasons.setdefault(site, f"{why}{error}")
        self.start = (self.start if isinstance(error, _NoImage) else site) + 1

    def _look_for_labels(self, begun: int) -> None:
        """Begin where it was before a call that transformed something other than images."""
        if begun < self.start and not self._recorded and all(_NO_IMAGE in why for why in self._reasons.values()):
            self.start = begun
            self._reasons.clear()

    def _look_for_changes(self, before: list[bytes | None]) -> None:
        for site in range(self.start, len(self.links)):
            if before[site] is not None and _state_of(self.links[site]) != before[site]:
                session.site = site
                raise NotRecordable("it keeps state from call to call")

    def _inside(self, *args: Any, **kwargs: Any) -> Any:
        """Run the transform itself, with scouts in its inner slots if it is not a chain."""
        if self._inner is None:
            opened = len(self.links) == 1 and len(self._path) < _DEPTH and self.links[0] is self.transform
            slots = inner_slots(self.transform) if opened else []
            self._inner = [(slot, self._below(slot.get(), (*self._path, k))) for k, slot in enumerate(slots)]
        with in_slots(self._inner):
            return self.transform(*args, **kwargs)

    def _below(self, transform: Any, path: Path) -> _Scout:
        return _Scout(transform, path)

    @property
    def undecoded(self) -> bool:
        """True if it was recorded on an image that was not decoded; also an inner transform."""
        return self._met_undecoded or any(scout.undecoded for _, scout in self._inner or ())

    def pieces(self) -> Iterator[Piece]:
        if self.start < len(self.links) and self._recorded:
            yield Piece(self._path, self.start, names(self.links))
            return
        for _, scout in self._inner or ():
            yield from scout.pieces()

    def reasons(self) -> Iterator[str]:
        for site, reason in sorted(self._reasons.items()):
            yield f"{label(self.links[site])}: {reason}"
        unknown = self._given and not self._reasons and not self._recorded and not self._inner
        if unknown and _is_users(self.transform):
            yield self.why_no_image()
        for _, scout in self._inner or ():
            yield from scout.reasons()

    def why_no_image(self) -> str:
        """Return why a transform was never recorded, from the arguments of its last call."""
        if any(isinstance(part, np.ndarray) for part in self._given):
            why = "it gets numpy arrays, and only tensors and Pillow images can be recorded"
        else:
            why = _NO_IMAGE if self._given else "it was not called with an image"
        return f"{label(self.transform)}: {why}"


class _Beside(_Scout):
    """Scout that tries the links of libraries beside their execution, on the arguments that they get in it.

    ``made`` collects references to the images that it returns, and did not get.
    """

    def __init__(self, made: list[weakref.ref[Any]], transform: Any, path: Path) -> None:
        super().__init__(transform, path)
        self._made = made
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if self._calls > _BESIDE or not self._is_current():
            return self.transform(*args, **kwargs)
        self._note_call(args, kwargs)
        begun, value = self.start, args
        got = set(map(id, tree_leaves((args, kwargs))))
        for site, link in enumerate(self.links):
            if site == self.start:
                self._try(value, kwargs)
            called = self._inside if link is self.transform and self.start > site else link
            value = passed_on(called(*value, **kwargs), len(value) > 1)
        self._look_for_labels(begun)
        made = value if len(args) > 1 else value[0]
        self._made += [weakref.ref(leaf) for leaf in tree_leaves(made) if _has_pixels(leaf) and id(leaf) not in got]
        return made

    def _try(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the links from ``start`` on with their arguments. It raises nothing, and draws nothing."""
        session.site = self.start
        if why := why_not_now():
            self._move_on(NotRecordable(why))
            return
        kept, raised = randomness.state(), NotRecordable.raised
        try:
            with session.of_twins(), unhidden():
                if not holds_recording(self.recorded(args, kwargs)):
                    raise _NoImage(_NO_IMAGE)
            self._recorded = True
            self._met_undecoded = self._met_undecoded or any(map(is_undecoded, tree_leaves((args, kwargs))))
        except Exception as error:
            if not (isinstance(error, _NoImage) and self._recorded):  # else this call is about something else
                self._move_on(error)
            traceback.clear_frames(error.__traceback__)  # they hold images, and an error that they raised again
        finally:
            NotRecordable.raised = raised
            randomness.restore(kept)

    def _below(self, transform: Any, path: Path) -> _Scout:
        return _Beside(self._made, transform, path)


def _has_pixels(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, PIL.Image.Image))


def _is_users(link: Link) -> bool:
    module = getattr(link if isinstance(link, types.FunctionType) else type(link), "__module__", "") or ""
    return module.split(".")[0] not in ("torchvision", "torch", "builtins")


def _state_of(link: Link) -> bytes | None:
    """Return the pickled attributes of a user's object, to see whether a call changes them; None if impossible."""
    if not _is_users(link) or isinstance(link, types.FunctionType):
        return None
    try:
        return pickle.dumps(vars(link))
    except Exception:
        return None

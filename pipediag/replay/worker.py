"""Replace a loader's dataset and collate function so that its workers send packed batches.

A sample may take a branch that no sample took when the plan was made, and that cannot be recorded. Code that needs
pixels then gets them, from the calls recorded so far, and goes on: the user's code runs once for a sample, and once for
a batch. The batch is made with pixels and sent as :class:`Unrecorded`. Only where an image cannot be given its pixels,
or code fails that had a recording image, which may be the cause (:mod:`.record.own_errors`), is the batch made again,
from the same random state.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import ref

from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ..usercode import randomness, tree
from ..usercode.objects import leaves, replaced
from ..usercode.transform_slots import Slot
from .certify.samples import executed
from .ops.op import NotRecordable
from .pack.packed_batch import Packed
from .pack.packing import check_holds_no_image, pack_any, pack_plain
from .pack.ring import Ring
from .plan import Plan
from .record.batches import assembled, batch_of, collated, fetched, real_leaf, sample_of, stacking
from .record.outliving import become_real, noted
from .record.own_errors import is_users_own
from .record.recorder import Recorder, unhidden
from .record.scouting import scouted
from .record.session import session
from .record.twins import Following

_S = TypeVar("_S", bound="_Unmoved")


@dataclass
class _Unmoved:
    """Batch whose transforms the worker has run itself."""

    batch: Any

    def pin_memory(self: _S, device: Any = None) -> _S:
        return replace(self, batch=tree.pinned(self.batch, device))


@dataclass
class Unrecorded(_Unmoved):
    """Batch that the worker made with pixels, for the given reason. It is packed if there is a ring."""

    reason: str


@dataclass
class AsIs(_Unmoved):
    """Batch that the worker made as without the remedy."""


@dataclass
class Executed(_Unmoved):
    """Batch that the worker made as without the remedy while it recorded it: see :func:`.certify.samples.executed`.

    It is packed if there is a ring.
    """

    evidence: bytes


@dataclass
class Scouted(AsIs):
    """Batch that the worker made as without the remedy while it looked what can be recorded.

    ``evidence`` is the pickled plan.
    """

    evidence: bytes


class AlsoExecuted(NamedTuple):
    """Request to a worker, in place of indices: make their batch as without the remedy, and record it at once.

    ``compared`` is the number of samples whose calls are compared one by one.
    """

    indices: Any
    compared: int


class AlsoScouted(NamedTuple):
    """Request to a worker, in place of indices: make their batch as without the remedy, and find what can be
    recorded."""

    indices: Any


class Under(NamedTuple):
    """Request to a worker that makes this and all later batches under a plan, if it has another one."""

    plan: Plan
    request: Any


class Plainly(NamedTuple):
    """Request to a worker, in place of indices: make their batch as without the remedy."""

    indices: Any


Sent = Packed | Unrecorded | AsIs | Executed


def _packed(batch: Any, ring: Ring | None) -> Packed:
    return pack_plain(batch, ring, get_worker_info() is None)


class PackedCollate:
    """Collate function that packs each batch, in a slot of ``ring`` if one is free.

    The tensors that ``default_collate`` would stack are written once, directly where the training process reads them.
    """

    def __init__(self, collate: Callable[[Any], Any], ring: Ring | None = None) -> None:
        self._collate = stacking(collate)
        self._ring = ring

    def __call__(self, samples: Any) -> Packed:
        return _packed(batch_of(samples, self._collate), self._ring)

    def recorded(self, samples: Any, plan: Plan, stood: int) -> Packed | Unrecorded:
        """Pack a batch that contains recording images. If that cannot be, send what the collate function has made.

        ``stood`` is the number of images that had been replaced before the samples were made.

        Raises:
            NotRecordable: it cannot be packed, and an image of it cannot be given its pixels.
        """
        settled, of_user = session.settled, self._collate is not collated
        with session.going_on() if of_user else nullcontext():
            batch = assembled(self._collate, samples)
        raised = NotRecordable.raised
        try:
            if settled != session.settled:
                raise NotRecordable(session.why)
            with session.going_on(False):
                return pack_any(batch, stood, plan.fuse, self._ring, plan.check, get_worker_info() is None)
        except NotRecordable as error:
            if not of_user:  # the stacking was left to the packing, and may run again
                raise
            reason = session.why or error
        batch = replaced(batch, real_leaf)
        with session.going_on(False):
            for leaf in leaves(batch):
                check_holds_no_image(leaf)
        NotRecordable.raised = raised  # the user's code has hidden nothing
        return Unrecorded(batch if self._ring is None else _packed(batch, self._ring), f"NotRecordable: {reason}")


class PackingSide:
    """Worker's half of the remedy: fetches, collates and packs, also under a plan that records nothing."""

    repeats = True  # samples can be made again

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], plan: Plan, ring: Ring | None = None) -> None:
        self.dataset = dataset
        self._collate = collate
        self._ring = ring
        self._packed = PackedCollate(collate, ring)
        self._real = partial(batch_of, collate=collate) if ring is None else self._packed
        self._plan = plan
        self._stood = 0  # images replaced before the latest sample
        self._recorders: list[tuple[Slot, Recorder]] | None = None
        #: The recording images of the latest batch, and how many began as real ones, in the loop's own process.
        self._noted: list[ref[Any]] = []
        self._began = 0

    def samples(self, request: Any) -> Sent:
        """Return a batch, already collated."""
        return self._made(request, batched=True)

    def sample(self, request: Any) -> Sent:
        """Return one sample, for a loader without batching."""
        return self._made(request, batched=False)

    def let_go(self) -> bool:
        """Turn the recorded images of the latest batch that code still holds into real ones: the batch is complete.

        Return whether these are most of its images. From a worker, the loop gets none; in a stream they are not known.
        """
        made, self._noted = self._noted, []
        return 2 * become_real(made) > self._began

    def _made(self, request: Any, batched: bool) -> Sent:
        # A stream that stands still between two batches holds the images of the last one, which nobody sees.
        if get_worker_info() is not None or not self.repeats:
            return self._answer(request, batched)
        stood = session.stood
        with noted() as self._noted:
            try:
                sent = self._answer(request, batched)
                self._began = session.stood - stood
                return sent
            except BaseException:
                self.let_go()  # code may look at what the error's traceback holds
                raise

    def _answer(self, request: Any, batched: bool) -> Sent:
        if isinstance(request, Under):
            if request.plan != self._plan:
                self._plan, self._recorders = request.plan, None
            request = request.request
        extra = isinstance(request, (Plainly, AlsoExecuted, AlsoScouted))
        indices = request.indices if extra else request
        fetch = partial(self._fetched, indices, batched)
        if isinstance(request, Plainly):
            return AsIs(self._plain(indices, batched))
        if isinstance(request, AlsoExecuted):
            return self._executed(fetch, request.compared, batched)
        if isinstance(request, AlsoScouted):
            batch, plan = scouted(self.dataset, fetch, self._collate, self._plan)
            return Scouted(batch, pickle.dumps(plan))
        return self._sent(lambda: fetch(begin=self._begin))

    def _begin(self) -> None:
        self._stood = session.stood

    def _plain(self, indices: Any, batched: bool) -> Any:
        """Return the batch as without the remedy."""
        return _MapDatasetFetcher(self.dataset, batched, self._collate, False).fetch(indices)

    def _fetched(self, indices: Any, batched: bool, **calls: Callable[..., None]) -> Any:
        return fetched(self.dataset, indices, **calls) if batched else sample_of(self.dataset, indices)

    def ready(self) -> None:
        """Do nothing: no preparation is needed."""

    def _sent(self, fetch: Callable[[], Any]) -> Sent:
        if not self._plan.moves:
            return self._packed(fetch())
        self._begin()
        begun = drawn = randomness.state()
        settled, stood, samples, began = session.settled, session.stood, _NONE, False
        session.why = ""
        try:
            with self._plan.installed(self._up_to_date()):
                with unhidden(), session.going_on():
                    began = True
                    made = fetch()
                samples, drawn = made, randomness.state()  # the user's code has caught no error of ours
                if session.settled == settled:
                    with unhidden():
                        return self._packed.recorded(samples, self._plan, stood)
                reason = f"{NotRecordable.__name__}: {session.why}"
        except Exception as error:
            untouched = samples is _NONE and session.stood == self._stood
            if began and not isinstance(error, NotRecordable) and (untouched or is_users_own(error)):
                raise  # the dataset's own, or the collate function's
            if samples is _NONE and began and not self.repeats:
                raise
            reason = f"{type(error).__name__}: {error}"
        try:
            samples = samples if samples is _NONE else replaced(samples, real_leaf)
        except NotRecordable:  # an image's pixels were written into by another one that shares its memory, or are lost
            if not self.repeats:
                raise
            samples = _NONE
        randomness.restore(begun if samples is _NONE else drawn)  # the collate function may have drawn
        if samples is _NONE:
            samples = fetch()
        return Unrecorded(self._real(samples), reason)

    def _executed(self, fetch: Callable[..., Any], compared: int, batched: bool) -> Sent:
        kept, began = randomness.state(), False
        try:
            recorders = self._plan.recorders(self.dataset, Following)
            began = True
            made = executed(lambda end: fetch(end=end), self._collate, recorders, self._plan, compared, batched)
        except NotRecordable as error:  # there are other transforms now, or an undecoded image cannot be written into
            if began and not self.repeats:
                raise
            randomness.restore(kept)
            return Unrecorded(self._real(fetch()), f"{NotRecordable.__name__}: {error}")
        return Executed(made.batch if self._ring is None else _packed(made.batch, self._ring), made.evidence)

    def _up_to_date(self) -> list[tuple[Slot, Recorder]]:
        """Return the recorders, made anew if the dataset has other transforms than for the last batch."""
        if self._recorders is None or not all(recorder.stands_for(slot.get()) for slot, recorder in self._recorders):
            self._recorders = self._plan.recorders(self.dataset)
        return self._recorders

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorders": None}  # slots refer to one process's objects


_NONE = object()


def handed_on(sent: Any) -> Any:
    """Return the batch unchanged: the collate function for batches that are already collated."""
    return sent

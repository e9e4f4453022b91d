"""Serve each rung in a worker: its class says where the items of a batch come from, and how they are collated.

To add a rung that workers serve, give it an entry in :mod:`pipediag.session.rungs`, and a subclass of :class:`Served`
with an entry in :data:`SERVED`. :mod:`.worker_side` calls the user's code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ...session import cut_of, left_out
from ...usercode import tree
from ...usercode.chain import Apart, Chain, CutSample, chain_of, take_apart
from ...usercode.dissect import NotSeparable, RawSample
from ...usercode.transform_slots import find_slots
from ..probes.inspection import made_twice
from .kept_calls import KeptCalls
from .worker_state import CUT_SHARE, LEFT_OUT_BYTES, MIN_ITEMS, RAW_SHARE, WorkerState, within

if TYPE_CHECKING:
    from .worker_side import WorkerSide


class Served:
    """A rung under which the user's code makes the items.

    Attributes:
        needs_indices: True if it serves items of some indices, which are chosen before.
    """

    needs_indices = False

    def __init__(self, side: WorkerSide) -> None:
        self.side = side

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        """Return the items of a batch from this worker's caches; None if the user's code makes them as in training."""
        return None

    def batch(self, state: WorkerState, items: Any) -> Any:
        """Return the batch of these items."""
        return self.side.collate(items)


class _Warm(Served):
    """A few items whose files are in the page cache, made by the whole dataset code."""

    needs_indices = True

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        return self.side.fetch(state.draw(state.indices, count)) if state.complete else None


class _Worker(Served):
    """A cached batch, sent again; the training process has posted it to the worker's queue."""

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        queues = self.side.batch_queues
        if state.cached_batch is None and 0 <= state.worker < len(queues):
            state.cached_batch = queues[state.worker].get(timeout=60)
        return [] if state.cached_batch is not None else None

    def batch(self, state: WorkerState, items: Any) -> Any:
        return state.fresh(state.cached_batch) if state.cached_batch is not None else super().batch(state, items)


class _Cached(Served):
    """A rung that collates items which were made from cached ones."""

    needs_indices = True

    def batch(self, state: WorkerState, items: Any) -> Any:
        if not state.indices and isinstance(items, list):  # a stream's; without automatic batching it is one item
            state.count = len(items)
        batch = self._collated(state, items)
        if state.copies.learn(batch):
            state.stable = False
        return batch

    def _collated(self, state: WorkerState, items: Any) -> Any:
        return self.side.collate(items)

    def _processed(self, state: WorkerState, count: int) -> list[Any] | None:
        """Return processed samples, which are made once; None if there are not enough indices yet."""
        side = self.side
        if not state.samples and state.complete:
            state.stable = False
            state.samples = list(within(map(side.one, state.indices), tree.nbytes, side.samples_room))
        return state.serve(count) if state.samples else None


class _Sample(_Cached):
    """Processed samples, collated anew without the transforms that the collate function runs."""

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        return self._processed(state, count)

    def _collated(self, state: WorkerState, items: Any) -> Any:
        if not collate_transforms(self.side, state):
            return self.side.collate(items)
        with state.stubs.installed(state.copies):
            return self.side.collate(items)


class _Raw(_Cached):
    """Samples as they were loaded, transformed anew: by all transforms, or by those after the first ``links``."""

    def __init__(self, side: WorkerSide, links: int | None = None) -> None:
        super().__init__(side)
        self._links = links

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        if not state.complete:
            return None
        mode = raw_mode(self.side, state)
        if mode == "replay":
            pool = self._pool(state)
            return [self._replay(state, raw) for raw in state.draw(pool, count)] if pool else None
        if mode == "collate" and self._links is None:
            return self._processed(state, count)
        if mode == "collate":
            state.why_not = "the transforms are applied by the collate function"
        return None

    def _pool(self, state: WorkerState) -> Sequence[RawSample | CutSample]:
        """Return the cached samples; empty if this chain has no such cut."""
        if self._links is None:
            return state.raws
        if self._links not in state.chain.cuts():
            state.why_not = state.chain.unsplit or "this worker found another chain of transforms"
            return []
        try:
            return state.cut(self._links, CUT_SHARE * self.side.rung_switch.pool_bytes)
        except Exception as error:  # the replay left the path that the user's code had prepared
            state.why_not = _replay_failed(error)
            return []

    def _replay(self, state: WorkerState, raw: RawSample | CutSample) -> Any:
        try:
            return state.replay(raw)
        except Exception as error:  # a draw that the recorded sample does not fit; this must not reach user code
            state.stable, state.raw_mode = False, "impossible"
            state.raw_trouble = state.why_not = _replay_failed(error)
            return self.side.one(state.indices[0])


class _Without(Served):
    """A few items whose files are in the page cache, made and collated without the calls at one line."""

    needs_indices = True

    def __init__(self, side: WorkerSide, where: str) -> None:
        super().__init__(side)
        self._where = where
        self._kept: KeptCalls | None = None
        self._turn = 0
        self._drawn: list[Any] = []  # the batch's indices

    def items(self, state: WorkerState, count: int) -> list[Any] | None:
        self._drawn = []
        if not state.complete:
            return None
        room = LEFT_OUT_BYTES // max(8, len(self.side.batch_queues))
        self._kept = kept = self._kept or KeptCalls(self._where, room, state.of_threads)
        indices, items = self._next(state, count), list[Any]()
        with self._left_out(state, kept):
            for unit in [indices] if self.side.many else [[index] for index in indices]:
                if not kept.why_not:
                    items += kept.make((*map(id, unit),), partial(self.side.fetch, unit))
        self._drawn = [] if kept.why_not else indices
        return items if self._drawn else None

    def batch(self, state: WorkerState, items: Any) -> Any:
        kept, made = self._kept, list[Any]()
        if kept is None or not self._drawn:
            return super().batch(state, items)
        with self._left_out(state, kept):
            made.append(kept.make(("batch", *map(id, self._drawn)), partial(super().batch, state, items)))
            if kept.idle:
                kept.why_not = "it does not run for every batch"
        return made[0] if made else super().batch(state, self.side.fetch(self._drawn))

    def _next(self, state: WorkerState, count: int) -> list[Any]:
        """Return the indices of a batch: few different ones, since each sample and each batch is made in full first."""
        indices = state.indices[:MIN_ITEMS]
        known = len(indices)
        first = (self._turn % (known // count)) * count if count < known else 0
        self._turn += 1
        return [indices[(first + number) % known] for number in range(count)]

    @contextmanager
    def _left_out(self, state: WorkerState, kept: KeptCalls) -> Iterator[None]:
        """Make something without the calls; an error ends that: if it is the user's own, it comes again without."""
        kept.seconds, kept.complete = 0.0, True
        try:
            with kept.undisturbed():
                yield
        except Exception as error:
            kept.why_not = f"the code fails without it: {type(error).__name__}: {error}"
        state.copies.seconds += kept.seconds
        state.stable, state.why_not = state.stable and kept.complete and not kept.why_not, kept.why_not


#: What workers serve under each rung, in the order of their numbers in shared memory; see also :func:`serving`.
SERVED: dict[str, Callable[[WorkerSide], Served]] = {
    "baseline": Served,
    "warm": _Warm,
    "raw": _Raw,
    "sample": _Sample,
    "worker": _Worker,
}


def serving(side: WorkerSide, rung: str) -> Served:
    """Return what serves ``rung``: also a cut of the transform chain, ``transform:k``, or the loop without a line."""
    if (where := left_out(rung)) is not None:
        return _Without(side, where)
    links = cut_of(rung)
    return SERVED[rung](side) if links is None else _Raw(side, links)


def raw_mode(side: WorkerSide, state: WorkerState) -> str:
    """Return how this worker serves the raw rung, determined once; if it cannot, the delivery says why."""
    if not state.raw_mode:
        state.stable = False
        state.raw_mode, state.raw_trouble = _take_apart(side, state)
    state.why_not = state.raw_trouble
    return state.raw_mode


def _take_apart(side: WorkerSide, state: WorkerState) -> tuple[str, str]:
    slots = find_slots(side.dataset)
    apart = (take_apart(partial(side.one, index), slots) for index in state.indices)
    try:
        parts = list(within(apart, Apart.nbytes, RAW_SHARE * side.rung_switch.pool_bytes))
        parts[0].outer.replay()
        state.chain, state.raws, state.apart = chain_of(parts), [part.outer for part in parts], parts
        return "replay", ""
    except NotSeparable as reason:
        state.chain = Chain(unsplit=str(reason))
        return ("collate", "") if collate_transforms(side, state) else ("impossible", str(reason))
    except Exception as error:  # the replay left the path that the user's code had prepared
        state.chain = Chain(unsplit=_replay_failed(error))
        return "impossible", state.chain.unsplit
    finally:
        _look_inside(side, state)


def _look_inside(side: WorkerSide, state: WorkerState) -> None:
    """Make some samples again under inspection; an error that this causes must not reach the user's code."""
    inspection = side.inspection(state)
    for index in itertools.cycle(state.indices):
        if not inspection.times:
            break
        try:
            inspection.make(partial(side.one, index), again=True)
        except Exception:  # if it is the dataset's own, it comes again when the loop asks for that sample
            break
    if side.looks_inside and inspection.same_twice is None:
        inspection.same_twice = made_twice(side.one, state.indices)
    state.note().inside = inspection.figures(state.chain)


def collate_transforms(side: WorkerSide, state: WorkerState) -> bool:
    """Return whether the collate function runs transforms; determined once, keeping their results for stubs."""
    if state.stubs.missing and state.complete:
        state.stable = False
        # A stream has no indices, but samples from before.
        items = list(side.fetch(state.indices) if state.indices else map(tree.copied, state.samples))
        state.stubs.record(items, side.batched, state.count or len(items), side.samples_room)
    return bool(state.stubs)


def _replay_failed(error: Exception) -> str:
    return f"replaying the transforms failed with {type(error).__name__}: {error}"

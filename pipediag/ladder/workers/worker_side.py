"""Make batches in a worker: ask the rung for their items, and the user's code if the rung has none.

One :class:`WorkerSide` travels to every worker inside the wrapped dataset and collate function. It reads the rung from
shared memory at the beginning of every batch; there is no other signal that the rung has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ...analysis.recommend.cheaper import JPEGS
from ...clock import time
from ...usercode import tree
from ...usercode.spying import opened
from ...usercode.transform_slots import Slot, find_slots
from ..probes.alternatives import tried
from ..probes.inspection import TIMED, Inspection
from .collating import CollateStubs
from .delivery import Delivery
from .rung_switch import RungSwitch
from .rungs import Served, raw_mode, serving
from .worker_state import CUT_SHARE, MIN_ITEMS, RAW_SHARE, WorkerState, queue_clock, with_children

#: Untimed samples at the beginning of a batch.
_FIRST = 2
#: Inspected samples per batch: few, so that no batch takes much longer than the others.
_INSPECTED = 8


class WorkerSide:
    """The source of batches under the current rung; ``batch_queues`` bring each worker its cached batch.

    ``looks_inside`` is False if an earlier pass has already inspected the dataset's code.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        rung_switch: RungSwitch,
        batch_queues: Sequence[Any],
        looks_inside: bool = True,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.rung_switch = rung_switch
        self.batch_queues = list(batch_queues)
        self.looks_inside = looks_inside
        self.batched = True  # until the loader turns out to be without automatic batching
        self._states: dict[int, WorkerState] = {}
        self._served: dict[str, Served] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_states": {}, "_served": {}}

    # Beginning and end of a batch

    def begin(self) -> WorkerState:
        """Start a batch, unless one is under way, and fix its rung."""
        state = self._state()
        if not state.rung:
            self.rung_switch.begin(state.worker)
            state.begin(self.rung_switch.rung)
            self._look_at(state)
        return state

    def _look_at(self, state: WorkerState) -> None:
        """Look now and then at the lines that make a baseline batch, unless the loop is being timed."""
        if state.rung == "baseline" and self.looks_inside and not self.rung_switch.timing:
            with state.own.measured():
                inspection = self.inspection(state)
            if inspection.looks(state.own.busy):
                state.looking.enter_context(inspection.lines.watching())

    def _end(self, state: WorkerState) -> None:
        state.stop_looking()
        state.rung = ""
        self.rung_switch.end(state.worker)

    def close(self) -> None:
        """End the threads of this process that look at the lines of its batches."""
        for state in self._states.values():
            state.close()

    def ready(self) -> None:
        """Note the time at which the worker could begin its first batch."""
        self._state().note().ready = time.perf_counter()

    def deliver(self, samples: Any) -> Delivery:
        """Collate, and return the batch with its facts."""
        state = self.begin()
        rung = state.rung
        try:
            began = time.perf_counter()
            batch = self._collated(state, samples)
            state.collating = time.perf_counter() - began if rung != "worker" else 0.0  # which collates nothing
            if rung == "baseline" and state.inspection is not None and state.inspection.news:
                with state.own.measured():  # new findings, until the samples are taken apart
                    state.note().inside = state.inspection.figures(state.chain)
            if self.rung_switch.tries and state.worker <= 0 and state.complete and not state.tried:
                self._try_alternatives(state)
        finally:
            self._end(state)
        notes, state.notes = state.notes, None
        stable = state.stable and self.rung_switch.rung == rung
        return Delivery(batch, rung, stable, state.cost(), state.worker, state.why_not, notes)

    def _state(self) -> WorkerState:
        info = get_worker_info()
        worker = -1 if info is None else info.id
        state = self._states.get(worker)
        if state is None:
            alone = info is not None and getattr(info, "worker_method", "multiprocessing") == "multiprocessing"
            clock = with_children(time.process_time if alone else time.thread_time)
            state = self._states[worker] = WorkerState(
                worker, clock, queue_clock(), CollateStubs(self.collate), of_threads=info is not None and not alone
            )
        return state

    # Map-style datasets

    def samples(self, indices: Sequence[Any]) -> Any:
        """Return the samples of one batch under the current rung."""
        return self._made(indices)

    def sample(self, index: Any) -> Any:
        """Return one item of a loader without automatic batching: the dataset's item is the batch."""
        self.batched = False
        made = self._made([index])
        return made[0] if made else None

    def _made(self, indices: Sequence[Any]) -> Any:
        """Return the samples as the rung serves them, or as the dataset makes them.

        Until items of some indices are needed, some of the batch's are remembered.
        """
        try:
            state = self.begin()
            with state.own.measured():
                state.count = len(indices)
                if not state.settled:
                    needed = self._serving(state).needs_indices
                    state.remember(indices)
                    state.settled = needed and state.complete
                    state.stable = not needed
            if state.rung == "baseline":
                return self._fetched(state, indices)
            items = self._serving(state).items(state, len(indices))
            return self.fetch(indices) if items is None else items
        except BaseException:  # torch sends it instead of the batch
            self._end(self._state())
            raise

    def _serving(self, state: WorkerState) -> Served:
        if state.rung not in self._served:
            self._served[state.rung] = serving(self, state.rung)
        return self._served[state.rung]

    @property
    def many(self) -> Callable[[Any], Any] | None:
        """The dataset's function for the samples of a whole batch, if torch would call it."""
        return getattr(self.dataset, "__getitems__", None) if self.batched else None

    def fetch(self, indices: Sequence[Any]) -> Any:
        """Fetch samples as torch's fetcher does."""
        many = self.many
        return many(indices) if many else [self.dataset[i] for i in indices]

    def _fetched(self, state: WorkerState, indices: Sequence[Any]) -> Any:
        """Fetch samples under the baseline: time them, and inspect some of them."""
        inspects, timed, many = self._inspects(state), state.times_samples or not self.batched, self.many
        if not inspects and (many or not timed):
            return self.fetch(indices)
        if many:
            return self._inspected(state, partial(many, indices), len(indices))
        # The first samples of a batch are made while the previous batch is still being sent; the first batch of a
        # worker includes one-time loading.
        first = len(indices) // 2 if state.batches == 1 else min(_FIRST, len(indices) - 1)
        inspected = range(first, first + _INSPECTED) if inspects else range(0)
        untimed = _FIRST if self.batched else 0
        return [
            self._timed(state, index, n in inspected)
            if n in inspected or (timed and n >= untimed)
            else self.dataset[index]
            for n, index in enumerate(indices)
        ]

    def _timed(self, state: WorkerState, index: Any, inspect: bool) -> Any:
        began, own = time.perf_counter(), state.own.seconds
        make = partial(operator.getitem, self.dataset, index)
        sample = self._inspected(state, make) if inspect and self._inspects(state) else self.dataset[index]
        state.timed(time.perf_counter() - began - (state.own.seconds - own), index)
        return sample

    def _inspects(self, state: WorkerState) -> bool:
        """Return whether the next sample is to be inspected: not while timed, and within pipediag's own bound."""
        if self.rung_switch.timing:
            return False
        if state.inspection is None:
            with state.own.measured():
                self.inspection(state)
        return self.inspection(state).times and state.own.affordable

    def _inspected(self, state: WorkerState, make: Callable[[], Any], count: int = 1) -> Any:
        inspection = self.inspection(state)
        before = inspection.own
        samples = inspection.time(make, count)
        state.own.seconds += inspection.own - before
        return samples

    def one(self, index: Any) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        return many([index])[0] if many else self.dataset[index]

    def inspection(self, state: WorkerState) -> Inspection:
        if state.inspection is None:
            slots: list[Slot] = []
            with suppress(Exception):  # objects of the user's whose protocols raise
                slots = find_slots(self.dataset) if self.looks_inside else []
            # A stream may be short and cannot be rewound, so inspect no more items than are cached.
            timed = MIN_ITEMS - 3 if isinstance(self.dataset, IterableDataset) else TIMED
            looks = self.looks_inside
            state.inspection = Inspection(slots, state.clock, looks, _MAKERS, _COLLATING, timed, state.queued)
        return state.inspection

    def _try_alternatives(self, state: WorkerState) -> None:
        """Try cheaper ways for the transforms, once, on samples that were taken apart; the next notes have them.

        The batch during which this happens counts for no window.
        """
        state.tried, state.stable = True, False
        state.note().alternatives = []
        if not state.raw_mode:  # not measured, or these workers have been started since
            raw_mode(self, state)
        alike = [one for one in state.apart if one.signature == state.apart[0].signature]
        files = self.inspection(state).files.with_endings(JPEGS)
        with suppress(Exception):  # no library that a way needs; this must not reach the user's code
            state.note().alternatives = tried(alike, files, state.clock)

    # Iterable datasets

    def stream(self) -> Iterator[Any]:
        """Yield the items of an iterable dataset under the current rung; the stream pauses while a cache is served."""
        state = self._state()
        state.source = opened(self.dataset) if self.looks_inside else iter(self.dataset)
        while True:
            state = self.begin()
            if state.rung == "worker" and self._serving(state).items(state, 1) is not None and state.stable:
                yield None
                continue
            if state.rung == "sample" and state.complete:
                yield state.serve(1)[0]
                continue
            try:
                item = self._next_of(state)
            except StopIteration:
                self._end(state)
                return
            except BaseException:
                self._end(state)
                raise
            yield self._kept(state, item) if state.rung == "sample" else item

    def _next_of(self, state: WorkerState) -> Any:
        """Return the next item of the stream; time and inspect it under the baseline and while a cache is filled."""
        inspection = self.inspection(state)
        try:
            if state.rung == "sample":
                return inspection.make(partial(next, state.source))
            began, own = time.perf_counter(), inspection.own
            item = inspection.make(partial(next, state.source)) if self._inspects(state) else next(state.source)
        except StopIteration:
            raise
        except Exception:
            if not inspection.times:
                raise
            # The inspection may have caused the error, and a stream that has raised is exhausted: start a new one.
            inspection.give_up()
            state.source = iter(self.dataset)
            return next(state.source)
        if state.rung == "baseline":
            own = inspection.own - own
            state.own.seconds += own
            state.timed(time.perf_counter() - began - own, None)
        return item

    def _kept(self, state: WorkerState, item: Any) -> Any:
        """Cache an item if there is room; return a copy if the loop may change it."""
        state.stable = False
        if not state.samples or tree.nbytes(state.samples) + tree.nbytes(item) < self.samples_room:
            state.samples.append(item)
            item = state.copies.of(item)
            full = False
        else:
            full = True
        state.complete = full or len(state.samples) >= MIN_ITEMS
        if state.complete and state.inspection is not None:
            state.note().inside = state.inspection.figures(state.chain)
        return item

    def _collated(self, state: WorkerState, samples: Any) -> Any:
        return self._serving(state).batch(state, samples)

    @property
    def samples_room(self) -> float:
        """Bytes available in this worker for processed samples or the results of transforms in the collate function."""
        return (1 - RAW_SHARE - CUT_SHARE) * self.rung_switch.pool_bytes


#: The functions that call the dataset's code, and that which calls the collate function.
_COLLATING = [WorkerSide._collated.__code__]
_MAKERS = [fn.__code__ for fn in (WorkerSide.fetch, WorkerSide._fetched, WorkerSide._timed, WorkerSide._next_of)]

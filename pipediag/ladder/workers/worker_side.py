"""Make batches in a worker as the rung asks: from a cache, by replay, or by the user's code.

One :class:`WorkerSide` travels to every worker inside the wrapped dataset and collate function. It reads the rung from
shared memory at the beginning of every batch; there is no other signal that the rung has changed.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ...analysis.recommend.stock import JPEGS
from ...session import cut_of
from ...usercode import tree
from ...usercode.chain import Apart, Chain, CutSample, chain_of, take_apart
from ...usercode.dissect import NotSeparable, RawSample
from ...usercode.slots import find_slots
from ...usercode.spying import opened
from ..probes.alternatives import tried
from ..probes.sample_inspection import Inspection, made_twice
from ..probes.sample_probe import TIMED
from .collate_stubs import CollateStubs
from .delivery import Delivery
from .rung_switch import RungSwitch
from .worker_state import CUT_SHARE, MIN_ITEMS, RAW_SHARE, WorkerState, queue_clock, with_children, within

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
        self._batch_queues = list(batch_queues)
        self._looks_inside = looks_inside
        self._states: dict[int, WorkerState] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_states": {}}

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
        if state.rung == "baseline" and self._looks_inside and not self.rung_switch.timing:
            with state.own.measured():
                inspection = self._inspection(state)
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

    @contextmanager
    def _batch_under_way(self) -> Iterator[None]:
        """End the batch if the dataset raises: torch sends the error instead of the batch."""
        try:
            yield
        except BaseException:
            self._end(self._state())
            raise

    def deliver(self, samples: Any) -> Delivery:
        """Collate, and return the batch with its facts."""
        state = self.begin()
        rung = state.rung
        try:
            if rung == "worker" and state.stable:
                batch = state.fresh(state.cached_batch)
            else:
                began = time.perf_counter()
                batch = self._collated(state, samples)
                state.collating = time.perf_counter() - began
            if rung == "baseline":
                self._send_inside(state)
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
            state = self._states[worker] = WorkerState(worker, clock, queue_clock(), CollateStubs(self.collate))
        return state

    # Map-style datasets

    def samples(self, indices: Sequence[Any]) -> Any:
        """Return the samples of one batch under the current rung."""
        with self._batch_under_way():
            return self._samples(indices)

    def _samples(self, indices: Sequence[Any]) -> Any:
        state = self._start_with(indices)
        count = len(indices)
        if state.rung == "worker" and self._receive(state):
            return []
        if state.rung == "sample" and self._fill_samples(state):
            return state.serve(count)
        if self._transforms_anew(state):
            mode = self._raw_mode(state)
            if mode == "collate" and state.rung != "raw":
                state.why_not = "the transforms are applied by the collate function"
                return self._fetch(indices)
            if mode == "replay" and (pool := self._pool(state)):
                return [self._replay(state, raw) for raw in state.draw(pool, count)]
            if mode == "collate" and self._fill_samples(state):
                return state.serve(count)
        if state.rung == "warm" and state.complete:
            return self._fetch(state.draw(state.indices, count))
        return self._fetched(state, indices) if state.rung == "baseline" else self._fetch(indices)

    def sample(self, index: Any) -> Any:
        """Return one item of a loader without automatic batching: the dataset's item is the batch."""
        with self._batch_under_way():
            return self._sample(index)

    def _sample(self, index: Any) -> Any:
        state = self._start_with([index])
        if state.rung == "worker" and self._receive(state):
            return None
        if state.rung == "sample" and self._fill_samples(state):
            return state.serve(1)[0]
        if self._transforms_anew(state) and self._raw_mode(state) == "replay" and (pool := self._pool(state)):
            return self._replay(state, state.draw(pool, 1)[0])
        if state.rung == "warm" and state.complete:
            return self.dataset[state.draw(state.indices, 1)[0]]
        return self._timed(state, index, inspect=True) if state.rung == "baseline" else self.dataset[index]

    def _start_with(self, indices: Sequence[Any]) -> WorkerState:
        """Begin a batch; remember some of its indices until the remembered ones are in use."""
        state = self.begin()
        with state.own.measured():
            state.count = len(indices)
            needed = state.rung in ("warm", "sample", "raw") or cut_of(state.rung) is not None
            if not state.settled:
                state.remember(indices)
                state.settled = needed and state.complete
                state.stable = not needed
        return state

    def _fetch(self, indices: Sequence[Any]) -> Any:
        """Fetch samples as torch's fetcher does."""
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[i] for i in indices]

    def _fetched(self, state: WorkerState, indices: Sequence[Any]) -> Any:
        """Fetch samples under the baseline: time them, and inspect some of them."""
        inspects, timed = self._inspects(state), state.times_samples
        many = getattr(self.dataset, "__getitems__", None)
        if not inspects and (many or not timed):
            return self._fetch(indices)
        if many:
            samples = self._inspected(state, partial(many, indices), len(indices))
        else:
            # The first samples of a batch are made while the previous batch is still being sent; the first batch of a
            # worker includes one-time loading.
            first = len(indices) // 2 if state.batches == 1 else min(_FIRST, len(indices) - 1)
            inspected = range(first, first + _INSPECTED) if inspects else range(0)
            samples = [
                self._timed(state, index, n in inspected)
                if n in inspected or (timed and n >= _FIRST)
                else self.dataset[index]
                for n, index in enumerate(indices)
            ]
        return samples

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
                self._inspection(state)
        return self._inspection(state).times and state.own.affordable

    def _inspected(self, state: WorkerState, make: Callable[[], Any], count: int = 1) -> Any:
        """Make ``count`` samples under inspection."""
        inspection = self._inspection(state)
        before = inspection.own
        samples = inspection.time(make, count)
        state.own.seconds += inspection.own - before
        return samples

    def _one(self, index: Any) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        return many([index])[0] if many else self.dataset[index]

    def _fill_samples(self, state: WorkerState) -> bool:
        """Make the processed samples, once; return False if there are not enough indices yet."""
        if state.samples or not state.complete:
            return bool(state.samples)
        state.stable = False
        state.samples = list(within(map(self._one, state.indices), tree.nbytes, self._samples_room))
        return True

    def _transforms_anew(self, state: WorkerState) -> bool:
        """Return whether this batch is for a rung that runs transforms on cached samples."""
        return state.complete and (state.rung == "raw" or cut_of(state.rung) is not None)

    def _pool(self, state: WorkerState) -> Sequence[RawSample | CutSample]:
        """Return the cached raw samples, or those cut where the rung asks; empty if this chain has no such cut."""
        links = cut_of(state.rung)
        if links is None:
            return state.raws
        if links not in state.chain.cuts():
            state.why_not = state.chain.unsplit or "this worker found another chain of transforms"
            return []
        try:
            return state.cut(links, CUT_SHARE * self.rung_switch.pool_bytes)
        except Exception as error:  # the replay left the path that the user's code had prepared
            state.why_not = _replay_failed(error)
            return []

    def _raw_mode(self, state: WorkerState) -> str:
        """Return how this worker serves the raw rung, determined once; if it cannot, the delivery says why."""
        if not state.raw_mode:
            state.stable = False
            state.raw_mode, state.raw_trouble = self._take_apart(state)
        state.why_not = state.raw_trouble
        return state.raw_mode

    def _inspection(self, state: WorkerState) -> Inspection:
        """Return this worker's inspection of the dataset's code."""
        if state.inspection is None:
            slots = find_slots(self.dataset) if self._looks_inside else []
            # A stream may be short and cannot be rewound, so inspect no more items than are cached.
            timed = MIN_ITEMS - 3 if isinstance(self.dataset, IterableDataset) else TIMED
            looks = self._looks_inside
            state.inspection = Inspection(slots, state.clock, looks, _MAKERS, _COLLATING, timed, state.queued)
        return state.inspection

    def _send_inside(self, state: WorkerState) -> None:
        """Send new findings with the next batch, until the samples are taken apart."""
        if state.inspection is not None and state.inspection.news:
            with state.own.measured():
                state.note().inside = state.inspection.figures(state.chain)

    def _take_apart(self, state: WorkerState) -> tuple[str, str]:
        slots = find_slots(self.dataset)
        apart = (take_apart(partial(self._one, index), slots) for index in state.indices)
        try:
            parts = list(within(apart, Apart.nbytes, RAW_SHARE * self.rung_switch.pool_bytes))
            parts[0].outer.replay()
            state.chain, state.raws, state.apart = chain_of(parts), [part.outer for part in parts], parts
            return "replay", ""
        except NotSeparable as reason:
            state.chain = Chain(unsplit=str(reason))
            return ("collate", "") if self._collate_transforms(state) else ("impossible", str(reason))
        except Exception as error:  # the replay left the path that the user's code had prepared
            state.chain = Chain(unsplit=_replay_failed(error))
            return "impossible", state.chain.unsplit
        finally:
            self._look_inside(state)

    def _look_inside(self, state: WorkerState) -> None:
        """Make some samples again under inspection; an error that this causes must not reach the user's code."""
        inspection = self._inspection(state)
        for index in itertools.cycle(state.indices):
            if not inspection.times:
                break
            try:
                inspection.make(partial(self._one, index), again=True)
            except Exception:  # if it is the dataset's own, it comes again when the loop asks for that sample
                break
        if self._looks_inside and inspection.same_twice is None:
            inspection.same_twice = made_twice(self._one, state.indices)
        state.note().inside = inspection.figures(state.chain)

    def _try_alternatives(self, state: WorkerState) -> None:
        """Try cheaper ways for the transforms, once, on samples that were taken apart; the next notes have them.

        The batch during which this happens counts for no window.
        """
        state.tried, state.stable = True, False
        state.note().alternatives = []
        if not state.raw_mode:  # not measured, or these workers have been started since
            self._raw_mode(state)
        alike = [one for one in state.apart if one.signature == state.apart[0].signature]
        files = self._inspection(state).opened(JPEGS)
        with suppress(Exception):  # no library that a way needs; this must not reach the user's code
            state.note().alternatives = tried(alike, files, state.clock)

    def _replay(self, state: WorkerState, raw: RawSample | CutSample) -> Any:
        try:
            return state.replay(raw)
        except Exception as error:  # a draw that the recorded sample does not fit; this must not reach user code
            state.stable, state.raw_mode = False, "impossible"
            state.raw_trouble = state.why_not = _replay_failed(error)
            return self._one(state.indices[0])

    # Iterable datasets

    def stream(self) -> Iterator[Any]:
        """Yield the items of an iterable dataset under the current rung; the stream pauses while a cache is served."""
        state = self._state()
        state.source = opened(self.dataset) if self._looks_inside else iter(self.dataset)
        while True:
            state = self.begin()
            if state.rung == "worker" and self._receive(state) and state.stable:
                yield None
                continue
            if state.rung == "sample" and state.complete:
                yield state.serve(1)[0]
                continue
            with self._batch_under_way():
                try:
                    item = self._next_of(state)
                except StopIteration:
                    self._end(state)
                    return
            yield self._kept(state, item) if state.rung == "sample" else item

    def _next_of(self, state: WorkerState) -> Any:
        """Return the next item of the stream; time and inspect it under the baseline and while a cache is filled."""
        inspection = self._inspection(state)
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
        if not state.samples or tree.nbytes(state.samples) + tree.nbytes(item) < self._samples_room:
            state.samples.append(item)
            item = state.copies.of(item)
            full = False
        else:
            full = True
        state.complete = full or len(state.samples) >= MIN_ITEMS
        if state.complete and state.inspection is not None:
            state.note().inside = state.inspection.figures(state.chain)
        return item

    # Collating

    def _collated(self, state: WorkerState, samples: Any) -> Any:
        if state.rung != "sample" and not self._transforms_anew(state):
            return self.collate(samples)
        if not state.indices and isinstance(samples, list):  # a stream's; without automatic batching it is one item
            state.count = len(samples)
        if state.rung == "sample" and self._collate_transforms(state):
            with state.stubs.installed(state.copies):
                batch = self.collate(samples)
        else:
            batch = self.collate(samples)
        if state.copies.learn(batch):
            state.stable = False
        return batch

    def _collate_transforms(self, state: WorkerState) -> bool:
        """Return whether the collate function runs transforms; determined once, keeping their results for stubs."""
        if state.stubs.missing and state.complete:
            state.stable = False
            # A stream has no indices, but samples from before.
            items = list(self._fetch(state.indices) if state.indices else map(tree.copied, state.samples))
            state.stubs.record(items, state.count or len(items), self._samples_room)
        return bool(state.stubs)

    @property
    def _samples_room(self) -> float:
        """Bytes available in this worker for processed samples or the results of transforms in the collate function."""
        return (1 - RAW_SHARE - CUT_SHARE) * self.rung_switch.pool_bytes

    # The cached batch

    def _receive(self, state: WorkerState) -> bool:
        """Return whether this worker holds the cached batch; fetch it from the main process the first time."""
        if state.cached_batch is None and 0 <= state.worker < len(self._batch_queues):
            state.cached_batch = self._batch_queues[state.worker].get(timeout=60)
        return state.cached_batch is not None


#: The functions that call the dataset's code, and that which calls the collate function.
_COLLATING = [WorkerSide._collated.__code__]
_MAKERS = [
    fn.__code__
    for fn in (WorkerSide._fetch, WorkerSide._fetched, WorkerSide._timed, WorkerSide._sample, WorkerSide._next_of)
]


def _replay_failed(error: Exception) -> str:
    return f"replaying the transforms failed with {type(error).__name__}: {error}"

"""What a worker does for each rung: serve from a cache, replay, or run the user's code as it is.

One :class:`Station` travels to every worker inside the wrapped dataset and collate function. It asks the shared
cell for the rung at the beginning of every batch; nothing else tells a worker that the rung has changed.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info

from ..session import cut_of
from ..usercode import tree
from ..usercode.chain import Apart, Chain, CutSample, chain_of, take_apart
from ..usercode.dissect import NotSeparable, RawSample
from ..usercode.slots import Slot, find_slots, function_slots
from ..usercode.spying import Recorder, Seen, spied
from .bench import CUT_SHARE, MAX_ITEMS, MIN_ITEMS, RAW_SHARE, Bench, queue_clock, within
from .cell import Cell
from .delivery import Delivery
from .hotlines import TRACED
from .inside import Inspection
from .probe import TIMED

#: Samples at the beginning of a batch that are not timed.
_FIRST = 2
#: Samples of one batch that are looked into: few, so that no batch takes much longer than the others.
_LOOKED_INTO = 8


class Station:
    """Serves batches under the current rung. ``parcels`` are the queues that bring each worker its cached batch.

    ``looks_inside`` is false where what goes on inside the dataset's code is known already, from an earlier pass.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        cell: Cell,
        parcels: Sequence[Any],
        looks_inside: bool = True,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.cell = cell
        self._parcels = list(parcels)
        self._looks_inside = looks_inside
        self._benches: dict[int, Bench] = {}
        self._collate_slots: list[Slot] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_benches": {}, "_collate_slots": None}

    # Beginning and end of a batch

    def begin(self) -> Bench:
        """Start a batch, unless one is under way, and fix the rung it is made under."""
        bench = self._bench()
        if bench.rung is None:
            self.cell.begin(bench.worker)
            bench.begin(self.cell.rung)
        return bench

    def _end(self, bench: Bench) -> None:
        bench.rung = None
        self.cell.end(bench.worker)

    def ready(self) -> None:
        """The worker has started, and could make its first batch now."""
        self._bench().note().ready = time.perf_counter()

    @contextmanager
    def _batch_under_way(self) -> Iterator[None]:
        """An error of the dataset's ends the batch: torch sends the error in its place."""
        try:
            yield
        except BaseException:
            self._end(self._bench())
            raise

    def deliver(self, samples: Any) -> Delivery:
        """Collate, and send the batch with the story of its making."""
        bench = self.begin()
        rung = bench.rung
        assert rung is not None
        try:
            if rung == "worker" and bench.stable:
                batch = bench.fresh(bench.parcel)
            else:
                began = time.perf_counter()
                batch = self._collated(bench, samples)
                bench.collating = time.perf_counter() - began
        finally:
            self._end(bench)
        notes, bench.notes = bench.notes, None
        stable = bench.stable and self.cell.rung == rung
        return Delivery(batch, rung, stable, bench.cost(), bench.worker, bench.why_not, notes)

    def _bench(self) -> Bench:
        info = get_worker_info()
        worker = -1 if info is None else info.id
        bench = self._benches.get(worker)
        if bench is None:
            alone = info is not None and getattr(info, "worker_method", "multiprocessing") == "multiprocessing"
            bench = Bench(worker, time.process_time if alone else time.thread_time, queue_clock())
            self._benches[worker] = bench
        return bench

    # Map-style datasets

    def samples(self, indices: Sequence[Any]) -> Any:
        """The samples of one batch under the current rung."""
        with self._batch_under_way():
            return self._samples(indices)

    def _samples(self, indices: Sequence[Any]) -> Any:
        bench = self._start_with(indices)
        count = len(indices)
        if bench.rung == "worker" and self._receive(bench):
            return []
        if bench.rung == "sample" and self._fill_samples(bench):
            return bench.serve(count)
        if self._transforms_anew(bench):
            mode = self._raw_mode(bench)
            if mode == "collate" and bench.rung != "raw":
                bench.why_not = "the transforms are applied by the collate function"
                return self._fetch(indices)
            if mode == "replay" and (pool := self._pool(bench)):
                return [self._replay(bench, raw) for raw in bench.draw(pool, count)]
            if mode == "collate" and self._fill_samples(bench):
                return bench.serve(count)
        if bench.rung == "warm" and bench.complete:
            return self._fetch(bench.draw(bench.indices, count))
        return self._fetched(bench, indices) if bench.rung == "baseline" else self._fetch(indices)

    def sample(self, index: Any) -> Any:
        """One item of a loader without automatic batching, where the dataset's item is the batch."""
        with self._batch_under_way():
            return self._sample(index)

    def _sample(self, index: Any) -> Any:
        bench = self._start_with([index])
        if bench.rung == "worker" and self._receive(bench):
            return None
        if bench.rung == "sample" and self._fill_samples(bench):
            return bench.serve(1)[0]
        if self._transforms_anew(bench) and self._raw_mode(bench) == "replay" and (pool := self._pool(bench)):
            return self._replay(bench, bench.draw(pool, 1)[0])
        if bench.rung == "warm" and bench.complete:
            return self.dataset[bench.draw(bench.indices, 1)[0]]
        return self._timed(bench, index, look=True) if bench.rung == "baseline" else self.dataset[index]

    def _start_with(self, indices: Sequence[Any]) -> Bench:
        """Begin a batch; remember some of its indices, for as long as nothing has been made of those remembered."""
        bench = self.begin()
        bench.count = len(indices)
        needed = bench.rung in ("warm", "sample", "raw") or cut_of(bench.rung or "") is not None
        if not bench.settled:
            bench.remember(indices)
            bench.settled = needed and bench.complete
            bench.stable = not needed
        return bench

    def _fetch(self, indices: Sequence[Any]) -> Any:
        """As torch's own fetcher does it."""
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[i] for i in indices]

    def _fetched(self, bench: Bench, indices: Sequence[Any]) -> Any:
        """The same under the baseline: samples are timed as a whole, and some of them looked into."""
        inspection = self._inspection(bench)
        many = getattr(self.dataset, "__getitems__", None)
        if many:
            samples = inspection.time(partial(many, indices), len(indices))
        else:
            # The first samples of a batch are made while the batch before is still being sent; the first batch of a
            # worker begins with what is loaded once.
            first = len(indices) // 2 if bench.batches == 1 else min(_FIRST, len(indices) - 1)
            looked = range(first, first + _LOOKED_INTO) if inspection.times else range(0)
            timed = bench.times_samples
            samples = [
                self._timed(bench, index, n in looked)
                if n in looked or (timed and n >= _FIRST)
                else self.dataset[index]
                for n, index in enumerate(indices)
            ]
        self._tell_inside(bench)
        return samples

    def _timed(self, bench: Bench, index: Any, look: bool) -> Any:
        began = time.perf_counter()
        make = partial(operator.getitem, self.dataset, index)
        sample = self._inspection(bench).time(make) if look else self.dataset[index]
        bench.timed(time.perf_counter() - began, index)
        return sample

    def _one(self, index: Any) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        return many([index])[0] if many else self.dataset[index]

    def _fill_samples(self, bench: Bench) -> bool:
        """Make the processed samples once; False while there are not enough indices to make them of."""
        if bench.samples or not bench.complete:
            return bool(bench.samples)
        bench.stable = False
        bench.samples = list(within(map(self._one, bench.indices), tree.nbytes, self._samples_room))
        return True

    def _transforms_anew(self, bench: Bench) -> bool:
        """Whether this batch is for a rung that runs transforms on cached samples."""
        return bench.complete and (bench.rung == "raw" or cut_of(bench.rung or "") is not None)

    def _pool(self, bench: Bench) -> Sequence[RawSample | CutSample]:
        """The cached samples whose transforms, or those from a cut on, are run; none where there is no such cut."""
        links = cut_of(bench.rung or "")
        if links is None:
            return bench.raws
        if links not in bench.chain.cuts():
            bench.why_not = bench.chain.unsplit or "this worker found another chain of transforms"
            return []
        try:
            return bench.cut(links, CUT_SHARE * self.cell.pool_bytes)
        except Exception as error:  # the replay left the path that the user's code had prepared
            bench.why_not = _replay_failed(error)
            return []

    def _raw_mode(self, bench: Bench) -> str:
        """How this worker serves the raw rung, found out once; the delivery says why when it cannot."""
        if not bench.raw_mode:
            bench.stable = False
            bench.raw_mode, bench.raw_trouble = self._take_apart(bench)
        bench.why_not = bench.raw_trouble
        return bench.raw_mode

    def _inspection(self, bench: Bench, timed: int = TIMED, traced: int = TRACED) -> Inspection:
        """What looks into the dataset's code in this worker; the lines are traced in one of them."""
        if bench.inspection is None:
            slots, traces = find_slots(self.dataset) if self._looks_inside else [], bench.worker <= 0
            bench.inspection = Inspection(slots, bench.clock, self._looks_inside, traces, timed, traced)
        return bench.inspection

    def _tell_inside(self, bench: Bench) -> None:
        """Send what was found with the next batch, until the samples are taken apart."""
        if bench.inspection is not None and bench.inspection.news and not bench.raw_mode:
            bench.note().inside = bench.inspection.figures(bench.chain)

    def _take_apart(self, bench: Bench) -> tuple[str, str]:
        slots = find_slots(self.dataset)
        apart = (take_apart(partial(self._one, index), slots) for index in bench.indices)
        try:
            parts = list(within(apart, Apart.nbytes, RAW_SHARE * self.cell.pool_bytes))
            parts[0].outer.replay()
            bench.chain, bench.raws = chain_of(parts), [part.outer for part in parts]
            return "replay", ""
        except NotSeparable as reason:
            bench.chain = Chain(unsplit=str(reason))
            return ("collate", "") if self._collate_transforms(bench) else ("impossible", str(reason))
        except Exception as error:  # the replay left the path that the user's code had prepared
            bench.chain = Chain(unsplit=_replay_failed(error))
            return "impossible", bench.chain.unsplit
        finally:
            self._look_inside(bench)

    def _look_inside(self, bench: Bench) -> None:
        """Make some samples again under the instruments; the user's code must not fail for what they do to it."""
        inspection = self._inspection(bench)
        for index in itertools.cycle(bench.indices):
            if inspection.complete:
                break
            try:
                inspection.make(partial(self._one, index), again=True)
            except Exception:  # the dataset's own; it comes again when the loop asks for that sample
                break
        bench.note().inside = inspection.figures(bench.chain)

    def _replay(self, bench: Bench, raw: RawSample | CutSample) -> Any:
        try:
            return bench.replay(raw)
        except Exception as error:  # a draw that the recorded sample does not fit; user code must not fail for it
            bench.stable, bench.raw_mode = False, "impossible"
            bench.raw_trouble = bench.why_not = _replay_failed(error)
            return self._one(bench.indices[0])

    # Iterable datasets

    def stream(self) -> Iterator[Any]:
        """The items of an iterable dataset under the current rung; the source waits while a cache is served."""
        bench = self._bench()
        bench.source = iter(self.dataset)
        while True:
            bench = self.begin()
            if bench.rung == "worker" and self._receive(bench) and bench.stable:
                yield None
                continue
            if bench.rung == "sample" and bench.complete:
                yield bench.serve(1)[0]
                continue
            with self._batch_under_way():
                try:
                    item = self._next_of(bench)
                except StopIteration:
                    self._end(bench)
                    return
            yield self._kept(bench, item) if bench.rung == "sample" else item

    def _next_of(self, bench: Bench) -> Any:
        """The next item of the stream; timed and looked into under the baseline, and while a cache is filled."""
        # A stream may be short, and what was taken from it does not come back: the items cached must do.
        inspection = self._inspection(bench, MIN_ITEMS - 3, 2)
        try:
            if bench.rung == "sample":
                return inspection.make(partial(next, bench.source))
            began = time.perf_counter()
            item = inspection.make(partial(next, bench.source)) if inspection.times else next(bench.source)
        except StopIteration:
            raise
        except Exception:
            if inspection.complete:
                raise
            # The instruments may be what the stream has failed of, and a stream that has failed is over.
            inspection.give_up()
            bench.source = iter(self.dataset)
            return next(bench.source)
        if bench.rung == "baseline":
            bench.timed(time.perf_counter() - began, None)
            self._tell_inside(bench)
        return item

    def _kept(self, bench: Bench, item: Any) -> Any:
        """Cache an item, as far as there is room; the loop gets what it may change."""
        bench.stable = False
        if not bench.samples or tree.nbytes(bench.samples) + tree.nbytes(item) < self._samples_room:
            bench.samples.append(item)
            item = bench.safe(item)
            full = False
        else:
            full = True
        bench.complete = full or len(bench.samples) >= MIN_ITEMS
        if bench.complete and bench.inspection is not None:
            bench.note().inside = bench.inspection.figures(bench.chain)
        return item

    # Collating

    def _collated(self, bench: Bench, samples: Any) -> Any:
        if bench.rung != "sample" and not self._transforms_anew(bench):
            return self.collate(samples)
        if not bench.indices:
            bench.count = len(samples)
        with ExitStack() as stack:
            if bench.rung == "sample" and self._collate_transforms(bench):
                for slot in self._collate_slots or []:
                    if slot.name in bench.stubs:
                        safe = partial(bench.safe, kind=slot.name)
                        stack.enter_context(slot.replaced(_Stub(bench.stubs[slot.name], safe)))
            batch = self.collate(samples)
        bench.learn(batch)
        return batch

    def _collate_transforms(self, bench: Bench) -> bool:
        """Whether the collate function runs transforms itself; found out once, keeping their results for stubs."""
        if self._collate_slots is None:
            self._collate_slots = function_slots(self.collate)
        if self._collate_slots and not bench.spied and bench.complete:
            bench.spied, bench.stable = True, False
            # Of a stream there are no indices, but samples that it gave before.
            items = list(self._fetch(bench.indices) if bench.indices else map(tree.copied, bench.samples))
            seen, whole = self._collate_calls(items), bench.count / len(items)
            if 0 < len(seen) < len(items) and whole != 1:  # it transforms batches, not samples
                fits = whole * sum(tree.nbytes(one.looked) for one in seen) < self._samples_room
                copies = (tree.copied(item) for item in itertools.cycle(items))
                seen = self._collate_calls(list(itertools.islice(copies, bench.count))) if fits else []
            for one in seen[:MAX_ITEMS]:
                bench.stubs.setdefault(one.call.name, []).append(one.looked)
        return bool(bench.stubs)

    def _collate_calls(self, items: list[Any]) -> list[Seen]:
        """The transforms that the collate function calls on these samples."""
        recorder = Recorder()
        with spied(self._collate_slots or [], recorder):
            self.collate(items)
        return recorder.seen

    @property
    def _samples_room(self) -> float:
        """Bytes that processed samples, or what the collate function makes of them, may take in this worker."""
        return (1 - RAW_SHARE - CUT_SHARE) * self.cell.pool_bytes

    # The cached batch

    def _receive(self, bench: Bench) -> bool:
        """Whether this worker holds the cached batch; fetches it from the main process the first time."""
        if bench.parcel is None and 0 <= bench.worker < len(self._parcels):
            bench.parcel = self._parcels[bench.worker].get(timeout=60)
        return bench.parcel is not None


def _replay_failed(error: Exception) -> str:
    return f"replaying the transforms failed with {type(error).__name__}: {error}"


class _Stub:
    """Returns a transform's earlier results in its place, as ``safe`` lets them be given away."""

    def __init__(self, results: Sequence[Any], safe: Callable[[Any], Any]) -> None:
        self._results = itertools.cycle(results)
        self._safe = safe

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._safe(next(self._results))

"""What a worker does for each rung: serve from a cache, replay, or run the user's code as it is.

One :class:`Station` travels to every worker inside the wrapped dataset and collate function. It asks the shared
cell for the rung at the beginning of every batch; nothing else tells a worker that the rung has changed.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info

from . import tree
from .cell import Cell
from .delivery import Delivery
from .dissect import NotSeparable, RawSample, Recorder, spied, take_apart
from .slots import Slot, find_slots, function_slots

#: Distinct items a worker caches: enough to span the sizes of varied data, few enough to make quickly.
MIN_ITEMS, MAX_ITEMS = 8, 32
#: Share of a worker's allowance for raw samples; processed ones have the rest.
_RAW_SHARE = 0.6


@dataclass
class _Bench:
    """One worker's state."""

    worker: int
    clock: Callable[[], float]
    queued: Callable[[], float]
    indices: list[Any] = field(default_factory=list)
    complete: bool = False  # the indices are enough to stand for the dataset
    samples: list[Any] = field(default_factory=list)
    raws: list[RawSample] = field(default_factory=list)
    raw_mode: str = ""  # how the raw rung is served: replay, collate, or impossible
    parcel: Any = None
    passes_on: bool | None = None  # whether the collate function hands the samples' own memory on
    stubs: dict[str, list[Any]] = field(default_factory=dict)
    spied: bool = False
    turn: int = 0
    # the batch being made
    rung: str | None = None
    stable: bool = True
    why_not: str = ""
    raw_trouble: str = ""
    copying: float = 0.0
    begun: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def draw(self, pool: Sequence[Any], count: int) -> list[Any]:
        """The next ``count`` items of a pool, round and round: cached by draw, not by index."""
        first, self.turn = self.turn, self.turn + count
        return [pool[i % len(pool)] for i in range(first, first + count)]

    def serve(self, count: int) -> list[Any]:
        """Processed samples from the pool."""
        return [self.safe(sample) for sample in self.draw(self.samples, count)]

    def safe(self, sample: Any) -> Any:
        """A cached sample as it may be given away: a copy, where the loop gets the sample's own memory."""
        if self.passes_on is False:
            return sample
        started = time.perf_counter()
        sample = tree.clone(sample)
        self.copying += time.perf_counter() - started
        return sample


class Station:
    """Serves batches under the current rung. ``parcels`` are the queues that bring each worker its cached batch."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], cell: Cell, parcels: Sequence[Any]) -> None:
        self.dataset = dataset
        self.collate = collate
        self.cell = cell
        self._parcels = list(parcels)
        self._benches: dict[int, _Bench] = {}
        self._collate_slots: list[Slot] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_benches": {}, "_collate_slots": None}

    # Beginning and end of a batch

    def begin(self) -> _Bench:
        """Start a batch, unless one is under way, and fix the rung it is made under."""
        bench = self._bench()
        if bench.rung is None:
            bench.begun = (time.perf_counter(), bench.clock(), bench.queued())
            bench.rung = self.cell.rung
            bench.stable, bench.why_not, bench.copying = True, "", 0.0
        return bench

    @contextmanager
    def _batch_under_way(self) -> Iterator[None]:
        """An error of the dataset's ends the batch: torch sends the error in its place."""
        try:
            yield
        except BaseException:
            self._bench().rung = None
            raise

    def deliver(self, samples: Any) -> Delivery:
        """Collate, and send the batch with the story of its making."""
        bench = self.begin()
        rung = bench.rung
        assert rung is not None
        try:
            batch = bench.parcel if rung == "worker" and bench.stable else self._collated(bench, samples)
        finally:
            bench.rung = None
        wall, cpu, queued = bench.begun
        cost = (time.perf_counter() - wall, bench.clock() - cpu, bench.queued() - queued, bench.copying)
        return Delivery(batch, rung, bench.stable and self.cell.rung == rung, cost, bench.worker, bench.why_not)

    def _bench(self) -> _Bench:
        info = get_worker_info()
        worker = -1 if info is None else info.id
        bench = self._benches.get(worker)
        if bench is None:
            alone = info is not None and getattr(info, "worker_method", "multiprocessing") == "multiprocessing"
            bench = _Bench(worker, time.process_time if alone else time.thread_time, queue_clock())
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
        if bench.rung == "raw" and bench.complete:
            mode = self._raw_mode(bench)
            if mode == "replay":
                return [self._replay(bench, raw) for raw in bench.draw(bench.raws, count)]
            if mode == "collate" and self._fill_samples(bench):
                return bench.serve(count)
        if bench.rung == "warm" and bench.complete:
            return self._fetch(bench.draw(bench.indices, count))
        return self._fetch(indices)

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
        if bench.rung == "raw" and bench.complete and self._raw_mode(bench) == "replay":
            return self._replay(bench, bench.draw(bench.raws, 1)[0])
        if bench.rung == "warm" and bench.complete:
            return self.dataset[bench.draw(bench.indices, 1)[0]]
        return self.dataset[index]

    def _start_with(self, indices: Sequence[Any]) -> _Bench:
        """Begin a batch; remember its indices until there are enough of them to stand for the dataset."""
        bench = self.begin()
        if not bench.complete:
            wanted = min(MAX_ITEMS, max(MIN_ITEMS, len(indices)))
            bench.indices.extend(indices[: wanted - len(bench.indices)])
            bench.complete = len(bench.indices) >= wanted
            bench.stable = bench.rung not in ("warm", "sample", "raw")
        return bench

    def _fetch(self, indices: Sequence[Any]) -> Any:
        """As torch's own fetcher does it."""
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[i] for i in indices]

    def _one(self, index: Any) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        return many([index])[0] if many else self.dataset[index]

    def _fill_samples(self, bench: _Bench) -> bool:
        """Make the processed samples once; False while there are not enough indices to make them of."""
        if bench.samples or not bench.complete:
            return bool(bench.samples)
        bench.stable = False
        room = (1 - _RAW_SHARE) * self.cell.pool_bytes
        bench.samples = list(_within(map(self._one, bench.indices), tree.nbytes, room))
        return True

    def _raw_mode(self, bench: _Bench) -> str:
        """How this worker serves the raw rung, found out once; the delivery says why when it cannot."""
        if not bench.raw_mode:
            bench.stable = False
            bench.raw_mode, bench.raw_trouble = self._take_apart(bench)
        bench.why_not = bench.raw_trouble
        return bench.raw_mode

    def _take_apart(self, bench: _Bench) -> tuple[str, str]:
        slots = find_slots(self.dataset)
        apart = (take_apart(partial(self._one, index), slots) for index in bench.indices)
        try:
            raws = list(_within(apart, RawSample.nbytes, _RAW_SHARE * self.cell.pool_bytes))
            raws[0].replay()
        except NotSeparable as reason:
            return ("collate", "") if self._collate_transforms(bench) else ("impossible", str(reason))
        except Exception as error:  # the replay left the path that the user's code had prepared
            return "impossible", _replay_failed(error)
        bench.raws = raws
        return "replay", ""

    def _replay(self, bench: _Bench, raw: RawSample) -> Any:
        try:
            sample, copying = raw.replay()
        except Exception as error:  # a draw that the recorded sample does not fit; user code must not fail for it
            bench.stable, bench.raw_mode = False, "impossible"
            bench.raw_trouble = bench.why_not = _replay_failed(error)
            return self._one(bench.indices[0])
        bench.copying += copying
        return bench.safe(sample)

    # Iterable datasets

    def stream(self) -> Iterator[Any]:
        """The items of an iterable dataset under the current rung; the source waits while a cache is served."""
        source = iter(self.dataset)
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
                    item = next(source)
                except StopIteration:
                    bench.rung = None
                    return
            if bench.rung == "sample":
                self._keep(bench, item)
            yield item

    def _keep(self, bench: _Bench, item: Any) -> None:
        bench.stable = False
        bench.samples.append(item)
        room = (1 - _RAW_SHARE) * self.cell.pool_bytes
        bench.complete = len(bench.samples) >= MIN_ITEMS or tree.nbytes(bench.samples) + tree.nbytes(item) > room

    # Collating

    def _collated(self, bench: _Bench, samples: Any) -> Any:
        if bench.rung not in ("sample", "raw"):
            return self.collate(samples)
        batch = self._collated_from_caches(bench, samples)
        if bench.passes_on is None:
            bench.stable, bench.passes_on = False, tree.share_memory(samples, batch)
        return batch

    def _collated_from_caches(self, bench: _Bench, samples: Any) -> Any:
        if bench.rung == "raw":
            return self.collate(samples)
        with ExitStack() as stack:
            if self._collate_transforms(bench):
                for slot in self._collate_slots or []:
                    if slot.name in bench.stubs:
                        stack.enter_context(slot.replaced(_Stub(bench.stubs[slot.name])))
            return self.collate(_loose(samples))

    def _collate_transforms(self, bench: _Bench) -> bool:
        """Whether the collate function runs transforms itself; found out once, keeping their results for stubs."""
        if self._collate_slots is None:
            self._collate_slots = function_slots(self.collate)
        if self._collate_slots and not bench.spied and bench.complete:
            bench.spied, bench.stable = True, False
            recorder = Recorder()
            with spied(self._collate_slots, recorder):
                self.collate(self._fetch(bench.indices))
            for one in recorder.seen[:MAX_ITEMS]:
                bench.stubs.setdefault(one.call.name, []).append(one.result)
        return bool(bench.stubs)

    # The cached batch

    def _receive(self, bench: _Bench) -> bool:
        """Whether this worker holds the cached batch; fetches it from the main process the first time."""
        if bench.parcel is None and 0 <= bench.worker < len(self._parcels):
            bench.stable = False
            bench.parcel = self._parcels[bench.worker].get(timeout=60)
            return False
        return bench.parcel is not None


def _replay_failed(error: Exception) -> str:
    return f"replaying the transforms failed with {type(error).__name__}: {error}"


class _Stub:
    """Returns a transform's earlier results in its place."""

    def __init__(self, results: Sequence[Any]) -> None:
        self._results = itertools.cycle(results)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return next(self._results)


def _within(items: Iterator[Any], size: Callable[[Any], int], room: float) -> Iterator[Any]:
    """Items while their sizes fit into ``room`` bytes; the first always."""
    for number, item in enumerate(items):
        room -= size(item)
        if room < 0 and number > 0:
            return
        yield item


def _loose(samples: Any) -> Any:
    """Containers made anew, so that a collate function that empties a sample's dict does not empty the cache."""
    return tree.map_leaves(samples, lambda leaf: leaf)


def queue_clock() -> Callable[[], float]:
    """Seconds this process has waited for a core, from Linux's scheduler statistics; 0 where there are none."""
    try:
        fd = os.open("/proc/self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0.0

    def read() -> float:
        try:
            return int(os.pread(fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    return read

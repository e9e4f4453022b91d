"""Bring packed batches to the device: copy on one stream, replay on another."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from ..loop.copies import with_settings, wrap_sampler
from ..loop.wrappers import InitWorker, StagedDataset
from ..replay.pack.packed_batch import Packed
from ..replay.pack.ring import Ring
from ..replay.plan import Plan
from ..replay.run.graphs import GraphCache
from ..replay.run.replay import replay
from ..replay.stream import RecordedStream, Request, StreamSide, only
from ..replay.worker import (
    AlsoExecuted,
    AlsoScouted,
    AsIs,
    Executed,
    PackedCollate,
    PackingSide,
    Plainly,
    Scouted,
    Sent,
    Under,
    Unrecorded,
    handed_on,
)
from ..usercode import tree
from ..usercode.objects import moved
from .feed import Feed, Orders
from .handover import Ready, labelled

#: Number of a worker's slots for batches that are being copied, in addition to those in transit.
_HELD = 3
#: Number of batches in a row of whose images other code keeps most: each of these is made here too.
_MOST_KEPT = 8
_KEPT = "other code of this process keeps most images of its batches, which are made on the CPU for it"
_CPU = torch.device("cpu")


class ToDevice(Feed):
    """Feed of a loader's batches that runs the moved transforms on the device, if any.

    Batches go from workers to a GPU through a ring of page-locked memory, without torch's pinning thread. One iterator
    of torch's makes an epoch, with and without the remedy: the orders change what the workers are asked for.

    Attributes:
        recorded: number of batches so far that the workers have recorded.
        unrecorded: number of batches so far that the workers had to make with pixels.
        why: the reason for the last of them.
        evidence: of each batch that was executed or scouted too, and is not handed over yet; with the batch.
    """

    def __init__(self, loader: DataLoader[Any], plan: Plan, device: torch.device, finds: bool = False) -> None:
        super().__init__(loader, device)
        self._finds = finds
        self.recorded = self.unrecorded = 0
        self.why = ""
        self.evidence: list[tuple[Any, bytes]] = []
        self._loader = loader
        self._plan = plan
        self._twin: DataLoader[Any] | None = None
        self._side: PackingSide | None = None  # in the loop's own process
        self._kept = 0  # number of its latest batches of whose images other code keeps most
        self._there: Packed | None = None  # the batch that is arriving, once it is on the device
        on_gpu = device.type == "cuda"
        self._copying = torch.cuda.Stream(device) if on_gpu else None
        self._replaying = torch.cuda.Stream(device) if on_gpu else None
        self._repeats = GraphCache(device)
        self._read = _Read()
        weakref.finalize(self, _finish, self._read, self._repeats).atexit = False

    def begin(self) -> Iterator[Sent]:
        self.evidence.clear()
        if self._twin is None or not self.single:  # a ring serves the workers of one iterator
            self.orders.plan = None
            self._twin = self._sending()
        return iter(self._twin)

    def renew(self) -> None:
        self._twin = None

    def _sending(self) -> DataLoader[Any]:
        """Return a copy of the loader whose batches come packed, and whose sampler's indices are requests."""
        loader, plan = self._loader, self._plan
        moves, ring = self._finds or plan.moves, None
        if loader.num_workers and self.device.type == "cuda":
            slots = (loader.prefetch_factor or 2) + _HELD
            ring = Ring(loader.num_workers, slots, self.device, varying=moves)  # recorded ops vary in length
        pins = ring is None and (loader.pin_memory or self.device.type == "cuda")
        side: PackingSide
        if not isinstance(loader.dataset, IterableDataset):
            side = PackingSide(loader.dataset, loader.collate_fn, plan, ring)
            dataset: Any = StagedDataset(side)
            settings: dict[str, Any] = {"collate_fn": handed_on}
        elif moves:
            batched = loader.batch_sampler is not None
            side = StreamSide(loader.dataset, loader.collate_fn, plan, ring, batched, loader.drop_last)
            dataset = RecordedStream(side)
            batches = _Requests(loader.batch_sampler if batched else loader.sampler, self.orders, Request)
            settings = {"collate_fn": only, "batch_sampler": batches, "drop_last": False}
        else:
            assert ring is not None, "there is nothing else to do"
            return packing(loader, ring)
        self._side = side if side.repeats and not loader.num_workers else None
        init = InitWorker(side, loader.worker_init_fn)
        twin = with_settings(loader, dataset=dataset, worker_init_fn=init, pin_memory=pins, **settings)
        if "batch_sampler" not in settings:
            wrap_sampler(twin, lambda sampler: _Requests(sampler, self.orders))
        return twin

    def follow(self, plan: Plan) -> None:
        """Make the batches under this plan, from the next request on."""
        self._plan = self.orders.plan = plan

    def tune(self) -> None:
        self._repeats.capture()

    def bring(self, sent: Sent) -> Ready:
        try:
            return super().bring(sent)
        finally:
            if self._side is not None:
                if isinstance(sent, Packed):
                    sent.batch = None  # on a device, its lists and dicts were copied: they hold the recorded images
                self._kept = self._kept + 1 if self._side.let_go() else 0
                if self._kept == _MOST_KEPT:
                    self.failed, self.orders.plainly = _KEPT, True

    def arrive(self, sent: Sent) -> Ready:
        ready = self._arrived(sent)
        if self._loader.pin_memory and torch.cuda.is_available():
            ready.batch = tree.as_pinned(ready.batch)
        self.recorded += isinstance(sent, Packed)
        if isinstance(sent, (Executed, Scouted)):
            self.evidence.append((ready.batch, sent.evidence))
        return ready

    def _arrived(self, sent: Sent) -> Ready:
        self._there = None
        if isinstance(sent, AsIs) and self.at_home:
            pins = self._loader.pin_memory and torch.cuda.is_available()
            return Ready(pin_memory(sent.batch) if pins else sent.batch)  # returns itself if it is pinned already
        if isinstance(sent, Unrecorded):
            self.unrecorded += 1
            self.why = sent.reason
        batch = _batch_in(sent)
        if self._copying is None or self._replaying is None:
            packed = isinstance(batch, Packed)
            with labelled("replay" if packed else "copy"):
                return Ready(replay(batch, self.device) if packed else moved(batch, self.device))
        with labelled("copy"), torch.cuda.stream(self._copying):
            if not isinstance(batch, Packed):
                return Ready(moved(batch, self.device, non_blocking=True), self._copying.record_event())
            there = batch.pin_memory().on_device(self.device)  # a slot of a ring is page-locked already
            copied = self._copying.record_event()
        self._there = there
        with labelled("replay"), torch.cuda.stream(self._replaying):
            self._replaying.wait_event(copied)
            made = replay(there, self.device, self._repeats.results(there))
            replayed = self._replaying.record_event()
        self._read.until(replayed, there.memory)
        self._there = None
        return Ready(made, replayed)

    def recovered(self, sent: Sent, error: Exception) -> Any:
        """Return a batch that could not be brought to the device: replayed on the CPU."""
        batch, there = _batch_in(sent), self._there
        if isinstance(batch, Packed):
            if there is None:
                packed = batch.decoded_on_cpu(_CPU)
            else:  # the slot in which it came may hold another batch by now
                assert self._copying is not None
                self._copying.synchronize()
                packed = replace(there, memory=there.memory.cpu())
            batch = replay(packed, _CPU)
        return batch if self.at_home else moved(batch, self.device, non_blocking=True)


class _Read:
    """Memory of the copying stream that the replaying stream reads, kept until it has been read.

    ``record_stream`` is not enough: while any thread captures a CUDA graph, torch's allocator takes the stream for one
    of the graph's, and reuses the memory without waiting for it (``insert_events_deferred_until_no_capture`` in
    CUDACachingAllocator). The loop may capture at any time.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._process = os.getpid()

    def until(self, event: torch.cuda.Event, memory: Tensor) -> None:
        """Keep the memory until the device has reached ``event``; drop what has been read.

        Two epochs at once fetch in two threads: one takes out what it looks at.
        """
        self._kept.append((event, memory))
        with suppress(IndexError):
            while (oldest := self._kept.popleft())[0].query():
                pass
            self._kept.appendleft(oldest)

    def finish(self) -> None:
        """Wait until all of it has been read; in a forked copy there is nothing to wait for."""
        for event, _ in self._kept if os.getpid() == self._process else ():
            event.synchronize()


def _finish(read: _Read, repeats: GraphCache) -> None:
    """Wait for the last replays: their memory, and that of the graphs, is freed after this."""
    read.finish()


class _Requests:
    """The user's sampler, whose indices are requests for plain batches while the orders say so.

    ``form`` gives each request the form in which it is sent.
    """

    def __init__(self, sampler: Any, orders: Orders, form: Callable[[Any], Any] = lambda request: request) -> None:
        self._sampler = sampler
        self._orders = orders
        self._form = form

    def __iter__(self) -> Iterator[Any]:
        return map(self._form, _Requested(iter(self._sampler), self._orders))

    def __len__(self) -> int:
        return len(self._sampler)


class _Requested:
    """Iterator over an epoch's requests. Unlike a generator, it goes on after an error if the sampler's own does."""

    def __init__(self, indices: Iterator[Any], orders: Orders) -> None:
        self._indices = indices
        self._orders = orders

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        indices = next(self._indices)
        if self._orders.plainly:
            return Plainly(indices)
        request = self._request(indices)
        return request if self._orders.plan is None else Under(self._orders.plan, request)

    def _request(self, indices: Any) -> Any:
        if self._orders.scouted:
            self._orders.scouted -= 1
            return AlsoScouted(indices)
        if self._orders.executed:
            self._orders.executed -= 1
            return AlsoExecuted(indices, self._orders.compared)
        return Plainly(indices) if self._orders.held else indices


def _batch_in(sent: Sent) -> Any:
    return sent if isinstance(sent, Packed) else sent.batch


def packing(loader: DataLoader[Any], ring: Ring) -> DataLoader[Any]:
    """Return a copy of a stream's loader for one iterator, whose batches come packed through ``ring``."""
    return with_settings(loader, collate_fn=PackedCollate(loader.collate_fn, ring), pin_memory=False)

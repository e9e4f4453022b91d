"""Bring packed batches to the device: copy on one stream, replay on another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..loop.wrappers import InitWorker, StagedDataset
from ..usercode import tree
from .graph_cache import GraphCache
from .packed_batch import Packed
from .plan import Plan
from .replay import replay
from .ring import Ring
from .streams.feed import Feed, with_settings
from .streams.handover import Ready, moved
from .streams.labels import labelled
from .worker import PackingSide, Sent, Unrecorded, handed_on, packing

#: Number of a worker's slots for batches that are being copied, in addition to those in transit.
_HELD = 3


class ToDevice(Feed):
    """Feed of a loader's batches that runs the moved transforms on the device, if any.

    Batches go from workers to a GPU through a ring of page-locked memory, without torch's pinning thread.

    Attributes:
        unrecorded: number of batches so far that the workers had to make with pixels.
        why: the reason for the last of them.
    """

    def __init__(self, loader: DataLoader[Any], plan: Plan, device: torch.device) -> None:
        super().__init__(loader, device)
        self.unrecorded = 0
        self.why = ""
        self._loader = loader
        self._plan = plan
        self._twin: DataLoader[Any] | None = None
        on_gpu = device.type == "cuda"
        self._copying = torch.cuda.Stream(device) if on_gpu else None
        self._replaying = torch.cuda.Stream(device) if on_gpu else None
        self._repeats = GraphCache(device)

    def begin(self) -> Iterator[Sent]:
        if any(link.stale() for link in self._plan.moved.values()):
            self.why = "your own code that was moved reads other values than when it was proven"
        if self._twin is None or not self.single:  # a ring serves the workers of one iterator
            self._twin = _sending(self._loader, self._plan, self.device)
        return iter(self._twin)

    def tune(self) -> None:
        self._repeats.capture()

    def arrive(self, sent: Sent) -> Ready:
        batch: Any = sent
        if isinstance(sent, Unrecorded):
            self.unrecorded += 1
            self.why = sent.reason
            batch = sent.batch
        if self._copying is None or self._replaying is None:
            packed = isinstance(batch, Packed)
            with labelled("replay" if packed else "copy"):
                return Ready(replay(batch, self.device, self._plan.moved) if packed else tree.move(batch, self.device))
        with labelled("copy"), torch.cuda.stream(self._copying):
            if not isinstance(batch, Packed):
                return Ready(moved(batch, self.device), self._copying.record_event())
            there = batch.pin_memory().on_device(self.device)  # a slot of a ring is page-locked already
            copied = self._copying.record_event()
        with labelled("replay"), torch.cuda.stream(self._replaying):
            self._replaying.wait_event(copied)
            there.memory.record_stream(self._replaying)
            made = replay(there, self.device, self._plan.moved, self._repeats.results(there))
            return Ready(made, self._replaying.record_event())


def _sending(loader: DataLoader[Any], plan: Plan, device: torch.device) -> DataLoader[Any]:
    """Return a copy of the loader whose batches come packed."""
    ring = None
    if loader.num_workers and device.type == "cuda":
        slots = (loader.prefetch_factor or 2) + _HELD
        ring = Ring(loader.num_workers, slots, device, varying=bool(plan.pieces))  # recorded ops vary in length
        if not plan.pieces:
            return packing(loader, ring)
    packing_side = PackingSide(loader.dataset, loader.collate_fn, plan, ring)
    return with_settings(
        loader,
        dataset=StagedDataset(packing_side),
        collate_fn=handed_on,
        worker_init_fn=InitWorker(packing_side, loader.worker_init_fn),
        pin_memory=ring is None and (loader.pin_memory or device.type == "cuda"),
    )

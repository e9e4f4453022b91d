"""How batches that workers have packed get to the device: copied on one stream, replayed on another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..ladder import tree
from ..ladder.wrappers import InitWorker, StagedDataset
from .plan import Plan
from .replay import replay
from .streams.feed import fetches_ahead
from .streams.handover import Ready, moved
from .worker import Sent, Station, Unrecorded, handed_on


class Replayed:
    """A feed of the loader's own batches, of whose transforms the device does its part.

    Attributes:
        unrecorded: batches so far that the workers had to make for real.
        why: the reason for the last of them.
    """

    def __init__(self, loader: DataLoader[Any], plan: Plan, device: torch.device) -> None:
        self.device = device
        self.ahead = fetches_ahead(loader)
        self.single = loader.persistent_workers
        self.unrecorded = 0
        self.why = ""
        self._own = plan.moved
        self._twin = _recorded(loader, plan, device)
        on_gpu = device.type == "cuda"
        self._copying = torch.cuda.Stream(device) if on_gpu else None
        self._replaying = torch.cuda.Stream(device) if on_gpu else None

    def begin(self) -> Iterator[Sent]:
        return iter(self._twin)

    def arrive(self, sent: Sent) -> Ready:
        if isinstance(sent, Unrecorded):
            self.unrecorded += 1
            self.why = sent.reason
        if self._copying is None or self._replaying is None:
            if isinstance(sent, Unrecorded):
                return Ready(tree.move(sent.batch, self.device))
            return Ready(replay(sent, self.device, self._own))
        with torch.cuda.stream(self._copying):
            batch = moved(sent.batch, self.device)
            if isinstance(sent, Unrecorded):
                return Ready(batch, self._copying.record_event())
            memory = sent.memory.to(self.device, non_blocking=True)
            copied = self._copying.record_event()
        with torch.cuda.stream(self._replaying):
            self._replaying.wait_event(copied)
            memory.record_stream(self._replaying)
            made = replay(replace(sent, memory=memory, batch=batch), self.device, self._own)
            return Ready(made, self._replaying.record_event())


def _recorded(loader: DataLoader[Any], plan: Plan, device: torch.device) -> DataLoader[Any]:
    """A loader with the same sampler, generator and workers' settings, whose batches are packed."""
    station = Station(loader.dataset, loader.collate_fn, plan)
    twin = copy.copy(loader)
    twin.__dict__.update(  # a loader refuses assignments once it is made
        dataset=StagedDataset(station),
        collate_fn=handed_on,
        worker_init_fn=InitWorker(station, loader.worker_init_fn),
        pin_memory=loader.pin_memory or device.type == "cuda",
        _iterator=None,
    )
    return twin

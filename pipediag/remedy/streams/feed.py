"""Bring a loader's batches to the device, before any stage."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ...usercode import tree
from .handover import Ready, moved, tensors
from .labels import labelled


class Feed:
    """Interface between an executor and a loader.

    Attributes:
        device: the target device.
        ahead: True if batches may be fetched in another thread, before the loop asks for them.
        single: True if a new epoch reuses the iterator of the last one.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.device = device
        self.ahead = fetches_ahead(loader)
        self.single = isinstance(loader, DataLoader) and loader.persistent_workers

    def begin(self) -> Iterator[Any]:
        """Begin a new epoch."""
        raise NotImplementedError

    def arrive(self, sent: Any) -> Ready:
        """Launch the transfer of a batch to the device, on the feed's own streams."""
        raise NotImplementedError

    def tune(self) -> None:
        """Do work that must run in the loop's thread; called there before each batch."""


class Copied(Feed):
    """Feed that copies the batches of any iterable unchanged, on its own stream."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        super().__init__(loader, device)
        if device.type == "cuda" and isinstance(loader, DataLoader) and not loader.pin_memory:
            loader = with_settings(loader, pin_memory=True)
        self._loader = loader
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self) -> Iterator[Any]:
        return iter(self._loader)

    def arrive(self, sent: Any) -> Ready:
        with labelled("copy"):
            if self._stream is None:
                return Ready(tree.move(sent, self.device))
            if next(tensors(sent), None) is not None:  # already on a device: made by the loop's thread, on its stream
                self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                return Ready(moved(tree.map_leaves(sent, _pinned), self.device), self._stream.record_event())


def with_settings(loader: DataLoader[Any], **settings: Any) -> DataLoader[Any]:
    """Return a copy of a loader with other settings. It makes an iterator of its own."""
    twin = copy.copy(loader)
    twin.__dict__.update(settings, _iterator=None)  # a loader refuses assignments once it is made
    return twin


def _pinned(leaf: Any) -> Any:
    """Pin a tensor, since a copy from pageable memory blocks the host regardless of ``non_blocking``."""
    on_host = isinstance(leaf, Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided
    return leaf.pin_memory() if on_host else leaf  # returns itself if it is pinned already


def fetches_ahead(loader: Any) -> bool:
    """Return whether a loader may be asked for batches early, in another thread, without changing any random draw.

    Without workers, samples are drawn with the loop's generators; a user's own sampler may use them too.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        return False
    batches = loader.batch_sampler
    sampler: Any = loader.sampler if batches is None else batches
    while sampler is not None and isinstance(sampler, Sampler):
        if not type(sampler).__module__.startswith("torch.utils.data"):
            return False
        sampler = getattr(sampler, "sampler", None)
    return sampler is None or type(sampler).__module__.startswith("torch.utils.data")

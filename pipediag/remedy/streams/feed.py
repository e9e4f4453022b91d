"""How a loader's batches get to the device, before any stage."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ...usercode import tree
from .handover import Ready, moved, tensors


class Feed(Protocol):
    """What an executor needs of a loader.

    Attributes:
        device: where the batches go.
        ahead: whether they may be fetched in another thread, before the loop asks for them.
        single: whether a new epoch takes over the iterator of the last one.
    """

    device: torch.device
    ahead: bool
    single: bool

    def begin(self) -> Iterator[Any]:
        """A new epoch."""

    def arrive(self, sent: Any) -> Ready:
        """Launch what brings a batch to the device, on streams of the feed's own."""

    def tune(self) -> None:
        """Called in the loop's thread before each batch: for what must not be done in another one."""


class Copied:
    """The batches of any iterable, copied as they are, on a stream of their own."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.device = device
        self.ahead = fetches_ahead(loader)
        self.single = isinstance(loader, DataLoader) and loader.persistent_workers
        self._loader = pinning(loader) if device.type == "cuda" else loader
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self) -> Iterator[Any]:
        return iter(self._loader)

    def tune(self) -> None:
        """There is nothing to tune."""

    def arrive(self, sent: Any) -> Ready:
        if self._stream is None:
            return Ready(tree.move(sent, self.device))
        if any(True for _ in tensors(sent)):  # on a device already: made by the loop's thread, on its stream
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            return Ready(moved(tree.map_leaves(sent, _pinned), self.device), self._stream.record_event())


def pinning(loader: Iterable[Any]) -> Iterable[Any]:
    """The loader, made to give batches in page-locked memory if it is one of torch's; it is not changed itself."""
    if not isinstance(loader, DataLoader) or loader.pin_memory:
        return loader
    twin = copy.copy(loader)
    twin.__dict__.update(pin_memory=True, _iterator=None)  # a loader refuses assignments once it is made
    return cast(Iterable[Any], twin)


def _pinned(leaf: Any) -> Any:
    """A copy from pageable memory makes the host wait, whatever ``non_blocking`` says."""
    on_host = isinstance(leaf, Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided
    return leaf.pin_memory() if on_host else leaf  # which is itself where it is pinned already


def fetches_ahead(loader: Any) -> bool:
    """Whether a loader may be asked for batches early, in another thread: whether no random draw changes by that.

    Without workers samples are drawn with the generators of the loop; a sampler of the user's own may do so too.
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

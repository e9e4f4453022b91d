"""Bring a loader's batches to the device, before any stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ..frames import in_one_line
from ..loop.copies import with_settings
from ..usercode import tree
from ..usercode.objects import moved
from .handover import Ready, labelled, tensors


@dataclass
class Orders:
    """How a loader's next batches are made."""

    plan: Any = None  # the plan that the workers are told of, if it is another than the one that they began with
    scouted: int = 0  # number of batches, from the next request on, that show what can be recorded
    plainly: bool = False  # True if without the remedy, from the next request to a worker on
    executed: int = 0  # number of batches, from the next request on, that are executed too, to be compared
    compared: int = 0  # number of samples of each of these whose calls are compared one by one
    held: bool = False  # True if the batches after these are made without the remedy, until the comparison is done


class Feed:
    """Interface between an executor and a loader.

    Attributes:
        device: the target device.
        ahead: True if batches may be fetched in another thread, before the loop asks for them.
        single: True if a new epoch reuses the iterator of the last one.
        orders: how the next batches are made.
        at_home: True if batches that were made without the remedy stay in host memory.
        failed: why a batch could not be brought to the device; empty if all could. After that all are made plainly.
    """

    at_home = False
    failed = ""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.device = device
        self.orders = Orders()
        self.ahead = fetches_ahead(loader)
        self.single = isinstance(loader, DataLoader) and loader.persistent_workers

    def begin(self) -> Iterator[Any]:
        """Begin a new epoch."""
        raise NotImplementedError

    def renew(self) -> None:
        """Let the next epoch have new workers, also where a loader keeps them."""

    def arrive(self, sent: Any) -> Ready:
        """Launch the transfer of a batch to the device, on the feed's own streams."""
        raise NotImplementedError

    def bring(self, sent: Any) -> Ready:
        """Return what :meth:`arrive` does, or the batch as the CPU makes it if that fails: none is lost."""
        try:
            return self.arrive(sent)
        except Exception as error:
            self.failed, self.orders.plainly = in_one_line(error), True
            return Ready(self.recovered(sent, error))

    def recovered(self, sent: Any, error: Exception) -> Any:
        """Return a batch that could not be brought to the device.

        Raises:
            Exception: ``error``, if the loop expects the batch on the device.
        """
        if self.at_home:
            return sent
        raise error

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

    def renew(self) -> None:
        if isinstance(self._loader, DataLoader):
            self._loader._iterator = None

    def arrive(self, sent: Any) -> Ready:
        if self.orders.plainly and self.at_home:
            return Ready(sent)
        with labelled("copy"):
            if self._stream is None:
                return Ready(moved(sent, self.device))
            if next(tensors(sent), None) is not None:  # already on a device: made by the loop's thread, on its stream
                self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                return Ready(
                    moved(tree.map_leaves(sent, _pinned), self.device, non_blocking=True),
                    self._stream.record_event(),
                )


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

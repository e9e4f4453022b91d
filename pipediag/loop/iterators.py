"""DataLoader iterators: build those of this process, which is how pipediag enters a loop, and look into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from ..patches import replaced

#: torch's own ``DataLoader._get_iterator``, or that of whoever replaced it before.
NativeIterator = Callable[[Any], Any]


@contextmanager
def built_by(build: Callable[[DataLoader[Any], NativeIterator], Any]) -> Iterator[None]:
    """Let ``build(loader, native)`` return the iterator of every DataLoader within the context."""
    native: NativeIterator = DataLoader._get_iterator
    with replaced(DataLoader, "_get_iterator", lambda loader: build(loader, native)):
        yield


def queued(iterator: Any) -> int:
    """Return how many batches of a DataLoader's iterator are finished but not taken yet, as far as this is visible.

    These are the result queue and the batches that arrived out of order, which torch keeps with their tasks.
    """
    tasks = getattr(iterator, "_task_info", None) or {}
    early = sum(1 for task in list(tasks.values()) if len(task) == 2)
    try:
        return early + int(iterator._data_queue.qsize())
    except (AttributeError, NotImplementedError):  # no workers; or macOS, where a process queue cannot be counted
        return early

"""Build this process's DataLoader iterators, which is how pipediag enters a loop, and look into them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from .iterator_makers import get_iterator_replaced

#: ``_get_iterator`` of the class that makes the loader's iterators, or an earlier replacement of it.
NativeIterator = Callable[[Any], Any]


class IteratorHook:
    """A hook that lets ``build(loader, native)`` return the iterators of this process's DataLoaders.

    A forked process inherits the hook, which is without effect there.
    """

    def __init__(self, build: Callable[[DataLoader[Any], NativeIterator], Any]) -> None:
        self._build = build
        self._aside = False
        self._process = os.getpid()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook DataLoader and its subclasses within the context."""

        def hooked(maker: type[DataLoader[Any]]) -> NativeIterator:
            native: NativeIterator = maker._get_iterator

            def get_iterator(loader: DataLoader[Any]) -> Any:
                inactive = self._aside or os.getpid() != self._process
                return native(loader) if inactive else self._build(loader, native)

            return get_iterator

        with get_iterator_replaced(DataLoader, hooked):
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude loaders iterated within the context: they are not the script's."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False


def queued(iterator: Any) -> int:
    """Return how many batches of a DataLoader's iterator are finished but not taken yet, as far as this is visible.

    They are in the result queue, or arrived out of order and are kept by torch with their tasks.
    """
    tasks = getattr(iterator, "_task_info", None) or {}
    early = sum(1 for task in list(tasks.values()) if len(task) == 2)
    try:
        return early + int(iterator._data_queue.qsize())
    except (AttributeError, NotImplementedError):  # no workers; or macOS, where a process queue cannot be counted
        return early

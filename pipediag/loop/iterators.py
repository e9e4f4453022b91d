"""Build the iterators of all DataLoaders of this process: the one place where pipediag enters a training loop."""

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

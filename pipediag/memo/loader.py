"""Wrap a loader so that its process and its workers remember the results of pure library calls."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ..errors import UsageError, at_least
from .memo import Memo

#: Keeps the patches of this worker, until it ends.
_FOR_GOOD = ExitStack()


class CachedLoader(DataLoader):  # type: ignore[misc]
    """A copy of the user's loader, of its own class too, that yields the same batches."""

    memo: Memo  # what is kept

    @property
    def plan(self) -> str:
        """What is kept."""
        return told(self.memo)

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any]
        if self.num_workers:
            batches = super().__iter__()
        else:
            with self.memo.installed():
                batches = _InThisProcess(super().__iter__(), self.memo)
        return batches


class _InThisProcess:
    """Batches of a loader without workers; other attributes are those of its iterator."""

    def __init__(self, batches: Iterator[Any], memo: Memo) -> None:
        self._batches, self._memo = batches, memo

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        with self._memo.installed():
            return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


class InitWorker:
    """The init function of a worker: remember calls from now on, then do what the user's function does."""

    def __init__(self, memo: Memo, user: Callable[[int], None] | None) -> None:
        self.memo, self.user = memo, user

    def __call__(self, worker_id: int) -> None:
        _FOR_GOOD.enter_context(self.memo.installed())
        if self.user is not None:
            self.user(worker_id)


def cache(loader: DataLoader[Any], *, folder: Path | str | None = None, nbytes: int | None = None) -> CachedLoader:
    """Wrap a loader so that what library calls read and decode is kept, and not read and decoded again.

    Results of calls that depend on their inputs only are remembered by these inputs: decoded pictures (Pillow,
    ``torchvision.io``, OpenCV), ``numpy.load``, sound files, and functions that you mark with :func:`pipediag.pure`.
    Your own code runs for every sample as before, so the batches are the same whatever it depends on.

    Args:
        loader: any ``DataLoader``; it is not changed.
        folder: where to keep a file that later runs use, too; None keeps everything in memory, for this run only.
        nbytes: maximum number of bytes to keep; None takes what is free, except for a reserve.

    Raises:
        UsageError: ``loader`` is not a ``DataLoader``, ``nbytes`` is not a whole number, ``folder`` cannot be made or
            written to, or the platform is not Linux.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"cache() takes a torch DataLoader, not {type(loader).__name__}")
    if nbytes is not None:
        nbytes = at_least(0, "nbytes", nbytes)
    if isinstance(loader, CachedLoader):
        return loader
    return with_memo(loader, Memo.shared(nbytes, None if folder is None else Path(folder)))


def told(memo: Memo) -> str:
    """Return what is kept, as text."""
    if words := memo.words:
        full = f"; no more is kept: {memo.arena.full}" if memo.arena.full else ""
        return f"{words}; {memo.arena.used / 1e6:,.0f} MB kept{full}"
    return "no known call that takes long was made; mark functions of your own with @pipediag.pure"


def with_memo(loader: DataLoader[Any], memo: Memo) -> CachedLoader:
    """Return a copy of the loader that uses ``memo``."""
    twin: Any = copy.copy(loader)
    kind: Any = type(loader)
    twin.__class__ = _cached_class(kind)
    twin.__dict__.update(_iterator=None, memo=memo)  # a loader refuses assignments once it is made
    if loader.num_workers:
        twin.__dict__["worker_init_fn"] = InitWorker(memo, loader.worker_init_fn)
    cached: CachedLoader = twin
    return cached


@functools.cache
def _cached_class(kind: Any) -> Any:
    if kind is DataLoader:
        return CachedLoader
    return type(kind.__name__, (CachedLoader, kind), {"__module__": kind.__module__})

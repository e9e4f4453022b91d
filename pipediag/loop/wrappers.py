"""Wrap a loader's dataset, collate function, sampler and init function.

The wrappers are on the loader only while its iterator is constructed; afterwards ``loader.dataset`` is the user's
again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from ..clock import time
from ..lifeline import end_worker_with_parent


class InWorker(Protocol):
    """The holder of the user's dataset in a worker."""

    dataset: Any

    def ready(self) -> None:
        """Note that the worker is about to begin."""


class Fetching(InWorker, Protocol):
    """The maker of a dataset's samples in a worker."""

    def samples(self, indices: Sequence[Any]) -> Any: ...

    def sample(self, index: Any) -> Any: ...


class Serving(Fetching, Protocol):
    """A :class:`Fetching` that also serves streams and sends the batches."""

    def stream(self) -> Iterator[Any]: ...

    def deliver(self, samples: Any) -> Any: ...


class _Staged:
    """A dataset that stands for the user's, and has its other attributes."""

    def __init__(self, worker_side: Any) -> None:
        self._worker_side = worker_side

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_worker_side":
            raise AttributeError(name)
        return getattr(self._worker_side.dataset, name)


class StagedDataset(_Staged):
    """A map-style dataset whose samples the worker side makes."""

    _worker_side: Fetching

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        return self._worker_side.samples(indices)

    def __getitem__(self, index: Any) -> Any:
        return self._worker_side.sample(index)

    def __len__(self) -> int:
        return len(self._worker_side.dataset)


class StagedIterable(_Staged):
    """An iterable dataset under the current rung."""

    _worker_side: Serving

    def __iter__(self) -> Iterator[Any]:
        return self._worker_side.stream()


class StagedCollate:
    """The collate function; it returns the batch as the worker side delivers it."""

    def __init__(self, worker_side: Serving) -> None:
        self._worker_side = worker_side

    def __call__(self, samples: Any) -> Any:
        return self._worker_side.deliver(samples)


class InitWorker:
    """The init function of a worker, which makes ``get_worker_info().dataset`` the user's own dataset.

    The worker ends when its parent has gone.
    """

    def __init__(self, worker_side: InWorker, user: Callable[[int], None] | None) -> None:
        self._worker_side, self._user = worker_side, user

    def __call__(self, worker_id: int) -> None:
        end_worker_with_parent()
        info = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", self._worker_side.dataset)
        if self._user is not None:
            self._user(worker_id)
        self._worker_side.ready()


class FirstItems:
    """A sampler that repeats the first ``number`` items of the user's sampler."""

    def __init__(self, sampler: Any, number: int) -> None:
        self.sampler = sampler
        self.number = number
        self._items = list(itertools.islice(iter(sampler), number))

    @property
    def samples(self) -> int:
        """Number of samples in the repeated items, which may be batches."""
        return sum(len(item) if isinstance(item, (list, tuple)) else 1 for item in self._items[: self.number])

    def __iter__(self) -> Iterator[Any]:
        length = len(self.sampler) if hasattr(self.sampler, "__len__") else None
        return itertools.islice(itertools.cycle(self._items[: self.number]), length)

    def __len__(self) -> int:
        return len(self.sampler)


class EndlessSampler:
    """The user's sampler, restarted at its end while ``endless`` is set.

    Measuring hands out as many batches as the epoch has, but draws more from the workers: those of a short epoch would
    run out of tasks after a few batches. Once ``ended`` is set, the data ends with the batches requested so far.
    ``spent`` is the time by ``now`` that the user's sampler has taken, in seconds.
    """

    def __init__(self, sampler: Any, endless: bool = False, now: Callable[[], float] = time.perf_counter) -> None:
        self.sampler = sampler
        self.endless = endless
        self.ended = False
        self.spent = 0.0
        self.now = now

    def __iter__(self) -> Iterator[Any]:
        return _Endless(self)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


class _Endless:
    def __init__(self, owner: EndlessSampler) -> None:
        self._owner = owner
        self._indices = iter(owner.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._owner.ended:
            raise StopIteration
        began = self._owner.now()
        try:
            return self._next()
        finally:
            self._owner.spent += self._owner.now() - began

    def _next(self) -> Any:
        try:
            return next(self._indices)
        except StopIteration:
            if not self._owner.endless:
                raise
            self._indices = iter(self._owner.sampler)
            return next(self._indices)

    def __getattr__(self, name: str) -> Any:  # such as the state of torchdata's samplers
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._indices, name)

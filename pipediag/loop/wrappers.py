"""The thin shells that stand in for a loader's dataset, collate function, sampler and init function.

They are on the loader only while its iterator is constructed; afterwards ``loader.dataset`` is the user's again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch.utils.data import get_worker_info


class Fetching(Protocol):
    """What makes samples in a worker, of a dataset of the user's."""

    dataset: Any

    def samples(self, indices: Sequence[Any]) -> Any: ...

    def sample(self, index: Any) -> Any: ...

    def ready(self) -> None:
        """The worker is about to begin."""


class Serving(Fetching, Protocol):
    """The same, of streams too, with a say in how a batch is sent."""

    def stream(self) -> Iterator[Any]: ...

    def deliver(self, samples: Any) -> Any: ...


class StagedDataset:
    """A map-style dataset whose samples the worker side makes; all but fetching goes to the user's dataset."""

    def __init__(self, worker_side: Fetching) -> None:
        self._worker_side = worker_side

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        return self._worker_side.samples(indices)

    def __getitem__(self, index: Any) -> Any:
        return self._worker_side.sample(index)

    def __len__(self) -> int:
        return len(self._worker_side.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_worker_side":
            raise AttributeError(name)
        return getattr(self._worker_side.dataset, name)


class StagedIterable:
    """An iterable dataset under the current rung."""

    def __init__(self, worker_side: Serving) -> None:
        self._worker_side = worker_side

    def __iter__(self) -> Iterator[Any]:
        return self._worker_side.stream()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_worker_side":
            raise AttributeError(name)
        return getattr(self._worker_side.dataset, name)


class StagedCollate:
    """The collate function; its result carries the story of the batch."""

    def __init__(self, worker_side: Serving) -> None:
        self._worker_side = worker_side

    def __call__(self, samples: Any) -> Any:
        return self._worker_side.deliver(samples)


class InitWorker:
    """Runs first in each worker, so that ``get_worker_info().dataset`` is the user's own dataset there."""

    def __init__(self, worker_side: Fetching, user: Callable[[int], None] | None) -> None:
        self._worker_side, self._user = worker_side, user

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", self._worker_side.dataset)
        if self._user is not None:
            self._user(worker_id)
        self._worker_side.ready()


class EndlessSampler:
    """The user's sampler, begun anew at its end while ``endless`` is set.

    Measuring hands out as many batches as the epoch has, but draws more from the workers; without this every few
    batches of a short epoch would be the workers' last.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.endless = False

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
        try:
            return next(self._indices)
        except StopIteration:
            if not self._owner.endless:
                raise
            self._indices = iter(self._owner.sampler)
            return next(self._indices)

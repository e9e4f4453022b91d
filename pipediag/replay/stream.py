"""Record the samples that a worker draws from an iterable dataset.

Such a sample is made only once: the dataset's own code goes on from where it was. So code that needs pixels gets them,
and a batch that cannot be recorded is collated from the real images of its samples.

Torch's loader tells a stream nothing when it asks for a batch. A :class:`Request` does: torch iterates over it directly
before it draws from the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from ..usercode.objects import leaves, replaced
from .ops.op import NotRecordable
from .pack.ring import Ring
from .plan import Plan
from .record.batches import batch_of, real_leaf
from .record.session import session
from .record.substitutes import is_recording
from .worker import PackingSide, Sent


class _Asked(threading.local):
    """The latest request in this thread."""

    latest: Any = None


_asked = _Asked()


class Request:
    """Request for one batch of a stream, as :class:`.worker.PackingSide` takes it."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __iter__(self) -> Iterator[None]:
        _asked.latest = self._request
        return iter((None,))

    def __len__(self) -> int:
        return 1


class StreamSide(PackingSide):
    """Worker's half of the remedy for an iterable dataset.

    Args:
        batched: whether the loader makes batches of the stream's samples.
        drop_last: whether it leaves out an incomplete batch.
    """

    repeats = False

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        plan: Plan,
        ring: Ring | None,
        batched: bool,
        drop_last: bool,
    ) -> None:
        super().__init__(dataset, collate, plan, ring)
        self._batched, self._drop_last = batched, drop_last
        self._fetcher: Any = None  # of the batch in progress

    def fetcher(self) -> Any:
        """Return torch's own fetcher of the samples for one iteration."""
        fetcher = _IterableDatasetFetcher(self.dataset, self._batched, _unchanged, self._drop_last)
        fetcher.dataset_iter = _Samples(fetcher.dataset_iter)
        return fetcher

    def batch(self, fetcher: Any, request: Any) -> Sent:
        """Return the next batch of an iteration."""
        self._fetcher = fetcher
        return self._made(request, self._batched)

    def _plain(self, indices: Any, batched: bool) -> Any:
        return batch_of(self._fetched(indices, batched), self._collate)

    def _fetched(self, indices: Any, batched: bool, **calls: Callable[..., None]) -> Any:
        """Return the next samples.

        Raises:
            NotRecordable: code has caught an error that only a recorded image raises. It may have left out a sample,
                which cannot be made again.
        """
        samples, raised = self._fetcher.dataset_iter, NotRecordable.raised
        samples.drawn, samples.end = [], calls.get("end", _nothing)
        try:
            with session.going_on():
                fetched = self._fetcher.fetch(indices)
        finally:
            samples.drawn, samples.end = [], _nothing
        if NotRecordable.raised != raised:
            raise NotRecordable(
                "code of the dataset has caught an error that only a recorded image raises, and may have left out a "
                "sample: use this loader without the remedy"
            )
        if session.active or not any(map(is_recording, leaves(fetched))):
            return fetched
        return replaced(fetched, real_leaf)  # the stream has kept it since an earlier batch


class RecordedStream(IterableDataset):  # type: ignore[misc]
    """Iterable dataset whose items are the batches that the worker's half sends."""

    def __init__(self, side: StreamSide) -> None:
        self._side = side

    def __iter__(self) -> Iterator[Sent]:
        return _Batches(self._side)

    def __len__(self) -> int:
        return len(self._side.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_side":
            raise AttributeError(name)
        return getattr(self._side.dataset, name)


class _Batches:
    """Iterator over a stream's batches. Unlike a generator, it goes on after an error if the stream's own does."""

    def __init__(self, side: StreamSide) -> None:
        self._side = side
        self._fetcher = side.fetcher()

    def __iter__(self) -> Iterator[Sent]:
        return self

    def __next__(self) -> Sent:
        return self._side.batch(self._fetcher, _asked.latest)


class _Samples:
    """Iterator over the user's samples, which calls ``end`` with those of the batch so far after each."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self._samples = samples
        self.drawn: list[Any] = []
        self.end: Callable[..., None] = _nothing

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.drawn.append(next(self._samples))
        self.end(self.drawn)
        return self.drawn[-1]


def _nothing(samples: list[Any]) -> None:
    pass


def _unchanged(samples: Any) -> Any:
    return samples


def only(batches: list[Sent]) -> Sent:
    """Return the batch that torch's loader has put into a list: the collate function of a stream's batches."""
    (batch,) = batches
    return batch

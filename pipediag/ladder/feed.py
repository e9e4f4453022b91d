"""Feed the loop from one iterator of the user's loader, built with our wrappers inside."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..clock import Clock
from ..loop.iterators import NativeIterator, queued
from ..loop.wrappers import EndlessSampler, InitWorker, StagedCollate, StagedDataset, StagedIterable
from ..measure.stops import Stops
from ..session import Startup
from ..usercode import tree
from .findings import Findings
from .workers.delivery import Delivery
from .workers.rung_switch import PAUSE, RungSwitch
from .workers.worker_side import WorkerSide

#: Minimum timeout in seconds of a loader that has one: filling a cache takes longer than making a batch.
_TIMEOUT = 120
#: Seconds below which a wait for a batch is not attributed to a cause.
_NOTICEABLE = 1e-4


class Source(ABC):
    """A source of the loop's batches: the measured loader's feed, or a separate one.

    Attributes:
        waited: seconds spent waiting for batches so far.
        stalled: the part of ``waited`` in which later batches were already there.
        late: the part of ``waited`` in which the workers were still making the batch; the rest is for handing it over.
        stops: the stops of this process, as far as they are known.
    """

    waited = stalled = late = 0.0

    def __init__(self, clock: Clock) -> None:
        self.stops = Stops(clock)

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of workers; 0 if the training process makes the batches."""

    @property
    @abstractmethod
    def backlog(self) -> int:
        """Batches that queue up when none is taken for a while."""

    @property
    @abstractmethod
    def worker_pids(self) -> list[int]: ...

    @property
    def ready(self) -> int:
        """Batches that are queued now, to the extent that this is visible."""
        return 0

    @property
    def at_work(self) -> int:
        """Batches that are being made now, to the extent that this is visible."""
        return 0

    @property
    def sampling(self) -> float:
        """Seconds that the sampler has taken to give indices, in the loop's thread; part of ``waited`` if it draws."""
        return 0.0

    @abstractmethod
    def pause(self) -> None:
        """Keep the workers from beginning further batches for some seconds or until one is taken, if possible."""

    @abstractmethod
    def take(self) -> Delivery | None:
        """Return the next batch, or None if the data is used up."""

    @abstractmethod
    def renew(self) -> None:
        """Restart the data."""


class Feed(Source):
    """A :class:`Source` of one loader's batches, under a rung that can change at any time."""

    def __init__(
        self,
        loader: DataLoader[Any],
        native: NativeIterator,
        clock: Clock,
        looks_inside: bool = True,
        findings: Findings | None = None,
        timeout: float = _TIMEOUT,
    ) -> None:
        super().__init__(clock)
        self.loader = loader
        self.rung_switch = RungSwitch(int(loader.num_workers))
        self.findings = findings or Findings()
        self._timeout = timeout
        self._looks_inside = looks_inside
        self._native = native
        self._clock = clock
        self._worker_side: WorkerSide | None = None
        self._iterator: Any = None
        self._started: float | None = None
        self._launched: float | None = None  # None if the workers continue
        self._batch_queues: list[Any] = []
        self._shared: list[Any] = []
        self._sampler: EndlessSampler | None = None
        self._sampled = 0.0  # by earlier samplers
        self._sampled_before = 0.0  # the start
        self._endless = False
        self._paused_at: float | None = None

    @property
    def endless(self) -> bool:
        return self._endless

    @endless.setter
    def endless(self, value: bool) -> None:
        """Set whether the sampler restarts at its end; iterable datasets end when they end."""
        self._endless = value
        if self._sampler is not None:
            self._sampler.endless = value

    def end_data(self) -> bool:
        """Let the data end after the batches requested so far, as at the end of an epoch; return False if it cannot."""
        if self._sampler is None:
            return False
        self._sampler.ended = True
        return True

    def open(self) -> None:
        """Build the iterator and its workers. Afterwards the loader has its own attributes again."""
        self.close()
        loader = self.loader
        self._started = self._clock.now()
        self._batch_queues = _batch_queues(loader)
        self._worker_side = worker_side = WorkerSide(
            loader.dataset, loader.collate_fn, self.rung_switch, self._batch_queues, self._looks_inside
        )
        iterable = is_iterable(loader)
        attributes: dict[str, Any] = {
            "dataset": StagedIterable(worker_side) if iterable else StagedDataset(worker_side),
            "collate_fn": StagedCollate(worker_side),
            "worker_init_fn": InitWorker(worker_side, loader.worker_init_fn),
            "timeout": loader.timeout and max(loader.timeout, self._timeout),
        }
        self._sampled = self._sampled_before = self.sampling
        self._sampler = None
        if not iterable:
            name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
            self._sampler = EndlessSampler(getattr(loader, name), self._endless, self._clock.now)
            attributes[name] = self._sampler
        with _swapped(loader, attributes):
            self._iterator = self._native(loader)
        self.stops.notice(self._iterator)
        self._launched = self._clock.now()
        if self._shared:
            self._post_batches()

    def take(self) -> Delivery | None:
        if self._iterator is None:
            self.open()
        self._resume()
        asked, sampled = self._clock.now(), self.sampling
        try:
            delivery: Delivery = next(self._iterator)
        except StopIteration:
            if self.workers and not self.loader.persistent_workers:  # torch has ended them, idle as they were
                self.findings.shutdown = self._clock.now() - asked
            return None
        arrived = self._clock.now()
        self.waited += arrived - asked
        self.late += max(0.0, min(arrived, delivery.made) - asked)
        if arrived - asked > _NOTICEABLE:
            came = arrived - (self.sampling - sampled)  # the next indices are chosen once the batch is there
            self.stalled += max(0.0, came - max(asked, self._overtaken_at()))
        if self._started is not None:
            self._note_startup(self._started, asked, arrived, delivery, sampled - self._sampled_before)
        self.findings.take(delivery, self.stops.within(delivery.made - delivery.cost.wall, delivery.made))
        return delivery

    def _overtaken_at(self) -> float:
        """Return when half of the requested batches were ready, excluding the one waited for; ``inf`` if fewer are.

        torch keeps batches that arrive out of order with their tasks. A few always do with parallel workers; once half
        of them are ready, workers begin to run out of tasks.
        """
        tasks = getattr(self._iterator, "_task_info", None) or {}
        early = sorted(task[1].made for task in tasks.values() if len(task) == 2 and isinstance(task[1], Delivery))
        half = (len(tasks) + 1) // 2
        return early[half - 1] if half and len(early) >= half else math.inf

    def _note_startup(self, started: float, asked: float, arrived: float, delivery: Delivery, sampler: float) -> None:
        """Record the seconds from ``iter()`` until the first batch was ready, even if the loop asks for it later.

        ``sampler`` seconds of them went into choosing the batches that are requested at the start.
        """
        if self.workers:
            seconds = min(arrived, max(started, delivery.made)) - started
        else:  # nothing is made before it is asked for
            seconds = arrived - asked + (self._launched or started) - started
        startup = Startup(seconds, renewed=self._launched is None, shutdown=self.findings.shutdown)
        startup.sampler = min(seconds, sampler)
        self.findings.shutdown = 0.0
        if self._launched is not None:
            startup.launch = self._launched - started
            ready = delivery.notes.ready if delivery.notes else None
            startup.ready = max(startup.launch, ready - started) if ready is not None else startup.launch
        self.findings.startups.append(startup)
        self._started = None

    def renew(self) -> None:
        """Restart the data, in the same workers if they are persistent."""
        if self._iterator is not None and self.loader.persistent_workers and self.loader.num_workers > 0:
            if self._sampler is not None:
                self._sampler.ended = False
            self._started, self._launched = self._clock.now(), None
            self._sampled_before = self.sampling
            self._iterator._reset(self.loader)
        else:
            self.open()

    def share(self, batches: list[Any]) -> None:
        """Give every worker its cached batch, now and whenever workers are restarted."""
        if not self._shared:
            self._shared = batches
            self._post_batches()

    def _post_batches(self) -> None:
        # Neighbouring workers get different batches if there are two. No reference is kept here: a batch that arrives
        # must be newly mapped, as a fresh one would be.
        copies = [tree.in_shared_memory(batch) for batch in self._shared]
        for number, queue in enumerate(self._batch_queues):
            queue.put(copies[number % len(copies)])

    @property
    def sampling(self) -> float:
        return self._sampled + (self._sampler.spent if self._sampler is not None else 0.0)

    @property
    def workers(self) -> int:
        return int(self.loader.num_workers)

    @property
    def backlog(self) -> int:
        return int(self.loader.num_workers * (self.loader.prefetch_factor or 1))

    @property
    def ready(self) -> int:
        return queued(self._iterator)

    @property
    def at_work(self) -> int:
        return self.rung_switch.at_work if self._iterator is not None else 0

    def pause(self) -> None:
        now = self._clock.now()
        if self._paused_at is None or now - self._paused_at > PAUSE / 4:
            self._paused_at = now
            self.rung_switch.pause()

    def _resume(self) -> None:
        if self._paused_at is not None:
            self._paused_at = None
            self.rung_switch.resume()

    @property
    def worker_pids(self) -> list[int]:
        return [w.pid for w in getattr(self._iterator, "_workers", []) if getattr(w, "pid", None)]

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._resume()
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self.rung_switch.forget()
        if self._worker_side is not None:
            self._worker_side.close()
        for queue in self._batch_queues:
            _drain(queue)
            queue.cancel_join_thread()
            queue.close()
        self._batch_queues = []
        self._started = None

    @property
    def native_iterator(self) -> Any:
        """torch's own iterator, for code that inspects it; None before the first batch."""
        return self._iterator


@contextmanager
def _swapped(loader: DataLoader[Any], attributes: dict[str, Any]) -> Iterator[None]:
    """Set ``attributes`` on the loader within the context, bypassing its check against changes after construction."""
    before = {name: loader.__dict__[name] for name in attributes}
    loader.__dict__.update(attributes)
    try:
        yield
    finally:
        loader.__dict__.update(before)


def _batch_queues(loader: DataLoader[Any]) -> list[Any]:
    if loader.num_workers == 0:
        return []
    context = loader.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return [context.Queue() for _ in range(loader.num_workers)]


def _drain(queue: Any) -> None:
    """Take out batches that no worker took: until then, this process keeps their shared memory open.

    A process that has no descriptors left cannot open it, for which Python raises several errors.
    """
    try:
        while True:
            queue.get(block=False)
    except (Empty, OSError, EOFError, RuntimeError):
        pass


def is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def epoch_length(loader: DataLoader[Any]) -> int | None:
    """Return the number of batches of the loader's own iterator, or None if it is not known beforehand.

    The sampler decides: a subclass may give ``len()`` another meaning over a sampler that never ends.
    """
    try:
        return len(loader) if is_iterable(loader) else len(loader._index_sampler)
    except (TypeError, NotImplementedError):
        return None

"""Drive the training loop through its ``next()``: hand it batches from its workers or from caches.

Most methods are generators: each ``yield`` hands something to the loop, and the code after it runs when the loop comes
back.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..measure.account import Counters, InNext
from ..measure.device import Device
from ..session import CACHED, Rung, cut_of, made_under
from ..usercode import tree
from .caches import BatchCache, Caches
from .feed import Feed, Source
from .ranks.lockstep import Lockstep
from .steering import Steering
from .workers.delivery import Delivery

if TYPE_CHECKING:
    from .measurement import Measurement
    from .open_window import OpenWindow

#: Handed to the loop's iterator instead of a batch: the epoch ends here.
END = object()
#: Number of launches in a rank of a job that show what an epoch's start costs; after that the workers are kept.
_STARTUPS = 3

_T = TypeVar("_T")
#: Hands the loop batches, and returns a value.
Turn = Generator[Any, None, _T]


@dataclass(frozen=True)
class Loop:
    """A training loop as it is found."""

    feed: Feed  # the batches of its loader
    ordinal: int  # number of that loader among all that the script has iterated
    setting: Measurement  # the measurement of the process
    device: torch.device  # where it trains
    handed: int  # number of batches already yielded in the epoch
    writes_in_place: bool  # True if the loop writes into its batches


class Failure:
    """An exception of the loader, raised from the loop's ``next()`` without ending the measurement."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class LoopSide:
    """A training loop, its batches under each rung, and its device."""

    def __init__(self, loop: Loop, steering: Steering, lockstep: Lockstep) -> None:
        self.feed = loop.feed
        self.setting = loop.setting
        self.clock = loop.setting.clock
        self.device = Device(loop.device)
        self.steering = steering  # what feeds the loop, and how fast it is
        self.epochs = steering.epochs
        self.lockstep = lockstep  # decides with the other ranks of a distributed job what each step is for
        self.writes_in_place = loop.writes_in_place
        self.caches: Caches | None = None  # the cached batches, or None before a rung has needed them
        #: The delivery that the loop has just been handed, if it waited for this one only, as in training.
        self.plain: Delivery | None = None
        self.counters = Counters()  # what the kernel counts of this process's threads
        self.in_next = InNext(loop.setting.clock, self.counters)  # the loop's time in ``next()`` of its source
        self._training = loop.setting.training
        self._ordinal = loop.ordinal
        self._beside: dict[str, Source] = {}
        self._paused: list[Source] = []
        self._taken = 0
        self._data_ended = False  # True if the leading rank of a job must end an epoch without length

    # Sources

    def serve(self, rung: str, source: Source) -> None:
        """Take the batches of ``rung`` from ``source`` instead of the feed."""
        self._beside[rung] = source

    def dismiss(self, rung: str) -> None:
        """Undo :meth:`serve`."""
        self._beside.pop(rung, None)

    def source(self, rung: str) -> Source:
        return self._beside.get(rung, self.feed)

    def cache(self, rung: str) -> BatchCache:
        assert self.caches is not None
        return self.caches.host if rung == "host" else self.caches.device

    def only(self, source: Source | None) -> None:
        """Let only the workers of ``source`` begin batches (None: no workers): others would take the loop's cores.

        A paused source resumes when a batch is taken from it.
        """
        self._paused = [one for one in (self.feed, *self._beside.values()) if one is not source]
        for one in self._paused:
            one.pause()

    @property
    def draws_of_others(self) -> int:
        return self.setting.draws_of_others(self._ordinal)

    @property
    def drawn_ahead(self) -> bool:
        """True if a thread of the script draws the loader's batches ahead: the loop need not wait while it waits."""
        return self._training.drawn_ahead(self._ordinal)

    # Rungs

    def announce(self, rung: Rung) -> None:
        """Report whether a rung can be measured."""
        if not rung.available:
            self.steering.schedule.withdraw(rung.name)
        self.setting.send("rung", vars(rung))

    def unavailable(self, name: str, why: str) -> None:
        dissected = name == "raw" or cut_of(name) is not None
        prefix = "not separable: " if dissected and not why.startswith("not separable") else ""
        self.announce(Rung(name, False, prefix + why))

    # The other ranks

    def agree(self) -> None:
        """Agree with the other ranks on the loop's next step; the end of an epoch counts as one."""
        self.lockstep.comes_to(self.epochs.serial, self.epochs.handed)

    @property
    def granted(self) -> int:
        """Number of steps that this process has granted the other ranks and not taken itself."""
        return self.lockstep.left(self.epochs.serial, self.epochs.handed)

    # Batches

    def next_batch(self, rung: str, window: OpenWindow | None = None) -> Turn[Any]:
        """Return a batch as the loop gets it under ``rung``, or None if the workers sent one of another kind.

        It counts towards ``window``.
        """
        self.agree()
        if delay := self.lockstep.activity.delay_of(self.lockstep.rank):
            self.device.delay(delay)
        if rung in CACHED:
            return self.cache(rung).next()
        delivery = yield from self.take_fitting(rung)
        if delivery is None:
            return None
        if window is not None:
            window.takes(delivery)
        return self.own(delivery.batch, rung)

    def own(self, batch: Any, rung: str) -> Any:
        """Return a copy of the workers' shared batch if the loop writes into it, otherwise the batch itself."""
        return tree.clone_pinned(batch) if rung == "worker" and self.writes_in_place else batch

    def hand(self, batch: Any) -> Turn[bool]:
        """Give the loop a batch, ending its epoch first if that is due.

        Returns False if the loop did not come back for more in the same epoch.
        """
        if self._data_ended and self.granted <= 0:
            self._data_ended = False
            self.lockstep.end_epoch(self.epochs.serial, self.epochs.handed)
            yield from self.end_epoch()
        if self.epochs.complete:
            yield from self.end_epoch()
        self.agree()
        serial = self.epochs.serial
        if self._taken != 1 or self.epochs.handed == 0:
            self.plain = None
        self._taken = 0
        self.epochs.hand()
        self._training.drew(self._ordinal)
        for one in self._paused:  # a pause ends by itself if it is not renewed
            one.pause()
        yield batch
        self.plain = None
        return self.epochs.serial == serial

    def step(self, rung: str) -> Turn[bool]:
        """Give the loop its next batch under ``rung``; return False if the workers sent one of another kind."""
        batch = yield from self.next_batch(rung)
        if batch is None:
            return False
        yield from self.hand(batch)
        return True

    def take(self, rung: str) -> Turn[Delivery | None]:
        """Take the next delivery, of whatever rung, from the source of ``rung``.

        Returns None if the loader raised an error, or if the data was restarted, which ends an epoch without length: in
        a job with the leading rank's next step.

        Raises:
            OutOfTime: the time is over.
        """
        self.steering.check_time()
        source = self.source(rung)
        self._taken += 1
        if source in self._paused:
            self._paused.remove(source)
        try:
            self.in_next.asks()
            delivery = source.take()
            self.in_next.gets()
        except Exception as error:
            yield Failure(error)
            return None
        if delivery is None:
            rebuilt = False
            if self.epochs.length is None and self.lockstep.in_job:
                self._data_ended = self.lockstep.rank == 0  # all ranks end the epoch when the leading one does
            elif self.epochs.length is None:
                rebuilt = yield from self.end_epoch()
            if not rebuilt or source is not self.feed:
                source.renew()
        return delivery

    def take_fitting(self, rung: str) -> Turn[Delivery | None]:
        """Return the next delivery if it was made for ``rung`` throughout, otherwise None."""
        delivery = yield from self.take(rung)
        if delivery is None or not delivery.fits(made_under(rung)):
            return None
        self.plain = delivery if rung == "baseline" else None
        return delivery

    def end_epoch(self) -> Turn[bool]:
        """Tell the loop that its epoch is over; return True if the workers were restarted for the next one.

        The ranks of a job restart them together. A process on its own does so at any time: see :mod:`.climb`.
        """
        self.agree()
        self.epochs.end()
        ended = self.epochs.serial
        while self.epochs.serial == ended:
            yield END
        loader, as_it_is = self.feed.loader, self.feed.rung_switch.rung == "baseline" and self.feed not in self._paused
        fresh = loader.num_workers > 0 and not loader.persistent_workers
        if not (self.lockstep.in_job and fresh and as_it_is) or len(self.feed.findings.startups) >= _STARTUPS:
            return False
        self.feed.open()
        return True

"""Drive the training loop through its ``next()``: hand it batches, take batches from the workers.

Most methods are generators: each ``yield`` hands something to the loop, and the code after it runs when the loop comes
back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from ..loop.epochs import Epochs
from ..loop.training import Training
from .delivery import Delivery
from .feed import Feed, Source
from .lockstep import Lockstep

#: Handed to the loop's iterator instead of a batch: the epoch ends here.
END = object()
#: Maximum number of iterators built to measure startup; after that the workers are kept.
_STARTUPS = 3

Turn = Generator[Any, None, Any]


class Failure:
    """An exception of the loader, raised from the loop's ``next()`` without ending the measurement."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class LoopSide:
    """One loop over one loader. ``before_taking`` runs before each request for a batch.

    In a distributed job, ``lockstep`` decides with the other ranks what each step is for.
    """

    def __init__(
        self,
        feed: Feed,
        epochs: Epochs,
        training: Training,
        ordinal: int,
        before_taking: Callable[[], None],
        lockstep: Lockstep | None = None,
    ) -> None:
        self.feed = feed
        self.lockstep = lockstep or Lockstep()
        self.epochs = epochs
        self._training = training
        self._ordinal = ordinal
        self._before_taking = before_taking
        self._beside: dict[str, Source] = {}
        self._paused: list[Source] = []
        self._taken = 0
        self._data_ended = False  # True if the leading rank of a job must end an epoch without length
        #: The delivery that the loop has just been handed, if it waited for this one only, as in training.
        self.plain: Delivery | None = None

    def serve(self, rung: str, source: Source) -> None:
        """Take the batches of ``rung`` from ``source`` instead of the feed."""
        self._beside[rung] = source

    def dismiss(self, rung: str) -> None:
        """Undo :meth:`serve`."""
        self._beside.pop(rung, None)

    def source(self, rung: str) -> Source:
        return self._beside.get(rung, self.feed)

    def only(self, source: Source | None) -> None:
        """Let only the workers of ``source`` begin batches (None: no workers): others would take the loop's cores.

        A paused source resumes when a batch is taken from it.
        """
        self._paused = [one for one in (self.feed, *self._beside.values()) if one is not source]
        for one in self._paused:
            one.pause()

    def begin_epoch(self, length: int | None) -> None:
        self.epochs.begin(length)

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
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

    def agree(self) -> None:
        """Agree with the other ranks on the loop's next step; the end of an epoch counts as one."""
        self.lockstep.comes_to(self.epochs.serial, self.epochs.handed)

    @property
    def granted(self) -> int:
        """Number of steps that this process has granted the other ranks and not taken itself."""
        return self.lockstep.left(self.epochs.serial, self.epochs.handed)

    def take(self, rung: str) -> Generator[Any, None, Delivery | None]:
        """Take the next delivery, of whatever rung, from the source of ``rung``.

        Returns None if the loader raised an error, or if the data was restarted, which ends an epoch without length: in
        a job with the leading rank's next step.
        """
        self._before_taking()
        source = self.source(rung)
        self._taken += 1
        if source in self._paused:
            self._paused.remove(source)
        try:
            delivery = source.take()
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

    def take_fitting(self, rung: str) -> Generator[Any, None, Delivery | None]:
        """Return the next delivery if it was made under ``rung`` throughout, otherwise None."""
        delivery = yield from self.take(rung)
        if delivery is None or not delivery.fits(rung):
            return None
        self.plain = delivery if rung == "baseline" else None
        return delivery

    def end_epoch(self) -> Generator[Any, None, bool]:
        """Tell the loop that its epoch is over; return True if the workers were restarted for the next one."""
        self.agree()
        self.epochs.end()
        ended = self.epochs.serial
        while self.epochs.serial == ended:
            yield END
        loader = self.feed.loader
        fresh = loader.num_workers > 0 and not loader.persistent_workers
        if not fresh or len(self.feed.startups) >= _STARTUPS:
            return False
        self.feed.open()
        return True

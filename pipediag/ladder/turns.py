"""The training loop, seen from behind its ``next()``: handing it batches, taking them from the workers.

Everything here is a generator: each ``yield`` hands something to the loop, and what stands after it runs when the
loop comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from .delivery import Delivery
from .epochs import Epochs
from .feed import Feed, Source
from .training import Training

#: Handed to the loop's iterator in place of a batch: the epoch ends here.
END = object()
#: Iterators built for the sake of measuring their startup, before the workers are simply kept.
_STARTUPS = 3

Turn = Generator[Any, None, Any]


class Failure:
    """An exception of the loader's, to be raised from the loop's ``next()`` without ending the measurement."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Turns:
    """One loop over one loader. ``before_taking`` runs before the workers are asked for a batch."""

    def __init__(
        self,
        feed: Feed,
        epochs: Epochs,
        training: Training,
        ordinal: int,
        before_taking: Callable[[], None],
    ) -> None:
        self.feed = feed
        self.epochs = epochs
        #: Set while another thread takes batches from the feed, which must not be rebuilt then.
        self.feed_is_lent = False
        self._training = training
        self._ordinal = ordinal
        self._before_taking = before_taking
        self._beside: dict[str, Source] = {}
        self._steps_before_epoch = training.steps

    def serve(self, rung: str, source: Source) -> None:
        """Let the batches of ``rung`` come from ``source`` instead of the feed."""
        self._beside[rung] = source

    def dismiss(self, rung: str) -> None:
        """Undo :meth:`serve`."""
        self._beside.pop(rung, None)

    @property
    def alternate(self) -> bool:
        """Whether the loop is fed from several sources in turn, so that batches lie ready in those that rest."""
        return bool(self._beside)

    def source(self, rung: str) -> Source:
        return self._beside.get(rung, self.feed)

    def begin_epoch(self, length: int | None) -> None:
        self.epochs.begin(length)
        self._steps_before_epoch = self._training.steps

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        """Give the loop a batch, ending its epoch first when that is due.

        Returns False when the loop did not come back for more in the same epoch.
        """
        if self.epochs.complete:
            yield from self._end_epoch()
        serial = self.epochs.serial
        self.epochs.hand()
        self._training.drew(self._ordinal)
        yield batch
        return self.epochs.serial == serial

    def take(self, rung: str) -> Generator[Any, None, Delivery | None]:
        """The workers' next delivery, of whatever rung it is, from where those of ``rung`` come from.

        None when the data had to be begun anew, which ends an epoch without length.
        """
        self._before_taking()
        source = self.source(rung)
        try:
            delivery = source.take()
        except Exception as error:
            yield Failure(error)
            return None
        if delivery is None:
            rebuilt = False
            if self.epochs.length is None:
                rebuilt = yield from self._end_epoch()
            if not rebuilt or source is not self.feed:
                source.renew()
        return delivery

    def take_fitting(self, rung: str) -> Generator[Any, None, Delivery | None]:
        """The next delivery if it was made under ``rung`` throughout; None otherwise."""
        delivery = yield from self.take(rung)
        return delivery if delivery is not None and delivery.fits(rung) else None

    def await_training(self) -> Turn:
        """Plain batches until an optimizer has stepped in this epoch: the loop may be evaluating."""
        while self._training.steps == self._steps_before_epoch:
            self.feed.cell.switch("baseline")
            delivery = yield from self.take_fitting("baseline")
            if delivery is not None:
                yield from self.hand(delivery.batch)

    def _end_epoch(self) -> Generator[Any, None, bool]:
        """Tell the loop that its epoch is over; True when the workers were started anew for the next one."""
        self.epochs.end()
        ended = self.epochs.serial
        while self.epochs.serial == ended:
            yield END
        loader = self.feed.loader
        fresh = loader.num_workers > 0 and not loader.persistent_workers and not self.feed_is_lent
        if not fresh or len(self.feed.startups) >= _STARTUPS:
            return False
        self.feed.open()
        return True

"""Replace a loader's iterator: note how the script uses the loader, then hand the loop over to the climb."""

from __future__ import annotations

import signal
import traceback
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import AnalysisOver
from ..frames import users_text
from ..loop.iterators import NativeIterator
from ..loop.training import Place
from ..session import Loader
from ..usercode import tree
from ..usercode.contents import settings
from ..usercode.loops import loop_line
from .driven import Driven
from .feed import Feed, epoch_length
from .findings import Findings
from .loader_facts import describe
from .loop_side import END, Failure
from .single_steps import Observer
from .workers.delivery import Delivery

if TYPE_CHECKING:
    from .measurement import Measurement


class Track:
    """The facts about one loader: how it was used, and its climb once it is the one that trains."""

    def __init__(self, loader: DataLoader[Any], ordinal: int, place: Place, observer: Observer) -> None:
        self.ordinal = ordinal
        self.observer = observer
        self.place = place  # the latest: a loader may be iterated elsewhere before it trains
        self.line = loop_line(loader)  # of the user's loop, for display; empty if a library runs the loop
        self.dataset = loader.dataset
        self.loader = weakref.ref(loader)  # the latest one
        self.draws = 0
        self.waited = 0.0  # seconds in next(), without the first batch of each iterator
        self.writes_in_place = False
        self.nests = False  # whether its dataset draws from another loader with workers, in this process
        self.climb: Driven | None = None
        self.facts: Loader | None = None  # as it was when it gave its first batch
        self.findings = Findings()
        self.edited: dict[str, None] = {}  # settings of the dataset that the script has changed between epochs
        self._settings: dict[str, Any] = {}
        self._kind = (id(type(loader.dataset)), loader.batch_size, loader.num_workers)
        self._likeness = (id(type(loader.sampler)), id(type(loader.batch_sampler)), epoch_length(loader))

    @property
    def where(self) -> str:
        return self.place.where

    @property
    def has_workers(self) -> bool:
        return bool(self._kind[-1])

    @property
    def signature(self) -> tuple[Any, ...]:
        return (*self._kind, self.where)

    def look_at_dataset(self) -> None:
        """Note what the script has changed in the dataset since the last epoch began, of what its workers copy."""
        if self.has_workers:
            before, self._settings = self._settings, settings(self.dataset)
            now = self._settings.items()
            self.edited.update((name, None) for name, value in now if before.get(name, value) not in (value,))

    def is_like(self, other: Track) -> bool:
        """Return whether this may be the other rebuilt: same length and sampler types, iterated in the same place."""
        return self.signature == other.signature and self._likeness == other._likeness


class LoaderIterator(_BaseDataLoaderIter):  # type: ignore[misc]
    """The iterator that ``iter(loader)`` returns under an analysis.

    It is plain until its loader proves to be the training loader; from then on its batches come from the climb. If
    pipediag itself fails, they are plain again.
    """

    def __init__(self, loader: DataLoader[Any], track: Track, measurement: Measurement, native: NativeIterator) -> None:
        # The parent's constructor would draw a seed and begin the sampler; the native iterator does both.
        self._loader = loader
        self.track = track  # its loader's
        self._measurement = measurement
        self._feed = Feed(loader, native, measurement.clock, measurement.looks_inside, track.findings)
        self._handed = 0
        self._watched: tuple[Any, tuple[int, ...]] | None = None
        self._length: int | None = None  # of an epoch in which pipediag has failed, in batches, if it is known
        self._taken: Delivery | None = None  # not handed to the loop yet
        self.ended = False  # true after the last batch of the epoch
        if track.climb is None:
            with measurement.beside(track, starts=True):
                self._feed.open()  # as torch does: iter() starts the workers

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        try:
            with self._measurement.drawing(self.track):
                turn = self._turn()
        except AnalysisOver:
            raise
        except Exception as error:
            if raised_by_signal(error):
                raise
            self._go_on_plainly()
            self._measurement.give_up(error)
            turn = self._plain_turn()
        self.ended = turn is END
        if self.ended:
            raise StopIteration
        if isinstance(turn, Failure):
            raise users_text(turn.error)
        return turn

    def _turn(self) -> Any:
        """Return a batch, :data:`END`, or a :class:`Failure` of the script's own code; other errors are pipediag's."""
        self._measurement.check()
        if self._measurement.gave_up:
            return self._plain_turn()
        climb = self.track.climb
        self.track.observer.asks(self._measurement.training.device, self._feed if climb is None else climb.feed)
        if climb is None:
            if self._watched is not None:  # whether the loop has written into its last batch
                batch, before = self._watched
                self._watched, self.track.writes_in_place = None, tree.versions(batch) != before
            climb = self._measurement.promote(self.track, self._feed, self._handed)
        if climb is None:
            return self._observed_turn()
        turn = climb.next()
        if (plain := climb.loop_side.plain) is not None:  # a batch that came as in training
            self.track.observer.gets(plain)
        else:
            self.track.observer.breaks()
        return turn

    def _observed_turn(self) -> Any:
        if self.ended:
            return END
        waited = self._feed.waited
        try:
            with self._measurement.beside(self.track):
                delivery = self._feed.take()
        except Exception as error:
            return Failure(error)
        if self._handed:
            self.track.waited += self._feed.waited - waited
            self._measurement.waited(self._feed.waited - waited)
        if delivery is None:
            self.track.observer.breaks()
            self._measurement.training.ended(self.track.ordinal)
            return END
        self._taken = delivery
        if self._handed:
            self.track.observer.gets(delivery)
        else:
            self.track.observer.breaks()
        self._measurement.drew(self.track)
        if not self.track.writes_in_place:
            self._watched = (delivery.batch, tree.versions(delivery.batch))
        if self.track.facts is None:
            facts = describe(self._loader, self.track.line, tree.nbytes(delivery.batch), self.track.where)
            self.track.facts = replace(facts, nests=self.track.nests and not self.track.has_workers)
        self._handed += 1
        self._taken = None
        return delivery.batch

    def _plain_turn(self) -> Any:
        delivery, self._taken = self._taken, None
        if self.ended or self._handed == self._length:
            return END
        try:
            while delivery is None or delivery.rung != "baseline":  # others were made before pipediag failed
                delivery = self._feed.take()
                if delivery is None:
                    return END
        except Exception as error:
            return Failure(error)
        self._handed += 1
        return delivery.batch

    def _go_on_plainly(self) -> None:
        """Take the rest of the epoch as it comes, from whichever feed the loop has now."""
        climb = self.track.climb
        if climb is not None:
            self._feed = climb.feed
            self._handed, self._length = climb.steering.epochs.handed, climb.steering.epochs.length
        self._feed.rung_switch.set("baseline")
        self._feed.endless = self._length is not None  # its data may begin again before the epoch ends

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin an epoch; called by ``iter()`` of a loader with persistent workers."""
        self._measurement.check()
        self._handed, self.ended = 0, False
        if self.track.climb is not None:
            self.track.climb.begin_epoch(loader)
        else:
            with self._measurement.beside(self.track, starts=True):
                self._feed.renew()

    def _shutdown_workers(self) -> None:
        self._feed.close()

    def release(self) -> None:
        """Detach from the loader: one with persistent workers keeps its iterator, and must not keep this one."""
        if getattr(self._loader, "_iterator", None) is self:
            self._loader._iterator = None
            self._feed.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_feed" not in self.__dict__:
            raise AttributeError(name)
        climb = self.track.climb
        return getattr((self._feed if climb is None else climb.feed).native_iterator, name)

    @property
    def _finished(self) -> bool:
        """Whether the batches are used up, which torchdata's StatefulDataLoader asks in ``iter()``."""
        return bool(getattr(self._feed.native_iterator, "_finished", False))


def raised_by_signal(error: BaseException) -> bool:
    """Return whether the handler of a signal raised the error, wherever the signal came: it is the script's, or torch's
    of a dead worker."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))

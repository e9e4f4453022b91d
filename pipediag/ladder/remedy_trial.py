"""Serve the rungs of the remedies: feed the training loop from a loader under a remedy.

That loader has the user's settings but its own workers; the user's loader is not touched. Its iterator is kept between
windows, as the measured feed's is.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..analysis.thresholds import GATE
from ..analysis.trials.remedy import outcome, remedy_of, why_no_handoff
from ..clock import Clock
from ..errors import UsageError
from ..loop.copies import detached_twin, require_torchs_batches, wrap_sampler
from ..loop.iterables import is_plain
from ..loop.wrappers import EndlessSampler, FirstItems
from ..session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, REMEDIES, Keeping, Remedy, Session
from ..usercode.attributes import has_attribute
from .feed import Source
from .loader_facts import FINISHED
from .loop_side import LoopSide
from .workers.delivery import NO_COST, Delivery

if TYPE_CHECKING:
    from ..memo.loader import CachedLoader
    from ..remedy import OffloadedLoader

#: Returns a context within which an analysis ignores iterated loaders.
Aside = Callable[[], AbstractContextManager[None]]

#: Samples to certify on: at most, at least, and in a pass after the one that made the certificate.
_MOST, _LEAST, _AGAIN = 64, 8, 16
#: Maximum seconds for making them, each twice, and maximum share of the trial's time; ``_LEAST`` are always made.
_CERTIFYING, _CERTIFYING_SHARE = 30.0, 0.25
#: Maximum number of batches that are ready on the device when the loop comes back to the rung.
_READY = 4
#: A batch that arrives within this many seconds was already queued.
_AT_ONCE = 2e-3
#: Maximum bytes that are kept for a trial; one batch for each worker is always kept.
_KEPT_BYTES = 1 << 30


class RemediedFeed(Source):
    """The batches of an offloaded loader, for a climb that serves ``rung``.

    When they were made, and what its workers do now, cannot be seen.
    """

    def __init__(self, rung: str, offloaded: OffloadedLoader, backlog: int, aside: Aside, clock: Clock) -> None:
        super().__init__(clock)
        self._rung = rung
        self._backlog = backlog
        self._pids: list[int] = []
        self._offloaded = offloaded
        self._aside = aside
        self._clock = clock
        self._iterator: Iterator[Any] | None = None

    @property
    def ready(self) -> int:
        return int(getattr(self._iterator, "ready", 0))  # on a CPU it cannot be seen

    @property
    def backlog(self) -> int:
        return self._backlog

    @property
    def worker_pids(self) -> list[int]:
        return self._pids

    def pause(self) -> None:
        """Do nothing: its workers fill their queues and then idle."""

    @property
    def workers(self) -> int:
        return int(self._offloaded.num_workers)

    def take(self) -> Delivery | None:
        """Return the next batch, on the device, or None if the data is used up.

        An error here is not the script's: the delivery says why the rung cannot be served.
        """
        asked = self._clock.now()
        try:
            if self._iterator is None:
                self._iterator = self._begun()
            batch = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:
            self.close()
            return Delivery(None, self._rung, False, NO_COST, 0, f"under the remedy: {type(error).__name__}: {error}")
        arrived = self._clock.now()
        self.waited += arrived - asked
        self.late = self.waited  # when it was made is not known
        lay_ready = arrived - asked < _AT_ONCE
        return Delivery(batch, self._rung, True, NO_COST, 0, made=-math.inf if lay_ready else arrived)

    def renew(self) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

    def _begun(self) -> Iterator[Any]:
        before = {process.pid for process in multiprocessing.active_children()}
        with self._aside():
            iterator = iter(self._offloaded)
        started = {process.pid for process in multiprocessing.active_children()} - before
        self._pids = sorted(pid for pid in started if pid is not None)
        return iterator


class Trial:
    """A trial of a remedy on the measured loader.

    Args:
        rung: of the remedy: ``remedied`` moves transforms, ``decoded`` JPEG decoding too, ``loaded-once`` keeps
            samples, ``hand-off`` only hands batches over in another way.
        peak_before: bytes of device memory that the loop takes at most without a remedy; None if unknown.
        seconds: time for preparing and measuring it.

    Attributes:
        rung: as given.
        remedy: the result, as it goes into the session.
        feed: serves the remedied batches, or None if the remedy cannot be tried.
    """

    def __init__(self, rung: str, loop_side: LoopSide, peak_before: int | None, seconds: float) -> None:
        loader, device, setting = loop_side.feed.loader, loop_side.device, loop_side.setting
        session, aside = setting.session, setting.aside
        known, caches = remedy_of(session, rung), rung == LOADED_ONCE
        self.rung = rung
        self.feed: RemediedFeed | None = None
        self._device = device
        self._peak_before = peak_before
        twin = detached_twin(loader)
        first = wrap_sampler(twin, partial(FirstItems, number=2 * max(1, loader.num_workers))) if caches else None
        wrap_sampler(twin, partial(EndlessSampler, endless=loop_side.feed.endless))
        where, options = device.torch_device, {}
        make: Callable[[], _Made]
        if first is not None:
            moves = (result := outcome(session, REMEDIED)) is not None and result.applied
            make = partial(_loaded_once, twin, first, where, moves)
            options = {} if moves else {"transforms": False}
        elif rung == HANDED_OVER:
            make, options = partial(_handed_over, loader, twin, where, session), {"transforms": False}
        else:
            decodes = rung == DECODED
            make = partial(_offloaded, twin, where, _samples(session, rung, seconds), decodes)
            options = {"approximate": True} if decodes else {}
        with aside():
            self.remedy, offloaded = _or_why_not(loader, where, make)
        self.remedy.memory_bytes = known.memory_bytes if known else None
        if offloaded is not None and not self.remedy.why_not:
            from ..remedy.edit import edit_for
            from ..streams.feed import fetches_ahead

            self.remedy.edit = edit_for(loader, where, cached=caches, **options)
            offloaded.feed.ahead = fetches_ahead(loader)  # EndlessSampler does not prevent it
            self.feed = RemediedFeed(rung, offloaded, loop_side.feed.backlog + _READY, aside, loop_side.clock)
        device.forget_peak()  # trying the remedy took memory that training does not need

    def send(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        send(REMEDIES[self.rung], asdict(self.remedy))

    def measured(self) -> None:
        """Note how much memory the remedy takes, after a window under it."""
        peak = self._device.peak_bytes()
        if peak is not None and self._peak_before is not None:
            self.remedy.memory_bytes = max(0, peak - self._peak_before)


def _samples(session: Session, rung: str, seconds: float) -> int:
    """Return the number of samples to certify on, from the seconds that a worker takes for one."""
    if remedy_of(session, rung) is not None:
        return _AGAIN
    most = min(_CERTIFYING, _CERTIFYING_SHARE * seconds)
    each = session.inside.whole.wall_ms / 1000 if session.inside is not None else 0.0
    return max(_LEAST, min(_MOST, int(most / max(2 * each, 1e-6))))


class _NotTried(Exception):
    """Error: the remedy cannot be tried, for the given reason."""


#: A remedy, and the loader under it.
_Made = tuple[Remedy, "OffloadedLoader"]


def _or_why_not(
    loader: DataLoader[Any], device: torch.device, make: Callable[[], _Made]
) -> tuple[Remedy, OffloadedLoader | None]:
    """Return what ``make`` returns, or a remedy that says why it cannot be tried. No error here is the script's."""
    try:
        if is_plain(loader):
            raise _NotTried(FINISHED)
        require_torchs_batches(loader)
        return make()
    except (_NotTried, UsageError) as reason:
        why = str(reason)
    except Exception as error:
        why = f"trying it failed with {type(error).__name__}: {error}"
    return Remedy(device=str(device), why_not=why), None


def _offloaded(loader: DataLoader[Any], device: torch.device, samples: int, decodes: bool) -> _Made:
    from ..remedy import offload
    from ..remedy.finding import why_stream_stays
    from ..remedy.summary import told
    from ..replay.decode.decoding import why_not

    if why := why_stream_stays(loader) or (why_not(device) if decodes else ""):
        raise _NotTried(why)
    offloaded = offload(loader, device, samples=samples, approximate=decodes)
    if decodes and offloaded.plan.undecoded:
        raise _NotTried(offloaded.plan.undecoded)
    return told(offloaded), offloaded


def _loaded_once(twin: DataLoader[Any], kept: FirstItems, device: torch.device, moves: bool) -> _Made:
    """Return the loader with what its first batches read kept.

    ``moves`` is True if transforms move to the device too; ``kept`` is the twin's sampler.
    """
    from ..memo.loader import cache
    from ..memo.system import free_memory
    from ..remedy import handoff, offload
    from ..remedy.summary import told, told_without_moves

    if isinstance(twin.dataset, IterableDataset):
        raise _NotTried("the samples of an iterable dataset have no index, so a trial cannot repeat the first ones")
    why = handoff.why_not(twin, device) if not moves and device.type == "cuda" and twin.num_workers else ""
    if why:
        raise _NotTried(why)
    free, cached = free_memory(), cache(twin)
    kept.number = _fill(cached, kept.number)
    if not cached.memo.kept:
        raise _NotTried(cached.plan)
    length = len(twin.dataset) if has_attribute(type(twin.dataset), "__len__") else 0
    needed = cached.memo.kept * max(1.0, length / max(1, kept.samples))
    keeping = Keeping(cached.memo.kept_as, int(needed), free)
    if keeping.fits < GATE:
        raise _NotTried(f"only {keeping.fits:.1%} of the samples fit into memory")
    offloaded = offload(cached, device, samples=_AGAIN, transforms=moves)
    remedy = (told if moves else told_without_moves)(offloaded, cached=twin)
    remedy.keeping = keeping
    return remedy, offloaded


def _fill(cached: CachedLoader, most: int) -> int:
    """Keep what the first batches read; return the number of batches, at most ``most``."""
    from ..loop.copies import with_settings

    number = 0
    batches = iter(with_settings(cached, persistent_workers=False))
    for number, _ in enumerate(itertools.islice(batches, most), 1):
        if cached.memo.kept > _KEPT_BYTES and number >= cached.num_workers:
            break
    return max(1, number)


def _handed_over(loader: DataLoader[Any], twin: DataLoader[Any], device: torch.device, session: Session) -> _Made:
    """Return the hand-off alone, with ``twin``'s batches."""
    from ..remedy import offload
    from ..remedy.handoff import why_not
    from ..remedy.summary import told_without_moves

    why = why_no_handoff(session) or why_not(loader, device)
    if why:
        raise _NotTried(why)
    handed = offload(twin, device, transforms=False)
    return told_without_moves(handed), handed

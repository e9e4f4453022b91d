"""Serve the rungs ``remedied`` and ``hand-off``: feed the training loop from a loader under a remedy.

That loader has the user's settings but its own workers; the user's loader is not touched. Its iterator is kept between
windows, as the measured feed's is.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from ..analysis.handoff import why_no_handoff
from ..analysis.remedy import remedy_of
from ..errors import UsageError
from ..loop.copies import detached_twin, wrap_sampler
from ..loop.wrappers import EndlessSampler
from ..measure.clock import Clock
from ..measure.device import Device
from ..session import DECODED, HANDED_OVER, REMEDIES, Remedy, Session
from .delivery import NO_COST, Delivery

if TYPE_CHECKING:
    from ..remedy import OffloadedLoader

#: Returns a context within which an analysis ignores iterated loaders.
Aside = Callable[[], AbstractContextManager[None]]

#: Samples to certify on: at most, at least, and in a pass after the one that made the certificate.
_MOST, _LEAST, _AGAIN = 64, 8, 16
#: Maximum seconds for making them, each twice, unless that leaves fewer than ``_LEAST``.
_CERTIFYING = 30.0
#: Maximum number of batches that are ready on the device when the loop comes back to the rung.
_READY = 4
#: A batch that arrives within this many seconds was already queued.
_AT_ONCE = 2e-3


class RemediedFeed:
    """The batches of an offloaded loader, as a :class:`Source` for a climb that serves ``rung``."""

    def __init__(self, rung: str, offloaded: OffloadedLoader, backlog: int, aside: Aside, clock: Clock) -> None:
        self._rung = rung
        self.waited = 0.0
        self.stalled = 0.0  # not known here
        self.backlog = backlog
        self.worker_pids: list[int] = []
        self._offloaded = offloaded
        self._aside = aside
        self._clock = clock
        self._iterator: Iterator[Any] | None = None

    @property
    def ready(self) -> int:
        return int(getattr(self._iterator, "ready", 0))  # on a CPU it cannot be seen

    @property
    def at_work(self) -> int:
        return 0  # cannot be seen

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
        lay_ready = arrived - asked < _AT_ONCE
        return Delivery(batch, self._rung, True, NO_COST, 0, made=-math.inf if lay_ready else arrived)

    def renew(self) -> None:
        """Restart the data."""
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
        self.worker_pids = sorted(pid for pid in started if pid is not None)
        return iterator


class Trial:
    """A trial of a remedy on the measured loader; ``session`` holds what is known so far.

    Args:
        rung: of the remedy: ``remedied`` moves transforms, ``decoded`` JPEG decoding too, ``hand-off``
            nothing.
        peak_before: bytes of device memory that the loop takes at most without a remedy; None if unknown.

    Attributes:
        rung: as given.
        remedy: the result, as it goes into the session.
        feed: serves the remedied batches, or None if the remedy cannot be tried.
    """

    def __init__(
        self,
        rung: str,
        loader: DataLoader[Any],
        endless: bool,
        device: Device,
        aside: Aside,
        clock: Clock,
        session: Session,
        peak_before: int | None = None,
    ) -> None:
        known = remedy_of(session, rung)
        self.rung = rung
        self.feed: RemediedFeed | None = None
        self._device = device
        self._peak_before = peak_before
        twin = detached_twin(loader)
        wrap_sampler(twin, EndlessSampler).endless = endless
        with aside():
            if rung == HANDED_OVER:
                self.remedy, offloaded = _handed_over(loader, twin, device.torch_device, session)
                options = {"transforms": False}
            else:
                decodes = rung == DECODED
                self.remedy, offloaded = _offloaded(twin, device.torch_device, _samples(session, rung), decodes)
                options = {"approximate": True} if decodes else {}
        self.remedy.memory_bytes = known.memory_bytes if known else None
        if offloaded is not None:
            from ..remedy.edit import edit_for
            from ..remedy.streams.feed import fetches_ahead

            self.remedy.edit = edit_for(loader, device.torch_device, **options)
            offloaded.feed.ahead = fetches_ahead(loader)  # EndlessSampler does not prevent it
            in_flight = int(loader.num_workers * (loader.prefetch_factor or 1))
            self.feed = RemediedFeed(rung, offloaded, in_flight + _READY, aside, clock)
        device.forget_peak()  # trying the remedy took memory that training does not need

    def send(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        """Send the remedy as it is now."""
        send(REMEDIES[self.rung], asdict(self.remedy))

    def measured(self) -> None:
        """Note how much memory the remedy takes, after a window under it."""
        peak = self._device.peak_bytes()
        if peak is not None and self._peak_before is not None:
            self.remedy.memory_bytes = max(0, peak - self._peak_before)


def _samples(session: Session, rung: str) -> int:
    """Return the number of samples to certify on, from the seconds that a worker takes for one."""
    if remedy_of(session, rung) is not None:
        return _AGAIN
    each = session.inside.whole.wall_ms / 1000 if session.inside is not None else 0.0
    return max(_LEAST, min(_MOST, int(_CERTIFYING / max(2 * each, 1e-6))))


def _offloaded(
    loader: DataLoader[Any], device: torch.device, samples: int, decodes: bool
) -> tuple[Remedy, OffloadedLoader | None]:
    try:
        from ..remedy import offload
        from ..remedy.summary import told

        offloaded = offload(loader, device, samples=samples, approximate=decodes)
    except UsageError as unusable:
        return Remedy(device=str(device), why_not=str(unusable)), None
    except Exception as error:  # not an error of the script
        return Remedy(device=str(device), why_not=f"trying it failed with {type(error).__name__}: {error}"), None
    if decodes and offloaded.plan.undecoded:
        return Remedy(device=str(device), why_not=offloaded.plan.undecoded), None
    remedy = told(offloaded)
    return remedy, None if remedy.why_not else offloaded


def _handed_over(
    loader: DataLoader[Any], twin: DataLoader[Any], device: torch.device, session: Session
) -> tuple[Remedy, OffloadedLoader | None]:
    """Return the hand-off alone, with ``twin``'s batches, or the reason why it is not tried."""
    try:
        from ..remedy import offload
        from ..remedy.handoff import why_not
        from ..remedy.summary import told_of_handoff

        why = why_no_handoff(session) or why_not(loader, device)
        if why:
            return Remedy(device=str(device), why_not=why), None
        handed = offload(twin, device, transforms=False)
        return told_of_handoff(handed), handed
    except UsageError as unusable:
        return Remedy(device=str(device), why_not=str(unusable)), None
    except Exception as error:  # not an error of the script
        return Remedy(device=str(device), why_not=f"trying it failed with {type(error).__name__}: {error}"), None

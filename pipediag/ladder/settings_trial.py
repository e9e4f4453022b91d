"""Serve the rungs ``settings:k``: feed the training loop from clones of its loader with other settings.

Each clone has its own workers. Between its windows they idle: torch asks a worker for another batch only after one was
taken. :mod:`pipediag.analysis.trials.settings` selects the settings to try, and
:mod:`pipediag.analysis.trials.halving` the ones to measure next.
"""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ..analysis.trials.halving import FIRST_LOOK, next_settings
from ..analysis.trials.settings import Candidates, Memory, candidates, current, left_out
from ..frames import in_one_line
from ..loop.copies import detached_twin, with_own_generators
from ..measure.machine import free_bytes, own_bytes, shared_bytes
from ..measure.schedule import Schedule
from ..measure.window import window_seconds, window_steps
from ..session import Knobs, LoaderSettings, Rung, Session, settings_of, settings_rung
from ..usercode.randomness import undisturbed
from .feed import Feed
from .workers.delivery import NO_COST, Delivery

#: Seconds for starting a worker, if the user's loader has none to measure this on.
_START = 0.1
#: Minimum length of a trial in seconds.
_LEAST = 1.0


class ClonedFeed(Feed):
    """The batches of a clone of another feed's loader, tagged with the clone's rung.

    An error here is not the script's: the delivery says why the rung cannot be served.
    """

    def __init__(self, rung: str, original: Feed, settings: LoaderSettings, patience: float) -> None:
        clone = cloned(original.loader, settings, patience)
        super().__init__(clone, original._native, original._clock, looks_inside=False, timeout=patience)
        self.endless = original.endless
        self._rung = rung
        self._trouble = ""

    @property
    def startup(self) -> float | None:
        """Seconds from ``iter()`` to the first batch, or None before that."""
        return self.findings.startups[0].seconds if self.findings.startups else None

    def open(self) -> None:
        # A user-defined sampler may draw from the process-wide generators.
        with undisturbed(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores are intended
            super().open()

    def take(self) -> Delivery | None:
        if not self._trouble:
            try:
                delivery = super().take()
                if delivery is not None:
                    delivery.rung = self._rung
                return delivery
            except Exception as error:
                self._trouble = in_one_line(error)
                self.close()
        return Delivery(None, self._rung, False, NO_COST, 0, self._trouble)

    def renew(self) -> None:
        if not self._trouble:
            super().renew()


class SettingsTrial:
    """The clones of one pass over the script, for the settings that are still being compared.

    ``feeds`` maps rungs to their batches; it is empty if there is nothing to try or the comparison is decided.
    """

    def __init__(self, feed: Feed, session: Session, seconds: float) -> None:
        self._session = session
        running = {settings_of(rung) for rung in next_settings(session)}
        tried = session.knobs.tried if session.knobs is not None else []
        self.feeds = {
            settings_rung(number): ClonedFeed(settings_rung(number), feed, one, seconds)
            for number, one in enumerate(tried, 1)
            if number in running
        }

    def schedule(self) -> Schedule:
        """Return the schedule of the comparison, whose rounds follow the ladder's."""
        begins = not any(settings_of(window.rung) for window in self._session.windows)
        return Schedule(("baseline", *self.feeds), self._session, self._next, begins)

    def _next(self, session: Session) -> list[str]:
        """Return the rungs of the next round; end the workers of those that were dropped."""
        running = next_settings(session)
        for rung, feed in self.feeds.items():
            if rung not in running:
                feed.close()
        return running

    def started(self, rung: str) -> Knobs:
        """Return the settings tried, with the startup time under ``rung`` filled in."""
        knobs, number = self._session.knobs, settings_of(rung)
        assert knobs is not None and number is not None, "only what was proposed is tried"
        knobs.tried[number - 1].startup = self.feeds[rung].startup
        return knobs

    def close(self) -> None:
        """End all workers. Safe to call twice."""
        for feed in self.feeds.values():
            feed.close()


def cloned(loader: DataLoader[Any], settings: LoaderSettings, patience: float) -> DataLoader[Any]:
    """Return a loader like the user's with other settings, whose iteration does not disturb the user's.

    Its ``timeout`` is ``patience`` seconds: code that has never run in a worker may hang there.
    """
    twin = with_own_generators(detached_twin(loader))
    twin.__dict__.update(
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        pin_memory=settings.pin_memory,
        timeout=patience if settings.num_workers else 0,
    )
    return twin


def proposal(feed: Feed, session: Session, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings to try in ``seconds`` as session events; nothing if the loop does not certainly starve.

    Settings without enough memory or time are reported as unavailable rungs.
    """
    found = candidates(session)
    why_not = found.why_not
    if not why_not and not found.settings:
        return
    beyond = _too_long(found, session, seconds) if found.settings else []
    if not why_not and (seconds < _LEAST or len(beyond) == len(found.settings)):
        why_not = "the ladder left no time for it; give a longer budget"
    if why_not:
        yield "knobs", {"tried": [], "why_not": why_not}
        return
    yield "knobs", {"tried": [vars(one) for one in found.settings]}
    refused = {
        **dict.fromkeys(beyond, "there was no time for it; give a longer budget"),
        **left_out(found.settings, _memory(feed, session)),
    }
    for position, why in sorted(refused.items()):
        yield "rung", vars(Rung(settings_rung(position + 1), False, why))


def _memory(feed: Feed, session: Session) -> Memory:
    """Return the current memory figures; without workers, the process itself is the upper bound for one worker."""
    return Memory(own_bytes(feed.worker_pids or [os.getpid()]), session.batch_bytes, free_bytes(), shared_bytes())


def _too_long(found: Candidates, session: Session, seconds: float) -> list[int]:
    """Return the positions of the settings whose first look does not fit into the time left by those before them."""
    assert session.loader is not None, "there are no candidates without a loader"
    now = current(session.loader)
    target = window_seconds(seconds, 1 + len(found.settings))
    left = seconds - FIRST_LOOK * _window(now, found.base, target)
    beyond = []
    for position, (one, ms) in enumerate(zip(found.settings, found.steps, strict=True)):
        needed = _startup(one, session) + FIRST_LOOK * _window(one, ms, target)
        if needed > left:
            beyond.append(position)
        else:
            left -= needed
    return beyond


def _window(one: LoaderSettings, ms: float, target: float) -> float:
    """Return the seconds of a window and of settling before it, at ``ms`` milliseconds per step."""
    steps = one.num_workers * (one.prefetch_factor or 1) + max(1, one.num_workers)
    return (steps + window_steps(ms / 1000, target, one.num_workers)) * ms / 1000


def _startup(one: LoaderSettings, session: Session) -> float:
    """Return the seconds until the first batch, estimated from the startup of the loader's own workers."""
    seen = [startup.seconds for startup in session.startups if not startup.renewed]
    workers = session.workers
    if not workers or not seen:
        return _START * one.num_workers
    return statistics.median(seen) * max(1.0, one.num_workers / workers)

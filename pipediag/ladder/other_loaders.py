"""Record what the loop's own thread spends on other loaders that it starts between two training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ..clock import Clock
from ..measure.account import Counters, Times
from ..session import OtherStart

if TYPE_CHECKING:
    from .loader_iterator import Track

#: Maximum number of starts recorded in one pass.
_MOST = 200


class Spent(NamedTuple):
    """Seconds of a thread, and its times as far as the kernel counts them."""

    seconds: float
    worked: Times

    def plus(self, seconds: float, worked: Times) -> Spent:
        return Spent(self.seconds + seconds, Times(self.worked.cpu + worked.cpu, self.worked.queue + worked.queue))

    def since(self, before: Spent) -> Spent:
        return Spent(self.seconds - before.seconds, self.worked.since(before.worked))


class OtherLoaders:
    """A recorder of other loaders' starts; ``send`` gets each when the loop trains again."""

    def __init__(self, clock: Clock, attempt: int, send: Callable[[OtherStart], None]) -> None:
        #: What the loop's thread has spent so far in ``iter()`` and ``next()`` of loaders between the steps, from their
        #: starts on.
        self.spent = Spent(0.0, Times(0.0, 0.0))
        #: Seconds in ``next()`` of loaders that go on with the training, such as one for unlabelled batches.
        self.beside = 0.0
        self._clock = clock
        self._counters = Counters()
        self._attempt = attempt
        self._send = send
        self._open: dict[Track, tuple[OtherStart, int]] = {}  # with the number of its earlier startups
        self._sent = 0

    @contextmanager
    def used(self, track: Track, step: int, starts: bool) -> Iterator[None]:
        """Count what happens within the context for a loader; ``step`` is the number of training batches so far.

        What was started before that step is not counted: a loader that goes on with the training is part of its steps.
        """
        self.trains(step)
        if starts and track not in self._open:
            loader = track.loader()
            workers, kept = (loader.num_workers, loader.persistent_workers) if loader is not None else (0, False)
            start = OtherStart(track.where, step, 0.0, 0.0, workers, kept, self._attempt)
            self._open[track] = start, len(track.findings.startups)
        began = self._clock.now()
        if track not in self._open:
            try:
                yield
            finally:
                self.beside += self._clock.now() - began
            return
        before = self._counters.here()
        try:
            yield
        finally:
            seconds, after = self._clock.now() - began, self._counters.here()
            self._open[track][0].seconds += seconds
            worked = after.since(before) if after is not None and before is not None else Times(0.0, 0.0)
            self.spent = self.spent.plus(seconds, worked)

    def trains(self, step: int) -> None:
        """Note that ``step`` training batches have been drawn: what was started before the latest of them is over."""
        for track in [track for track, (start, _) in self._open.items() if start.step < step]:
            start, before = self._open.pop(track)
            findings = track.findings
            if len(findings.startups) > before:
                latest = findings.startups[-1]
                start.kept = min(start.seconds, max(latest.launch, latest.ready) + findings.shutdown)
            if self._sent < _MOST:
                self._sent += 1
                self._send(start)

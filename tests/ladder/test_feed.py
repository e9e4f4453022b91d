"""The startup of a loader, on a clock that the test moves: it lasts until the first batch is made, not taken."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from pipediag.ladder.feed import Feed
from pipediag.ladder.workers.delivery import NO_COST, Delivery, Notes
from pipediag.ladder.workers.rung_switch import PAUSE, RungSwitch
from pipediag.session import Startup

from ..clock import Clock
from ..things import Transformed


class Iterator:
    """torch's iterator: starting it takes ``launch`` seconds, and its batches are made ``after`` seconds from then."""

    def __init__(self, clock: Clock, launch: float, after: list[float], ready: float | None) -> None:
        self._clock, self._after, self._ready = clock, list(after), ready
        self.ended = 0.0
        clock.seconds += launch
        self.began = clock.seconds

    def __next__(self) -> Delivery:
        if not self._after:
            self._clock.seconds += 3.0  # torch ends the workers before it says that there are no more batches
            raise StopIteration
        made = self.began + self._after.pop(0)
        self._clock.seconds = max(self._clock.seconds, made)
        notes = Notes(ready=self.began + self._ready) if self._ready is not None else None
        self._ready = None
        return Delivery(None, "baseline", True, NO_COST, 0, notes=notes, made=made)

    def _reset(self, loader: Any) -> None:
        self.began = self._clock.seconds
        self._after += [0.25, 0.5]

    def _shutdown_workers(self) -> None:
        """They have ended already."""


def feed_of(clock: Clock, launch: float, after: list[float], ready: float | None = None, **options: Any) -> Feed:
    loader = DataLoader(Transformed(), batch_size=4, num_workers=2, **options)
    return Feed(loader, lambda loader: Iterator(clock, launch, after, ready), clock)


@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_from_iter_until_the_first_batch_is_there(pause: float) -> None:
    """If the loop prepares for a minute between ``iter()`` and ``next()``, that is not part of the startup."""
    clock = Clock(100.0)
    feed = feed_of(clock, 0.5, [2.0, 2.25], ready=1.5)
    feed.open()
    clock.seconds += pause
    assert feed.take() is not None and feed.take() is not None
    assert feed.findings.startups == [Startup(2.5, launch=0.5, ready=2.0)], "only once"
    assert (feed.waited, feed.stalled) == (0.0 if pause else 2.25, 0.0)


def test_clocks_that_disagree_give_no_negative_time() -> None:
    feed = feed_of(Clock(100.0), 0.5, [-9.0])
    feed.take()
    assert feed.findings.startups[0].seconds == 0.0


@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_without_workers_nothing_is_made_before_it_is_asked_for(pause: float) -> None:
    clock = Clock(100.0)

    class Slow(Transformed):
        def __getitem__(self, index: int) -> Any:
            clock.seconds += 0.25
            return super().__getitem__(index)

    feed = Feed(DataLoader(Slow(), batch_size=4), DataLoader._get_iterator, clock)
    feed.open()
    clock.seconds += pause
    assert feed.take() is not None and feed.take() is not None
    assert feed.findings.startups == [Startup(1.0, launch=0.0, ready=0.0)]


def test_persistent_workers_are_renewed() -> None:
    clock = Clock(100.0)
    feed = feed_of(clock, 0.5, [2.0], ready=1.5, persistent_workers=True)
    assert feed.take() is not None
    assert feed.take() is None, "the epoch is over"
    feed.renew()
    clock.seconds += 60.0
    assert feed.take() is not None and feed.take() is not None
    assert feed.findings.startups == [Startup(2.5, launch=0.5, ready=2.0), Startup(0.25, renewed=True)]


def test_workers_that_are_restarted_for_the_next_epoch() -> None:
    """Ending them takes 3 s, which count for the next startup, also that of another iterator over the same data."""
    clock = Clock(100.0)
    feed = feed_of(clock, 0.5, [2.0], ready=1.5)
    assert feed.take() is not None and feed.take() is None
    again = Feed(feed.loader, feed._native, clock, findings=feed.findings)
    again.take()
    assert feed.findings.startups == [
        Startup(2.5, launch=0.5, ready=2.0),
        Startup(2.5, launch=0.5, ready=2.0, shutdown=3.0),
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_of_the_sampler_is_kept_from_one_iterator_to_the_next(workers: int) -> None:
    clock = Clock(100.0)

    class Slow:
        def __iter__(self) -> Any:
            for number in range(2):
                clock.seconds += 0.25
                yield [number]

    slow: Any = Slow()
    loader = DataLoader(Transformed(), batch_sampler=slow, num_workers=workers)
    feed = Feed(loader, DataLoader._get_iterator, clock)
    assert feed.take() is not None and feed.take() is not None
    assert feed.sampling == 0.5
    assert feed.findings.startups[0].sampler == (0.5 if workers else 0.0), "workers get two batches ahead"
    feed.renew()
    assert feed.take() is not None
    assert feed.sampling == (1.0 if workers else 0.75)
    feed.close()


class TestPausing:
    """When the feed pauses and resumes its rung switch."""

    @pytest.fixture
    def paused(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The times at which the feed asked for a pause, since it last resumed."""
        told: list[float] = []
        monkeypatch.setattr(RungSwitch, "pause", lambda rung_switch: told.append(self.clock.seconds))
        monkeypatch.setattr(RungSwitch, "resume", lambda rung_switch: told.clear())
        return told

    def feed(self) -> Feed:
        self.clock = Clock(100.0)
        return feed_of(self.clock, 0.5, [2.0, 2.25, 2.5])

    def test_is_renewed_long_before_it_ends(self, paused: list[float]) -> None:
        """The loop asks for a pause with every batch, perhaps a thousand times per second."""
        feed = self.feed()
        began = self.clock.seconds
        for _ in range(81):
            feed.pause()
            self.clock.seconds += PAUSE / 80
        assert [told - began for told in paused] == [0.0, 21 * PAUSE / 80, 42 * PAUSE / 80, 63 * PAUSE / 80]

    def test_ends_when_a_batch_is_taken(self, paused: list[float]) -> None:
        feed = self.feed()
        feed.take()
        feed.pause()
        assert len(paused) == 1
        feed.take()
        assert paused == []
        feed.pause()
        assert len(paused) == 1, "without delay, however recent the last pause was"

    def test_ends_with_the_workers(self, paused: list[float]) -> None:
        feed = self.feed()
        feed.take()
        feed.rung_switch.begin(1)
        feed.pause()
        feed.close()
        assert paused == [] and feed.at_work == feed.rung_switch.at_work == 0

    def test_survives_a_change_of_rungs(self) -> None:
        """The loop may switch from one cached rung to another before the pause is renewed."""
        feed = self.feed()
        feed.take()
        for rung in ("device", "host"):
            feed.rung_switch.set(rung)
            feed.pause()
            assert feed.rung_switch._is_paused()
        feed.take()
        assert not feed.rung_switch._is_paused()

    def test_workers_at_work(self) -> None:
        feed = self.feed()
        feed.rung_switch.begin(1)
        assert feed.at_work == 0, "there are none"
        feed.take()
        feed.rung_switch.begin(1)
        assert feed.at_work == 1

"""Stops of this process: which are noticed while it waits for a batch, and in which batches they lie."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from pipediag.clock import time
from pipediag.measure.stops import Stop, Stops

from ..clock import Clock


class Waiting:
    """An iterator that waits as torch's does; ``takes`` are the seconds of its waits, of which one finds a batch."""

    def __init__(self, clock: Clock, takes: list[float | None], finds: int = -1) -> None:
        self.clock, self.takes, self.finds = clock, takes, finds
        self.allowed: list[float] = []

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        takes = self.takes[len(self.allowed)] if len(self.allowed) < len(self.takes) else None
        self.allowed.append(timeout)
        self.clock.seconds += timeout if takes is None else takes
        return len(self.allowed) - 1 == self.finds, "batch"


def waited(takes: list[float | None], finds: int = -1, **given: float) -> tuple[Waiting, Stops, tuple[bool, Any]]:
    clock = Clock(100.0)
    iterator, stops = Waiting(clock, takes, finds), Stops(clock)
    stops.notice(iterator)
    return iterator, stops, iterator._try_get_data(**given)


def test_a_wait_goes_on_as_long_as_torch_allows() -> None:
    iterator, stops, (found, _) = waited([])
    assert not found and sum(iterator.allowed) == 5.0 and max(iterator.allowed) == 0.25
    assert stops.seen == 0.0
    iterator, _, (found, _) = waited([], timeout=0.625)
    assert not found and iterator.allowed == [0.25, 0.25, 0.125]


def test_it_ends_with_a_batch() -> None:
    iterator, stops, (found, batch) = waited([None, None, 0.125], 2)
    assert found and batch == "batch" and iterator.clock.seconds == 100.625
    assert stops.seen == 0.0


def test_a_part_that_takes_far_longer_is_a_stop() -> None:
    """Unless it brings a batch, which may be so large."""
    _, stops, (found, _) = waited([None, 3.25], 3)
    assert found and stops.seen == 3.0
    assert stops.within(100.25, 103.5) == 3.0
    _, stops, (found, _) = waited([None, 3.25], 1)
    assert found and stops.seen == 0.0


def test_a_thread_that_holds_the_interpreters_lock_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter(range(100))
    monkeypatch.setattr(time, "process_time", lambda: float(next(used)))
    _, stops, _ = waited([None, 3.25])
    assert stops.seen == 0.0


def test_what_was_made_meanwhile_was_not_stopped() -> None:
    stops = Stops(Clock())
    stops.add(Stop(10.0, 20.0))
    assert stops.within(0.0, 30.0) == stops.within(11.0, 19.0) == 10.0, "its ends are not exact"
    assert stops.within(12.5, 30.0) == stops.within(0.0, 17.5) == stops.within(30.0, 40.0) == 0.0


def test_an_iterator_is_not_kept() -> None:
    iterator, _, _ = waited([])
    gone, _ = weakref.ref(iterator), gc.disable()
    try:
        del iterator
        assert gone() is None
    finally:
        gc.enable()


def test_an_iterator_of_another_kind_is_left_alone() -> None:
    other = iter([1])
    Stops(Clock()).notice(other)
    assert next(other) == 1

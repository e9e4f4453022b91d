"""The interim result in a few words."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.verdict import so_far
from pipediag.analysis.words import percent
from pipediag.session import Observed

from ..made import climbing, inside, make, waits

WAITS = "the loop waits 50 % of a step in next()"


def test_nothing_before_the_loop_was_seen_to_wait() -> None:
    assert so_far(make({})) == []
    assert so_far(make({"baseline": 100.0}, noise=0.0)) == []


def test_from_the_first_steps() -> None:
    """Twelve steps of 100 ms before any window, half of it waiting."""
    session = make({}, workers=4, observed=[Observed(4, 0.4, 0.2)] * 3)
    assert so_far(session) == [WAITS]


@pytest.mark.parametrize("workers, pace", [(4, "a batch from 4 workers 30 ms"), (1, "a batch from 1 worker 120 ms")])
def test_how_fast_the_workers_are(workers: int, pace: str) -> None:
    """At first the loop consumes batches queued during its slow first step, and hardly waits."""
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.0, worker_ms=120.0)] * 3)
    assert so_far(session) == ["the loop waits 0 % of a step in next()", f"a step takes 100 ms, {pace}"]


def test_of_windows_as_well() -> None:
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=waits(50.0, worker_ms=400.0))
    assert so_far(session) == [WAITS, "a step takes 100 ms, a batch from 8 workers 50 ms"]


@pytest.mark.parametrize("workers, worker_ms", [(0, 120.0), (4, 0.0)])
def test_not_where_there_are_none_or_they_have_told_nothing(workers: int, worker_ms: float) -> None:
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.2, worker_ms=worker_ms)] * 3)
    assert so_far(session) == [WAITS]


def test_no_loader_is_known() -> None:
    session = make({}, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3)
    session.loader = None
    assert so_far(session) == [WAITS]


def test_what_a_sample_is_comes_last() -> None:
    seen = waits(50.0, worker_ms=400.0)
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=seen, inside=inside(4.0, 1.0, load=5.0))
    assert so_far(session)[2:] == ["loading is 50 % of a sample"]


def test_fed_from_a_cache_it_is_the_figure_of_the_headline() -> None:
    session = make(climbing(raw=50.0), noise=0.0, evidence=waits(1.0))
    starved = diagnose_session(session).verdict.starved
    assert starved is not None
    assert so_far(session) == [f"data costs {percent(starved.value)} of a step of 101 ms"]

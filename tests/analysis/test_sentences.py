"""The interim result in one line."""

from __future__ import annotations

import pytest

from pipediag.analysis.sentences import so_far
from pipediag.session import Observed

from ..made import inside, make, waits

WAITS = "the loop waits for data 50 % of each step of 100 ms"


def test_nothing_before_the_loop_was_seen_to_wait() -> None:
    assert so_far(make({})) == ""
    assert so_far(make({"baseline": 100.0}, noise=0.0)) == ""


def test_from_the_first_steps() -> None:
    """Twelve steps of 100 ms before any window, half of it waiting."""
    session = make({}, workers=4, observed=[Observed(4, 0.4, 0.2)] * 3)
    assert so_far(session) == WAITS


@pytest.mark.parametrize(
    "workers, every", [(4, "its 4 workers make a batch every 30 ms"), (1, "its worker makes a batch every 120 ms")]
)
def test_how_fast_the_workers_are(workers: int, every: str) -> None:
    """At first the loop consumes batches queued during its slow first step, and hardly waits."""
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.0, worker_ms=120.0)] * 3)
    text = so_far(session)
    assert text == f"the loop waits for data 0 % of each step of 100 ms, {every}"


def test_of_windows_as_well() -> None:
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=waits(50.0, worker_ms=400.0))
    assert so_far(session) == f"{WAITS}, its 8 workers make a batch every 50 ms"


@pytest.mark.parametrize("workers, worker_ms", [(0, 120.0), (4, 0.0)])
def test_not_where_there_are_none_or_they_have_told_nothing(workers: int, worker_ms: float) -> None:
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.2, worker_ms=worker_ms)] * 3)
    assert so_far(session) == WAITS


def test_no_loader_is_known() -> None:
    session = make({}, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3)
    session.loader = None
    assert so_far(session) == WAITS


def test_what_a_sample_is_comes_last() -> None:
    seen = waits(50.0, worker_ms=400.0)
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=seen, inside=inside(5.0, 1.0, load=4.0))
    assert (
        so_far(session)
        == f"{WAITS}, its 8 workers make a batch every 50 ms; time per sample: A 50 %, load 40 %, B 10 %"
    )

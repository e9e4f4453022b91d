"""The loop without a stage: one model for the table and for advice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.intervals import exactly
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.whatif import Change, what_if
from pipediag.session import Session

from ..made import inside, make, waits

#: A step of 120 ms waits 67 ms for four workers; its own side takes 53 ms.
RUNGS = {"device": 50.0, "host": 52.0, "worker": 53.0, "baseline": 120.0}


def session(cores: int = 16, worker_cpu: float = 1.0, **more: float) -> Session:
    seen = waits(67.0, worker_ms=460.0, worker_cpu=worker_cpu, collate_ms=46.0, process_cpu=0.25, **more)
    seen["worker"] = {"process_cpu": 30 / 53}
    return make(RUNGS, noise=0.0, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})


def rate(found: Session, name: str) -> float:
    """Return the steps per second without a transform, or a stage."""
    pieces = diagnose_session(found).waterfall
    piece = next(one for one in pieces if name in (one.stage, *one.links))
    assert piece.without is not None and not piece.without.measured
    return piece.without.steps_per_s


def test_the_workers_take_less() -> None:
    """Of 460 ms for a batch, B takes half."""
    assert rate(session(), "B") == pytest.approx(1000 / 60.0)


def test_down_to_the_training_process() -> None:
    assert rate(session(), "load") == pytest.approx(1000 / (120.0 * 0.7))
    two = make(RUNGS, noise=0.0, evidence=waits(67.0, worker_ms=460.0, collate_ms=0.0), inside=inside(9.0, load=1.0))
    assert rate(two, "A") == pytest.approx(1000 / 53.0), "not 1000 / 12"


def test_on_full_cores_the_training_process_still_needs_its_own() -> None:
    """Four cores do 460 ms of samples and 30 of training in 122.5 ms."""
    assert rate(session(cores=4), "B") == pytest.approx(1000 / (120.0 * (30 + 230) / (30 + 460)), rel=1e-4)


def test_what_the_workers_hide_brings_nothing() -> None:
    assert rate(session(), "transfer") == pytest.approx(1000 / 120.0)


def test_the_training_processs_own_saves_what_it_takes() -> None:
    rungs = {"device": 50.0, "host": 80.0, "worker": 81.0, "baseline": 81.0}
    early = make(rungs, noise=0.0, evidence=waits(0.0, worker_ms=40.0))
    assert rate(early, "transfer") == pytest.approx(1000 / 51.0)


@settings(max_examples=40, deadline=None)
@given(st.floats(2.0, 67.0), st.floats(50.0, 900.0), st.floats(0.2, 1.0), st.sampled_from([1, 2, 16]), st.booleans())
def test_the_table_says_what_advice_predicts(
    wait: float, worker_ms: float, worker_cpu: float, cores: int, alone: bool
) -> None:
    seen = waits(wait, worker_ms=worker_ms, worker_cpu=worker_cpu, collate_ms=0.0, process_cpu=0.5)
    rungs = {**RUNGS, "supply": 90.0} if alone else RUNGS
    found = make(rungs, noise=0.0, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})
    numbers = what_if(LadderView(found))
    assert numbers is not None and numbers.work is not None
    for name, ms in zip("AB", numbers.work.links, strict=True):
        predicted = numbers.faster(Change(work=exactly(ms))).value
        assert rate(found, name) == pytest.approx(predicted * 1000 / 120.0)

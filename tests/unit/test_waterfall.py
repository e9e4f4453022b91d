"""The waterfall: pieces that sum to the baseline, and what becomes of rungs that are missing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Stage
from pipediag.analysis.ladder import LadderView
from pipediag.session import RUNGS, STAGE_OF_RUNG, Session, Window

from .made import climbing, make, without

LADDERS = st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1, max_size=7)


def pieces(session: Session) -> dict[str, Stage]:
    found = diagnose_session(session).waterfall
    assert len({piece.stage for piece in found}) == len(found)
    return {piece.stage: piece for piece in found}


def test_whole_ladder() -> None:
    costs = {"host": 3.0, "worker": 4.0, "sample": 5.0, "raw": 20.0, "warm": 10.0, "baseline": 8.0}
    found = pieces(make(climbing(**costs), noise=0.0))
    assert list(found) == [*STAGE_OF_RUNG.values(), "residual"]
    assert {stage: piece.ms.value for stage, piece in found.items()} == pytest.approx(
        {"compute": 50.0, **{STAGE_OF_RUNG[rung]: ms for rung, ms in costs.items()}, "residual": 0.0}, abs=1e-9
    )
    assert found["transform"].share == pytest.approx(0.2)
    assert found["transform"].covers == ["transform"]


@given(LADDERS, st.integers(1, 4), st.floats(0, 0.3), st.integers())
def test_sums_to_the_baseline(ladder: dict[str, float], rounds: int, noise: float, seed: int) -> None:
    session = make(ladder | {"baseline": 200.0}, rounds=rounds, noise=noise, seed=seed)
    found = diagnose_session(session).waterfall
    base = LadderView(session).ms("baseline").value
    assert math.fsum(piece.ms.value for piece in found) == pytest.approx(base, rel=1e-9)
    assert math.fsum(piece.share for piece in found) == pytest.approx(1.0)
    assert found[-1].stage == "residual"
    covered = [stage for piece in found for stage in piece.covers]
    assert covered == list(STAGE_OF_RUNG.values())


def test_residual_shows_a_drift_between_the_rungs() -> None:
    """The median of differences is not the difference of medians; what lies between is shown, not hidden."""
    session = Session()
    for rung, times in {"device": (50.0, 60.0, 90.0), "baseline": (100.0, 150.0, 130.0)}.items():
        session.windows += [Window(rung, i, 10, ms / 100) for i, ms in enumerate(times)]
    found = {stage: piece.ms.value for stage, piece in pieces(session).items()}
    assert found == pytest.approx({"compute": 60.0, "load": 50.0, "residual": 20.0})


def test_raw_missing() -> None:
    """Loading and transforms cannot be told apart: the piece is load's, and says what it covers."""
    found = pieces(make(without(climbing(raw=30.0, warm=5.0), "raw"), unavailable={"raw": "not separable"}))
    assert "transform" not in found
    assert found["load"].covers == ["transform", "load"]
    assert found["load"].ms.value == pytest.approx(35.0, rel=0.01)
    assert found["load"].culprit is not None
    assert found["load"].culprit.name == "Photos.__getitem__"


def test_sample_raw_and_warm_missing() -> None:
    found = pieces(make(without(climbing(raw=30.0), "sample", "raw", "warm")))
    assert list(found) == ["compute", "transfer", "ipc", "load", "residual"]
    assert found["load"].covers == ["collate", "transform", "load", "storage"]


def test_only_the_ends() -> None:
    found = pieces(make({"device": 50.0, "baseline": 100.0}))
    assert found["load"].covers == ["transfer", "ipc", "collate", "transform", "load", "storage"]


def test_warm_missing() -> None:
    found = pieces(make(without(climbing(baseline=30.0), "warm")))
    assert found["load"].covers == ["load", "storage"]


def test_worker_missing_is_charged_to_what_comes_after() -> None:
    found = pieces(make(without(climbing(sample=30.0), "worker")))
    assert found["collate"].covers == ["ipc", "collate"]


def test_device_missing() -> None:
    found = pieces(make(without(climbing(raw=30.0), "device")))
    assert found["compute"].covers == ["compute", "transfer"]
    assert found["compute"].ms.value == pytest.approx(50.2, rel=0.01)


def test_a_stage_that_does_not_exist_is_not_covered() -> None:
    session = make(without(climbing(raw=30.0), "host", "worker"), absent=["host", "worker"], workers=0, device="cpu")
    found = pieces(session)
    assert list(found) == ["compute", "collate", "transform", "load", "storage", "residual"]
    assert found["collate"].covers == ["collate"]


def test_no_baseline_no_waterfall() -> None:
    assert pieces(make(without(climbing(), "baseline"))) == {}


def test_costs_are_paired_within_rounds() -> None:
    """A machine that doubles its speed between rounds does not blur a cost."""
    session = make({"device": 50.0, "baseline": 60.0}, rounds=4, noise=0.0)
    for window in session.windows:
        window.seconds += window.round * window.steps  # a second more a step, on both
    cost = LadderView(session).cost("baseline", "device")
    assert [cost.value, cost.low, cost.high] == pytest.approx([10.0] * 3)


def test_no_round_in_common() -> None:
    session = make({"device": 50.0}, rounds=1, noise=0.0)
    other = make({"baseline": 80.0}, rounds=2, noise=0.0).windows[1]
    session.windows.append(other)
    ladder = LadderView(session)
    cost, ratio = ladder.cost("baseline", "device"), ladder.ratio("baseline", "device")
    assert (cost.value, cost.low, cost.high) == (pytest.approx(30.0), -math.inf, math.inf)
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(1.6), 0.0, math.inf)


@pytest.mark.parametrize("workers, expected", [(0, 30.0), (1, 30.0), (4, 37.5)])
def test_copies_of_raw_samples_are_not_the_transforms(workers: int, expected: float) -> None:
    """10 ms of copying a batch: workers make the copies side by side, so a step waits for its share only."""
    ladder = {"device": 40.0, "sample": 50.0, "raw": 90.0, "baseline": 95.0}
    session = make(ladder, noise=0.0, workers=workers, evidence={"raw": {"copy_ms": 10.0}})
    assert pieces(session)["transform"].ms.value == pytest.approx(expected)


def test_copies_never_use_up_the_step() -> None:
    session = make({"device": 40.0, "raw": 90.0}, noise=0.0, workers=1, evidence={"raw": {"copy_ms": 500.0}})
    assert LadderView(session).ms("raw").value == pytest.approx(9.0)


def test_evidence_is_the_median() -> None:
    session = make({"baseline": 90.0}, rounds=3, evidence={"baseline": {"worker_ms": 1.0}})
    session.windows[0].evidence = {"worker_ms": 5.0, "copy_ms": 2.0}
    session.windows[1].evidence = {"worker_ms": 4.0}
    assert LadderView(session).evidence("baseline") == {"worker_ms": 4.0, "copy_ms": 2.0}

"""The verdict: every class reachable, with its band, companions, ceiling and numbers."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.thresholds import GATE, SEVERE
from pipediag.session import RUNGS, STAGE_OF_RUNG, Place, Session

from .made import FLAT, climbing, make, without

CLASSES = {
    "none", "transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention", "inconclusive",
}  # fmt: skip


def judged(session: Session) -> Diagnosis:
    diagnosis = diagnose_session(session)
    assert diagnosis.verdict.bottleneck in CLASSES
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    return diagnosis


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_the_stage_whose_inclusion_costs_the_time(rung: str) -> None:
    verdict = judged(make(climbing(**{rung: 30.0}))).verdict
    assert verdict.bottleneck == STAGE_OF_RUNG[rung]
    assert verdict.band == "severe"
    assert verdict.co_bottlenecks == []
    assert verdict.next_ceiling is not None
    following, ceiling = verdict.next_ceiling
    assert following == "compute"
    assert ceiling == pytest.approx(1000 / 51.0, rel=0.01)
    assert verdict.starved is not None
    assert verdict.starved.value == pytest.approx(1 - 50 / 81, abs=0.01)
    assert verdict.starved.low > SEVERE


@pytest.mark.parametrize(
    "rung, culprit",
    [
        ("host", Place("DataLoader", "train.py:10")),
        ("worker", Place("DataLoader", "train.py:10")),
        ("sample", Place("pad", "data.py:60")),
        ("raw", Place("Compose(Crop, Flip)", "data.py:40")),
        ("warm", Place("Photos.__getitem__", "data.py:5")),
        ("baseline", Place("Photos.__getitem__", "data.py:5")),
    ],
)
def test_culprit(rung: str, culprit: Place) -> None:
    assert judged(make(climbing(**{rung: 30.0}))).verdict.culprit == culprit


def test_none() -> None:
    verdict = judged(make(FLAT | {"baseline": 101.0}, noise=0.0)).verdict
    assert (verdict.bottleneck, verdict.band, verdict.culprit) == ("none", "none", None)
    assert verdict.next_ceiling == ("compute", pytest.approx(1000 / 101.0, rel=0.01))
    assert "Not starved" in verdict.sentence
    assert "101 ms" in verdict.sentence
    assert "100 ms" in verdict.sentence


@pytest.mark.parametrize(
    "cost, bottleneck, band", [(1.0, "none", "none"), (7.0, "transform", "mild"), (30.0, "transform", "severe")]
)
def test_bands(cost: float, bottleneck: str, band: str) -> None:
    verdict = judged(make(climbing(raw=cost), noise=0.0005)).verdict
    assert (verdict.bottleneck, verdict.band) == (bottleneck, band)


def test_thresholds_are_the_published_ones() -> None:
    assert (GATE, SEVERE) == (0.05, 0.20)


def test_startup() -> None:
    verdict = judged(make(FLAT, startups=[4.0, 5.0, 9.0], length=10)).verdict
    assert verdict.bottleneck == "startup"
    assert verdict.culprit == Place("DataLoader", "train.py:10")
    assert "500 ms" in verdict.sentence
    assert "persistent_workers=True" in verdict.sentence
    assert verdict.next_ceiling == ("compute", pytest.approx(10, rel=0.01))


def test_startup_beside_a_starved_loop() -> None:
    verdict = judged(make(climbing(raw=30.0), startups=[5.0], length=10)).verdict
    assert verdict.bottleneck == "startup"
    assert verdict.co_bottlenecks == ["transform"]
    assert verdict.next_ceiling is not None
    assert verdict.next_ceiling[0] == "transform"


@pytest.mark.parametrize(
    "session",
    [
        make(FLAT, startups=[5.0], length=10, persistent=True),
        make(FLAT, startups=[5.0], length=None),
        make(FLAT, startups=[5.0], length=10_000),
    ],
    ids=["persistent workers", "unknown length", "long epoch"],
)
def test_startup_that_does_not_matter(session: Session) -> None:
    assert judged(session).verdict.bottleneck == "none"


def test_startup_smaller_than_the_largest_stage() -> None:
    verdict = judged(make(climbing(raw=30.0), startups=[1.0], length=100)).verdict
    assert verdict.bottleneck == "transform"


def test_contention() -> None:
    verdict = judged(make({**climbing(raw=30.0), "device+load": 75.0}, noise=0.0)).verdict
    assert verdict.bottleneck == "contention"
    assert verdict.co_bottlenecks == ["transform"]
    assert verdict.next_ceiling == ("compute", pytest.approx(1000 / 56.0, rel=0.01))
    assert "25 ms longer while they run (of 81 ms)" in verdict.sentence


def test_workers_slow_the_loop_but_are_late_above_all() -> None:
    assert judged(make({**climbing(raw=30.0), "device+load": 60.0})).verdict.bottleneck == "transform"


def test_ceiling_without_contention_is_at_most_that_of_cached_batches() -> None:
    """The control may well be slower than the baseline; what is left of a step is then not below the device's."""
    verdict = judged(make({**climbing(raw=30.0), "device+load": 140.0})).verdict
    assert verdict.bottleneck == "contention"
    assert verdict.next_ceiling is not None
    assert 0 < verdict.next_ceiling[1] <= 1000 / 50 * 1.01


def test_inconclusive_without_a_ladder() -> None:
    verdict = judged(make({"baseline": 100.0})).verdict
    assert (verdict.bottleneck, verdict.starved, verdict.band) == ("inconclusive", None, "unknown")
    assert "baseline" in verdict.sentence


def test_inconclusive_without_a_baseline() -> None:
    diagnosis = judged(make(without(FLAT, "baseline")))
    assert diagnosis.verdict.bottleneck == "inconclusive"
    assert diagnosis.waterfall == []


def test_inconclusive_without_anything() -> None:
    assert judged(Session()).verdict.bottleneck == "inconclusive"


def test_inconclusive_from_one_window() -> None:
    verdict = judged(make(climbing(raw=30.0), rounds=1)).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "one window only" in verdict.sentence


def test_inconclusive_in_noise() -> None:
    verdict = judged(make(climbing(raw=4.0), rounds=3, noise=0.1)).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "--budget" in verdict.sentence


def test_starved_but_no_stage_is_certain() -> None:
    """Both ends of the ladder are sharp, and what lies between them swings from round to round."""
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.001)
    draw = random.Random(2)
    between = make(dict.fromkeys(RUNGS[1:-1], 75.0), noise=0.0)
    for window in between.windows:
        window.seconds *= draw.choice([0.5, 1.5])
    session.windows += between.windows
    verdict = judged(session).verdict
    assert verdict.bottleneck == "inconclusive"
    assert "no single stage" in verdict.sentence
    assert "50 %" in verdict.sentence


def test_co_bottlenecks() -> None:
    """Of the largest's size, or at least half of it; not what is merely there."""
    verdict = judged(make(climbing(raw=40.0, warm=30.0, host=10.0))).verdict
    assert verdict.bottleneck == "transform"
    assert verdict.co_bottlenecks == ["load"]
    assert verdict.next_ceiling == ("load", pytest.approx(1000 / 90.6, rel=0.01))
    assert "Load costs a comparable part" in verdict.sentence
    assert "limited next by load" in verdict.sentence


def test_next_ceiling_names_a_smaller_stage_that_is_worth_it() -> None:
    verdict = judged(make(climbing(raw=40.0, host=10.0))).verdict
    assert verdict.co_bottlenecks == []
    assert verdict.next_ceiling is not None
    assert verdict.next_ceiling[0] == "transfer"


def test_sentence_has_the_numbers() -> None:
    verdict = judged(make(climbing(raw=30.0), noise=0.0)).verdict
    for number in ("38 %", "30 of 81 ms", "19.6 steps/s", "instead of 12.3"):
        assert number in verdict.sentence
    assert verdict.sentence.startswith("The CUDA device waits for data")


def test_sentence_on_a_cpu() -> None:
    session = make(without(climbing(raw=30.0), "host"), absent=["host"], device="cpu")
    assert judged(session).verdict.sentence.startswith("The training process waits for data")


def test_sentence_says_that_the_dataset_could_not_be_split() -> None:
    session = make(without(climbing(raw=30.0), "raw"), unavailable={"raw": "not separable"})
    assert "loading and transforms together" in judged(session).verdict.sentence


@given(st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1), st.integers(1, 4), st.integers())
def test_any_ladder_gets_a_verdict(ladder: dict[str, float], rounds: int, seed: int) -> None:
    verdict = judged(make(ladder, rounds=rounds, noise=0.05, seed=seed)).verdict
    assert verdict.sentence
    if verdict.next_ceiling is not None:
        assert verdict.next_ceiling[1] > 0


def test_the_same_session_gets_the_same_diagnosis() -> None:
    assert judged(make(climbing(raw=9.0))).to_dict() == judged(make(climbing(raw=9.0))).to_dict()

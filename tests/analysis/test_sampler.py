"""A sampler that takes its time: it runs in the training process, so neither workers nor the hand-off are to blame."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Diagnosis
from pipediag.analysis.numbers.sides import OF_THE_WORKERS
from pipediag.session import Place, Session

from ..made import climbing, inside, make, waits, without

#: Milliseconds of the sampler in a step whose own work takes 20 ms.
SAMPLER = 30.0


def session(*missing: str, workers: int = 2, sampler_ms: float = SAMPLER, waits_ms: float = SAMPLER) -> Session:
    """A loop whose batches are ready, but which waits in ``next()`` for its sampler."""
    rungs = dict.fromkeys(("device", "host"), 20.0) | dict.fromkeys(("worker", "sample", "raw", "baseline"), 50.0)
    seen = waits(waits_ms, waits_ms, worker_ms=2.0, collate_ms=0.5, sampler_ms=sampler_ms)
    seen["worker"]["sampler_ms"] = sampler_ms
    absent = ("host", "worker") if not workers else ()
    found = make(
        without(rungs, *missing, *absent),
        workers=workers,
        noise=0.0005,
        evidence=seen,
        inside=inside(0.01, load=0.04),
        absent=absent,
        device="cpu",
        environment={"cores": 2},
    )
    assert found.loader is not None
    found.loader.sampler = Place("Balanced", "train.py:20")
    return found


def costs(diagnosis: Diagnosis) -> dict[str, float]:
    return {piece.stage: piece.ms.value for piece in diagnosis.waterfall}


@pytest.mark.parametrize(("missing", "workers"), [((), 2), (("worker",), 2), (("host", "worker"), 2), ((), 0)])
def test_it_is_named_with_its_line(missing: tuple[str, ...], workers: int) -> None:
    found = diagnose_session(session(*missing, workers=workers))
    assert found.verdict.bottleneck == "sampler" and found.verdict.certain
    assert found.verdict.culprit == Place("Balanced", "train.py:20")
    ms = costs(found)
    assert ms["sampler"] == pytest.approx(SAMPLER, abs=0.2) and ms["compute"] == pytest.approx(20.0, abs=0.2)
    assert sum(ms.values()) == pytest.approx(50.0, abs=0.2)
    assert ms.get("ipc", 0.0) < 1.0 and ms.get("load", 0.0) < 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_what_helps_is_a_cheaper_sampler(workers: int) -> None:
    first = diagnose_session(session(workers=workers)).recommendations[0]
    assert (first.stage, first.title) == ("sampler", "Make Balanced cheaper")
    assert first.how.startswith("train.py:20: ")
    assert first.gain is not None and first.gain.value == pytest.approx(2.5, rel=0.05)
    ids = [one.id for one in diagnose_session(session(workers=workers)).recommendations]
    assert not {"num-workers", "hand-off", "prefetch-factor"} & {*ids}


def test_beside_workers_that_are_late() -> None:
    """Of 60 ms of waiting the sampler takes half."""
    ladder = {**climbing(worker=30.0), "baseline": 110.0}
    found = make(ladder, noise=0.0005, evidence=waits(60.0, 30.0, worker_ms=400.0, collate_ms=0.0, sampler_ms=30.0))
    ms = costs(diagnose_session(found))
    assert ms["sampler"] == pytest.approx(30.0) and ms["ipc"] == pytest.approx(0.0, abs=0.5)
    assert sum(ms[stage] for stage in OF_THE_WORKERS if stage in ms) == pytest.approx(30.0, abs=1.0)


def test_one_that_hardly_takes_time_changes_nothing() -> None:
    seen = waits(30.0, 5.0, worker_ms=200.0, collate_ms=0.0)
    plain = make(climbing(raw=30.0), evidence=seen)
    seen["baseline"]["sampler_ms"] = 0.3
    timed = make(climbing(raw=30.0), evidence=seen)
    assert diagnose_session(timed).waterfall == diagnose_session(plain).waterfall

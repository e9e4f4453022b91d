"""There is something to do wherever data certainly costs a tenth of a step, and nothing that may gain nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.recommend import LOSS
from pipediag.analysis.summary import summarise
from pipediag.session import RUNGS, Account, Inside, Place, Session, Startup

from ..made import FLAT, blocks, climbing, inside, make, torchvisions, without

#: What costs the time: the rung that adds it, or what else does.
SIDES = ("host", "worker", "sample", "raw", "warm", "baseline", "contention", "startup", "mixed")
KINDS = ("stock", "own", "unknown", "nothing seen")


def within(kind: str) -> Inside | None:
    """A look into a worker: a library's transforms, the user's own, or samples that cannot be divided."""
    if kind == "nothing seen":
        return None
    if kind == "unknown":
        return inside(load=10.0, unsplit="the dataset has no transforms that could be found")
    found = inside(4.0, 3.0, load=3.0)
    return (
        torchvisions(found, "ColorJitter", "RandomResizedCrop", given="picture", new=False)
        if kind == "stock"
        else found
    )


def session_of(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> Session:
    """A loop whose data costs ``loss`` of each step."""
    cost = 50.0 * loss / (1 - loss)
    costs = {
        "contention": {"baseline": cost},
        "mixed": dict.fromkeys(RUNGS[1:], cost / 6),
        "startup": {},
    }.get(side, {side: cost})
    ladder = climbing(**costs) if side != "startup" else dict(FLAT)
    absent = [] if workers else ["host", "worker"]
    ladder = without(ladder, *absent)
    base, busy = ladder["baseline"], 8.0 if full else 3.0
    seen = {"worker_ms": 3.8 * base, "worker_cpu": 0.9, "process_cpu": 0.9, "cores_used": busy, "cores_busy": busy}
    accounts = {}
    if side == "contention" and workers:
        seen |= {"wait_ms": 0.1, "worker_ms": 2.0 * base}
        accounts = dict.fromkeys(RUNGS, Account(cpu_ms=50.0)) | {"baseline": Account(cpu_ms=50.0, queue_ms=cost)}
    slow = Startup(1.0 * cost, launch=0.1 * cost, ready=0.8 * cost)  # a thousand batches an epoch
    session = make(
        ladder,
        noise=0.0,
        rounds=rounds,
        workers=workers,
        absent=absent,
        device=device,
        length=1000 if side != "startup" else 500,
        startups=[slow] * 3 if side == "startup" else [],
        evidence={"baseline": seen} if told else {},
        accounts=accounts,
        environment={"cores": 8},
        inside=within(kind),
    )
    assert session.loader is not None
    session.loader.pin_memory = True
    if kind == "nothing seen":
        session.loader.transform = None
        session.loader.dataset_code = Place("Photos.__getitem__", "")
    return session


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SIDES),
    st.sampled_from(KINDS),
    st.floats(0.1, 0.95),
    st.sampled_from([0, 1, 4]),
    st.booleans(),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_there_is_something_to_do(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> None:
    diagnosis = diagnose_session(session_of(side, kind, loss, workers, full, device, rounds, told))
    for one in diagnosis.recommendations:
        assert one.gain is None or one.gain.low > 1, one
    verdict = diagnosis.verdict
    if verdict.bottleneck in ("none", "inconclusive") or verdict.starved is None or verdict.starved.value < LOSS:
        return
    assert [one for one in diagnosis.recommendations if one.stage != "compute"] and not diagnosis.nothing_to_gain
    assert summarise(diagnosis).actions, "on the screen too"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("workers", [0, 4])
def test_these_loops_starve(side: str, workers: int) -> None:
    """The sessions above are what they are meant to be."""
    if not workers and side in ("host", "worker", "contention", "startup"):
        return
    found = diagnose_session(session_of(side, "own", 0.5, workers, False, "cuda", 3, True)).verdict
    expected = {"raw": "transform", "contention": "contention", "startup": "startup"}
    assert found.bottleneck == expected.get(side, found.bottleneck) and found.bottleneck not in ("none", "inconclusive")


@pytest.mark.parametrize("workers", [0, 4])
def test_what_was_only_observed(workers: int) -> None:
    found = diagnose_session(make({}, workers=workers, observed=blocks(9, 100.0, 15.0, 60.0)))
    assert found.verdict.level == "observed" and summarise(found).actions

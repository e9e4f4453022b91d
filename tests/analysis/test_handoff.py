"""Whether handing batches over another way can pay, from the ladder alone."""

from __future__ import annotations

from pipediag.analysis.handoff import why_no_handoff
from pipediag.session import BatchFacts

from ..made import climbing, inside, leaf, make, without


def test_it_may_pay_where_the_hand_off_or_the_copy_costs() -> None:
    assert why_no_handoff(make(climbing(worker=7.0))) == ""
    assert why_no_handoff(make(climbing(host=7.0))) == ""


def test_it_may_pay_where_the_workers_collate_for_long() -> None:
    ladder = {**climbing(host=0.01, worker=0.01), "raw": 100.0, "warm": 120.0, "baseline": 120.0}
    for collate_ms, may_pay in ((80.0, True), (0.4, False)):
        evidence = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}}
        evidence["sample"] = {"worker_ms": collate_ms}
        session = make(ladder, noise=0.0, evidence=evidence, inside=inside(3.0, 4.0))
        assert (why_no_handoff(session) == "") is may_pay


def test_it_does_not_where_neither_costs() -> None:
    why = why_no_handoff(make(climbing(host=0.01, worker=0.01), noise=0.0))
    assert why == "handing a batch over and copying it cost at most 0.02 ms of a 50.8 ms step"


def test_what_was_not_measured_is_tried() -> None:
    ladder = climbing(host=0.01, worker=0.01)
    assert why_no_handoff(make(without(ladder, "worker"))) == ""
    assert why_no_handoff(make({"baseline": 50.0})) == ""


def test_it_does_not_where_the_loop_keeps_its_batches_on_the_host() -> None:
    session = make(climbing(worker=7.0))
    session.batch = BatchFacts(leaves=[leaf(copied=False), leaf("[1]", copied=False)])
    assert "copies nothing of its batches" in why_no_handoff(session)
    session.batch.leaves[1].copied = None  # nobody watched it
    assert why_no_handoff(session) == ""

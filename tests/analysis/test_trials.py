"""Which remedies are tried, one after the other, and what a cache of samples gains."""

from __future__ import annotations

from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.trials.remedy import (
    at_ceiling,
    best,
    first,
    following,
    loading_matters,
    outcome,
    reserved,
    speedup,
    to_dict,
    under_way,
    why_no_handoff,
    why_none,
)
from pipediag.report import RENDERERS
from pipediag.session import (
    DECODED,
    HANDED_OVER,
    LOADED_ONCE,
    REMEDIED,
    REMEDIES,
    BatchFacts,
    Edit,
    Keeping,
    Place,
    Remedy,
    Rung,
    Session,
)
from pipediag.session import Window as W

from ..made import climbing, inside, leaf, make, without


def measured(session: Session, rung: str, remedy: Remedy, ratio: float, rounds: int = 8, each: float = 1.0) -> Session:
    """Add the trial of a remedy that makes ten steps of ``each`` seconds ``ratio`` times as fast."""
    setattr(session, REMEDIES[rung], remedy)
    session.rungs[rung] = Rung(rung)
    begin = 1 + max(w.round for w in session.windows)
    for round_ in range(begin, begin + rounds):
        session.windows += [W("baseline", round_, 10, each), W(rung, round_, 10, each / ratio)]
    return session


def offloaded(ratio: float, **facts: Any) -> Session:
    session = make(climbing(raw=30.0), **facts)
    return measured(session, REMEDIED, Remedy(device="cuda:0", moved=[Place("Blur", "aug.py:3")]), ratio)


def kept(session: Session, ratio: float, free: int = 90_000_000_000, **remedy: Any) -> Session:
    keeping = Keeping("kept after Resize (aug.py:31)", 6_100_000_000, free)
    return measured(session, LOADED_ONCE, Remedy(device="cuda:0", keeping=keeping, **remedy), ratio)


class TestOrder:
    def test_a_cache_follows_where_loading_takes_time(self) -> None:
        evidence = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 0.1}}
        for gain in (0.7, 1.3):
            session = offloaded(gain, evidence=evidence, inside=inside(3.0, load=3.0))
            assert following(session, REMEDIED) == LOADED_ONCE
            assert reserved(session, REMEDIED) == [LOADED_ONCE]
        for gain, rung in ((2.0, None), (0.7, HANDED_OVER)):
            session = offloaded(gain, evidence=evidence, inside=inside(3.0, load=0.0))
            assert following(session, REMEDIED) == rung
            assert reserved(session, REMEDIED) == []

    def test_what_nobody_has_seen_is_tried(self) -> None:
        assert following(offloaded(1.3), REMEDIED) == LOADED_ONCE

    def test_without_a_ladder_it_is_not_tried(self) -> None:
        session = measured(make({"baseline": 50.0}), REMEDIED, Remedy(device="cuda:0"), 0.7)
        assert following(session, REMEDIED) == HANDED_OVER

    @pytest.mark.parametrize(
        ("rung", "slower", "enough"), [(REMEDIED, 1.03, True), (DECODED, 1.03, True), (DECODED, 1.1, False)]
    )
    def test_nothing_follows_a_remedy_that_leaves_no_input_cost(self, rung: str, slower: float, enough: bool) -> None:
        session = make(climbing(raw=30.0), noise=0.0)
        ceiling, now = (session.windows_of(name)[0].ms_per_step for name in ("device", "baseline"))
        measured(session, rung, Remedy(device="cuda:0"), now / ceiling / slower, each=now / 100)
        assert at_ceiling(session) == enough
        assert following(session, REMEDIED) == (None if enough else LOADED_ONCE)

    def test_the_hand_off_is_last_and_only_if_nothing_pays(self) -> None:
        assert following(kept(offloaded(0.7), 0.9), LOADED_ONCE) == HANDED_OVER
        assert following(kept(offloaded(0.7), 1.9), LOADED_ONCE) is None
        assert following(kept(offloaded(2.0), 0.9), LOADED_ONCE) is None
        over = measured(kept(offloaded(0.7), 0.9), HANDED_OVER, Remedy(device="cuda:0"), 0.9)
        assert following(over, HANDED_OVER) is None

    def test_decoding_comes_first_where_it_is_allowed(self) -> None:
        """It contains the offload, so it is decided even if time runs out."""
        assert (first(False), first(True)) == (REMEDIED, DECODED)
        decoded = measured(make(climbing(raw=30.0)), DECODED, Remedy(device="cuda:0"), 2.0)
        assert under_way(decoded) == DECODED
        assert following(decoded, DECODED) == REMEDIED and reserved(decoded, DECODED) == [REMEDIED]
        assert under_way(measured(decoded, REMEDIED, Remedy(device="cuda:0"), 0.9)) == REMEDIED

    def test_it_is_under_way_once_it_is_prepared(self) -> None:
        assert under_way(make(climbing(raw=30.0))) is None
        assert under_way(kept(offloaded(2.0), 1.0, free=0)) == LOADED_ONCE


class TestLoadingMatters:
    def of(self, load: float, worker_ms: float, **costs: float) -> bool | None:
        evidence = {"baseline": {"worker_ms": worker_ms, "worker_cpu": 1.0, "process_cpu": 0.1}}
        found = inside(10.0 - load, load=load)
        return loading_matters(make(climbing(**costs or {"raw": 30.0}), noise=0.0, evidence=evidence, inside=found))

    def test_where_the_loop_waits_for_it(self) -> None:
        assert self.of(load=8.0, worker_ms=400.0) is True

    def test_not_where_it_takes_no_time(self) -> None:
        assert self.of(load=0.001, worker_ms=400.0) is False

    def test_not_where_reading_back_takes_as_long(self) -> None:
        session = make({"baseline": 50.0}, inside=inside(0.05, load=0.05))
        assert loading_matters(session) is False
        session = make({"baseline": 50.0}, inside=inside(3.0, load=3.0))
        assert loading_matters(session) is None

    def test_not_where_the_loop_does_not_wait(self) -> None:
        little = dict.fromkeys(("host", "worker", "sample", "raw", "warm", "baseline"), 0.01)
        assert self.of(8.0, 20.0, **little) is False

    def test_nobody_knows_before_the_ladder(self) -> None:
        assert loading_matters(make({"baseline": 50.0})) is None


class TestHandOff:
    """Whether the hand-off alone can pay, from the ladder."""

    def test_it_may_pay_where_the_hand_off_or_the_copy_costs(self) -> None:
        assert why_no_handoff(make(climbing(worker=7.0))) == ""
        assert why_no_handoff(make(climbing(host=7.0))) == ""

    def test_it_may_pay_where_the_workers_collate_for_long(self) -> None:
        ladder = {**climbing(host=0.01, worker=0.01), "raw": 100.0, "warm": 120.0, "baseline": 120.0}
        for collate_ms, may_pay in ((80.0, True), (0.4, False)):
            evidence = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}}
            evidence["sample"] = {"worker_ms": collate_ms}
            session = make(ladder, noise=0.0, evidence=evidence, inside=inside(3.0, 4.0))
            assert (why_no_handoff(session) == "") is may_pay

    def test_it_does_not_where_neither_costs(self) -> None:
        why = why_no_handoff(make(climbing(host=0.01, worker=0.01), noise=0.0))
        assert why == "handing a batch over and copying it cost at most 0.02 ms of a 50.8 ms step"

    def test_what_was_not_measured_is_tried(self) -> None:
        ladder = climbing(host=0.01, worker=0.01)
        assert why_no_handoff(make(without(ladder, "worker"))) == ""
        assert why_no_handoff(make({"baseline": 50.0})) == ""

    def test_it_does_not_where_the_loop_keeps_its_batches_on_the_host(self) -> None:
        session = make(climbing(worker=7.0))
        session.batch = BatchFacts(leaves=[leaf(copied=False), leaf("[1]", copied=False)])
        assert "copies no part of its batches" in why_no_handoff(session)
        session.batch.leaves[1].copied = None  # nobody watched it
        assert why_no_handoff(session) == ""


class TestGain:
    def test_all_samples_fit(self) -> None:
        ratio = speedup(kept(offloaded(1.5), 3.0), LOADED_ONCE)
        assert ratio is not None and ratio.value == pytest.approx(3.0)

    def test_half_of_the_samples_fit(self) -> None:
        """Half of the time shrinks to a third: 1 / (1/2 + 1/6)."""
        ratio = speedup(kept(offloaded(1.2), 3.0, free=3_050_000_000), LOADED_ONCE)
        assert ratio is not None and ratio.value == pytest.approx(1.5)
        assert ratio.low <= ratio.value <= ratio.high

    def test_none_fits(self) -> None:
        came = outcome(kept(offloaded(1.5), 3.0, free=0), LOADED_ONCE)
        assert came is not None and not came.applied

    def test_the_fastest_is_kept(self) -> None:
        for offload, cache, rung in ((1.5, 3.0, LOADED_ONCE), (3.0, 1.5, REMEDIED), (0.7, 1.5, LOADED_ONCE)):
            came = best(kept(offloaded(offload), cache))
            assert came is not None and (came.rung, came.applied) == (rung, True)
        came = best(kept(offloaded(2.0), 2.0))
        assert came is not None and came.rung == REMEDIED, "no more than the offload, but it takes memory"
        assert "samples loaded once: the loop is slower under it" in why_none(kept(offloaded(0.7), 0.8))


def text(session: Session) -> str:
    return " ".join(RENDERERS[".txt"](diagnose_session(session)).split())


class TestReport:
    def test_says_what_is_kept_where_and_from_when_on(self) -> None:
        found = text(
            kept(offloaded(1.5), 3.0, edit=Edit(diff="+loader = pipediag.cache(loader)\n"), moved=[Place("Flip")])
        )
        assert "samples loaded once: it pays: 3 times the steps" in found
        assert "from the second epoch on" in found
        assert "samples are kept after Resize (aug.py:31): 6.1 of 90 GB free" in found
        assert "moved to cuda:0: Flip" in found
        assert "pipediag run --plan plan.json train.py" in found

    def test_says_how_many_fit(self) -> None:
        assert "6.1 of 3.05 GB free, 50% of the samples" in text(kept(offloaded(0.7), 3.0, free=3_050_000_000))

    def test_says_why_it_was_not_tried(self) -> None:
        session = offloaded(0.7)
        session.loaded_once = Remedy(why_not="nothing is kept: the samples of an iterable dataset have no index")
        assert "samples are not kept: nothing is kept: the samples of an iterable" in text(session)

    def test_json(self) -> None:
        session = kept(offloaded(0.7), 3.0)
        told = to_dict(Session.from_dict(session.to_dict()), LOADED_ONCE)
        assert told is not None and told["applied"]
        assert told["keeping"] == {
            "what": "kept after Resize (aug.py:31)",
            "nbytes": 6_100_000_000,
            "free": 90_000_000_000,
        }
        assert "keeping" not in (to_dict(session) or {})

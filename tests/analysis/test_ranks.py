"""Merging the sessions of a job's ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.ranks.merging import job_session, summary
from pipediag.session import (
    REMEDIED,
    Knobs,
    LoaderSettings,
    Observed,
    Profile,
    Rank,
    Remedy,
    Rung,
    Script,
    Session,
    Warning_,
    Window,
    settings_rung,
)

from ..made import climbing, inside, job, make, waits

LADDER = climbing(host=2.0, worker=1.0, raw=12.0, warm=33.0, baseline=9.0)


def one(rank: int, worker_ms: float = 200.0, wait_ms: float = 1.0, size: int = 4, **more: Any) -> Session:
    """A rank's own session; all ranks share the cores 0 to 15."""
    seen = waits(wait_ms, 0.4, worker_ms=worker_ms, cores_used=3.0, cores_busy=13.0)
    session = make(LADDER, evidence=seen, seed=rank, **{"workers": 4, **more})
    place = {"local_rank": rank, "device": f"cuda:{rank}", "cpus": 16, "cores": 16.0, "affinity": "0-15"}
    session.ranks = [Rank(rank, size, "node0", **place)]
    return session


def of(**worker_ms: float) -> dict[int, Session]:
    """Sessions by rank, given as r0, r1, ... with a worker's milliseconds for a batch."""
    return {int(name[1:]): one(int(name[1:]), ms) for name, ms in worker_ms.items()}


def test_a_single_session_is_returned_as_it_is() -> None:
    session = one(0)
    assert job_session({0: session}) is session


def test_the_sessions_are_left_as_they_are() -> None:
    sessions = of(r0=200, r1=400)
    before = copy.deepcopy(sessions)
    job_session(sessions)
    assert sessions == before


@pytest.mark.parametrize(
    "worker_ms, limiting",
    [
        ({"r0": 200, "r1": 200, "r2": 400}, 2),
        ({"r0": 400, "r1": 200, "r2": 200}, 0),
        ({"r0": 200, "r1": 210, "r2": 205}, 0),  # no more than windows of one rank differ
        ({"r0": 200, "r1": 300, "r2": 400}, 2),
    ],
)
def test_the_slowest_input_limits_the_job(worker_ms: Mapping[str, float], limiting: int) -> None:
    found = job_session(of(**worker_ms))
    assert found.of_rank == limiting
    made = {window.evidence["worker_ms"] for window in found.windows_of("baseline")}
    assert made == {worker_ms[f"r{limiting}"]}


def test_the_job_waits_as_long_as_the_rank_that_waits_longest() -> None:
    """With equal inputs, chance decides which rank waits for its loader and which for the other rank."""
    sessions = {0: one(0, wait_ms=1.0), 1: one(1, wait_ms=6.0), 2: one(2, wait_ms=1000.0)}
    for rank, waited in ((0, 0.01), (1, 0.62)):
        sessions[rank].observed = [Observed(7, 1.0, waited, 200.0)]
    found = job_session(sessions)
    assert found.of_rank == 0 and found.observed == sessions[1].observed
    windows = found.windows_of("baseline")
    assert windows and all(window.evidence["wait_ms"] == window.ms_per_step for window in windows)
    del sessions[2]
    found = job_session(sessions)
    assert {window.evidence["wait_ms"] for window in found.windows_of("baseline")} == {6.0}
    assert [rank.wait_ms for rank in found.ranks] == [1.0, 6.0]


def test_a_ladder_without_baseline_is_split_by_that_wait() -> None:
    """Transfer does not include one rank's wait for the other's input."""
    sessions = {}
    for rank, waited in ((0, 0.04), (1, 0.62)):
        session = sessions[rank] = one(rank)
        session.windows = [window for window in session.windows if window.rung in ("device", "worker")]
        session.observed = [Observed(7, 7 * 0.236, 7 * 0.236 * waited, 1430.0) for _ in range(5)]
    diagnosis = diagnose_session(job_session(sessions))
    assert diagnosis.verdict.bottleneck in ("load", "transform"), diagnosis.verdict


def test_more_workers_make_up_for_slower_ones() -> None:
    sessions = {0: one(0, 200.0), 1: one(1, 400.0, workers=16)}
    assert job_session(sessions).of_rank == 0


def test_without_workers_the_longest_wait_limits() -> None:
    sessions = {rank: one(rank, 10.0, 40.0 if rank == 1 else 20.0, workers=0) for rank in range(3)}
    assert job_session(sessions).of_rank == 1
    assert job_session({rank: one(rank, 10.0, 0.1 + rank, workers=0) for rank in range(3)}).of_rank == 0, (
        "waits of a hundredth of a step limit nothing"
    )


def test_a_proven_straggler_takes_precedence() -> None:
    """Its workers are not the slowest by their own time, but trials have shown that the others wait for it."""
    found = job(4, 2)
    sessions = {rank: one(rank, 400.0 if rank == 1 else 200.0, workers=4) for rank in range(4)}
    assert job_session(sessions).of_rank == 1
    sessions[0].rank_trials = found.rank_trials
    assert job_session(sessions).of_rank == 2


def test_ranks_are_summarised() -> None:
    sessions = of(r0=200, r1=400)
    for session in sessions.values():
        session.inside = inside(6.0, load=2.0)
    first, second = job_session(sessions).ranks
    assert (first.rank, second.rank) == (0, 1)
    assert (second.host, second.local_rank, second.device, second.affinity) == ("node0", 1, "cuda:1", "0-15")
    assert (second.workers, second.worker_ms, second.wait_ms) == (4, 400.0, 1.0)
    assert first.step_ms == pytest.approx(107.2, rel=0.01)
    assert first.shares == {"transform": 0.75, "load": 0.25}


def test_a_rank_without_windows_is_summarised_by_what_was_observed() -> None:
    session = one(1)
    session.windows, session.observed = [], [Observed(4, 0.4, 0.1, 250.0)] * 3
    found = summary(1, session, 4)
    assert (found.step_ms, found.wait_ms, found.worker_ms) == (100.0, 25.0, 250.0)
    session.observed = []
    assert summary(1, session, 4).step_ms is None
    session.ranks = []
    assert summary(7, session, 4).world_size == 8, "what never said its rank"


def test_what_concerns_the_job_comes_from_the_leading_rank() -> None:
    sessions = of(r0=200, r1=400)
    lead, other = sessions[0], sessions[1]
    lead.script, other.script = Script(["train.py"], 2, 0, wrote=["a"]), Script(["train.py"], 1, wrote=["b", "a"])
    lead.knobs, lead.remedy, lead.ended = Knobs([LoaderSettings(8)]), Remedy("cuda:0"), "settled"
    other.remedy, other.ended = Remedy("cuda:1"), ""
    lead.profile = Profile("t.json")
    for session, ms in ((lead, 50.0), (other, 70.0)):
        for rung in (REMEDIED, settings_rung(1)):
            session.rungs[rung] = Rung(rung)
            session.windows += [Window("baseline", 20, 10, 1.0), Window(rung, 20, 10, ms / 100)]
    lead.rank_trials = job(2, None).rank_trials
    found = job_session(sessions)
    assert found.of_rank == 1
    assert (found.script.argv, found.script.passes, found.script.wrote) == (["train.py"], 2, ["a", "b"])
    assert (found.knobs, found.remedy, found.ended) == (lead.knobs, lead.remedy, "settled")
    assert found.profile == lead.profile, "only the leading rank looked at the model"
    assert [window.seconds for window in found.windows_of(REMEDIED)] == [0.5]
    assert len([window for window in found.windows if window.round == 20]) == 4
    assert found.rank_trials == lead.rank_trials
    Session.from_dict(found.to_dict())


def test_warnings_of_other_ranks_are_kept_once() -> None:
    sessions = of(r0=200, r1=200, r2=200, r3=200)
    sessions[0].warn("hung", "it hung")
    for rank in (1, 2, 3):
        sessions[rank].warn("hung", "it hung")
        sessions[rank].warn("slow", "files are slow", "copy them")
    for rank in range(1, 4):
        sessions[rank].warn("odd", f"seen {rank} times")
    assert job_session(sessions).warnings == [
        Warning_("hung", "it hung"),
        Warning_("slow", "ranks 1, 2 and 3: files are slow", "copy them"),
        Warning_("odd", "rank 1: seen 1 times"),
        Warning_("odd", "rank 2: seen 2 times"),
    ]


def test_other_ranks_are_no_foreign_load() -> None:
    """Four ranks use three of 16 cores each, and other processes one; a rank's part of the machine is a quarter."""
    found = job_session(of(r0=200, r1=200, r2=200, r3=200))
    assert found.environment["cores"] == 4.0
    seen = found.windows_of("baseline")[0].evidence
    assert (seen["cores_used"], seen["cores_busy"]) == (3.0, 3.25)
    assert "foreign-load" not in {warning.code for warning in diagnose_session(found).warnings}


def test_a_rank_with_cores_of_its_own_has_them_all() -> None:
    sessions = of(r0=200, r1=200)
    for rank, session in sessions.items():
        session.ranks[0].affinity = f"{16 * rank}-{16 * rank + 15}"
    found = job_session(sessions)
    assert found.environment["cores"] == 16
    assert found.windows == sessions[0].windows


def test_processes_that_are_too_many_are_said() -> None:
    found = diagnose_session(job_session(of(r0=200, r1=200, r2=200, r3=200)))
    messages = [warning.message for warning in found.warnings if warning.code == "more-workers-than-cores"]
    assert messages == ["4 ranks x 4 workers on 16 cores: 16 workers and the ranks' own processes share them"]


def test_the_verdict_speaks_of_the_job() -> None:
    found = diagnose_session(job(4, 2))
    assert found.verdict.sentence.startswith("Data costs the job of 4 ranks ")
    assert found.straggler is not None and found.straggler.ranks == (2,)
    assert not found.no_straggler


def test_a_rank_that_failed_says_how() -> None:
    sessions = of(r0=200, r1=200)
    sessions[1].script.error = "ValueError: no"
    assert [rank.ended for rank in job_session(sessions).ranks] == ["", "ValueError: no"]


def test_without_the_first_rank_the_next_one_leads() -> None:
    found = job_session({rank: session for rank, session in of(r0=200, r1=200, r2=200).items() if rank})
    assert (found.of_rank, [rank.rank for rank in found.ranks]) == (1, [1, 2])

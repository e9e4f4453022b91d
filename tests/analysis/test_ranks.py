"""Merging the sessions of a job's ranks; which ranks share cores."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.ranks.merging import job_session, summary
from pipediag.analysis.ranks.shared_cores import groups, too_many, workers_that_fit
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


def ranks(
    count: int, workers: int, cores: float, affinity: tuple[str, ...] = ("",), cpus: int = 64, hosts: int = 1
) -> list[Rank]:
    """``count`` ranks; their affinities repeat, host by host."""
    return [
        Rank(
            n,
            count,
            f"node{n * hosts // count}",
            cpus=cpus,
            cores=cores,
            affinity=affinity[n % len(affinity)],
            workers=workers,
        )
        for n in range(count)
    ]


def grouped(found: list[Rank]) -> list[tuple[list[int], float]]:
    return [([rank.rank for rank in group.ranks], group.cores) for group in groups(found)]


@pytest.mark.parametrize(
    "affinity, cores, expected",
    [
        (("0-15",), 16.0, [([0, 1, 2, 3], 16.0)]),
        (("0-7", "8-15"), 8.0, [([0, 2], 8.0), ([1, 3], 8.0)]),
        (("0-3", "4-7", "8-11", "12-15"), 4.0, [([0], 4.0), ([1], 4.0), ([2], 4.0), ([3], 4.0)]),
        (("0-3,32-35", "4-7,36-39", "0-1", "7"), 8.0, [([0, 2], 8.0), ([1, 3], 8.0)]),
        (("0-7", "6-9", "9-12", "20"), 8.0, [([0, 1, 2], 13.0), ([3], 1.0)]),
        (("0-63",), 12.5, [([0, 1, 2, 3], 12.5)]),
    ],
)
def test_groups_by_the_numbers_of_cores(
    affinity: tuple[str, ...], cores: float, expected: list[tuple[list[int], float]]
) -> None:
    """Ranks share cores if they have any in common, directly or through others. A quota limits the sum."""
    found = ranks(4, 2, cores, affinity)
    for rank in found:
        rank.cores = min(rank.cores, sum(1 for _ in _numbers(rank.affinity)))
    if cores == 12.5:
        assert all(rank.cores == 12.5 for rank in found)
    assert grouped(found) == expected


def _numbers(affinity: str) -> list[int]:
    spans = [part.partition("-") for part in affinity.split(",")]
    return [n for first, _, last in spans for n in range(int(first), int(last or first) + 1)]


@pytest.mark.parametrize("affinity", ["", "all", "0-", "-3", "0,x", "0" * 5000])
def test_without_numbers_ranks_share_what_is_not_enough_for_each(affinity: str) -> None:
    assert grouped(ranks(4, 2, 64.0, (affinity,))) == [([0, 1, 2, 3], 64.0)]
    assert grouped(ranks(4, 2, 16.0, (affinity,))) == [([n], 16.0) for n in range(4)]


def test_hosts_share_nothing() -> None:
    assert grouped(ranks(4, 2, 64.0, hosts=2)) == [([0, 1], 64.0), ([2, 3], 64.0)]


def test_more_workers_than_cores() -> None:
    found = too_many(ranks(8, 15, 64.0, ("0-63",)))
    assert found.code == "more-workers-than-cores"
    assert found.message == "8 ranks x 15 workers on 64 cores: 120 workers and the ranks' own processes share them"
    assert found.help == "with 7 workers per rank, every process would have a core"


def test_as_many_processes_as_cores_are_no_warning() -> None:
    assert too_many(ranks(8, 7, 64.0, ("0-63",))) is None
    assert too_many(ranks(8, 8, 64.0, ("0-63",))) is not None


def test_ranks_with_cores_of_their_own() -> None:
    """Eight ranks with eight cores and seven workers each fit; with one more worker each they do not."""
    apart = tuple(f"{8 * n}-{8 * n + 7}" for n in range(8))
    assert too_many(ranks(8, 7, 8.0, apart)) is None
    found = too_many(ranks(8, 8, 8.0, apart))
    assert found.message == (
        "1 rank x 8 workers on 8 cores: 8 workers and the ranks' own processes share them; 7 other groups of ranks "
        "also have too few cores"
    )


def test_the_host_is_named_if_there_are_several() -> None:
    found = too_many(ranks(4, 40, 64.0, ("0-63",), hosts=2))
    assert found is not None and found.message.startswith("2 ranks x 40 workers on 64 cores of node0: ")


def test_few_cores() -> None:
    found = too_many(ranks(4, 1, 2.0, ("0-1",)))
    assert found.help == "0.5 cores per rank are too few: use fewer ranks, or more cores"


def test_nothing_to_say() -> None:
    assert too_many([]) is None
    assert too_many(ranks(1, 100, 2.0)) is None, "one process is no job"
    assert too_many(ranks(4, 0, 2.0)) is None, "without workers there are none too many"
    assert too_many(ranks(4, 4, 0.0)) is None, "unknown cores"


def test_a_hostile_affinity_costs_nothing() -> None:
    """Numbers may be large: ranges are compared, not listed."""
    found = ranks(2, 2, 8.0, ("0-999999999", "5"))
    assert grouped(found)[0][0] == [0, 1]


@pytest.mark.parametrize(
    "found, of_rank, fit",
    [
        (ranks(2, 2, 2.0, ("0-1",)), 1, 1),  # a core for each process would be none for workers
        (ranks(4, 2, 32.0, ("0-31",)), 0, 7),
        (ranks(4, 2, 8.0, ("0-7", "8-15")), 3, 3),
        (ranks(2, 2, 16.0, ("0-15",), hosts=2), 0, 15),
        (ranks(2, 2, 0.0), 0, None),  # not known how many cores there are
        (ranks(1, 2, 16.0), 0, None),
        (ranks(2, 2, 16.0), None, None),
    ],
)
def test_workers_that_fit(found: list[Rank], of_rank: int | None, fit: int | None) -> None:
    assert workers_that_fit(Session(ranks=found, of_rank=of_rank)) == fit

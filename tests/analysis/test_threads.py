"""Fewer torch threads in the training process: when they are tried, how many, and what is said of the trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import next_round as next_of_audit
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.stopping import next_round
from pipediag.analysis.trials.threads import next_rungs, outcome, threads_to_try
from pipediag.report import RENDERERS
from pipediag.session import FEWER_THREADS, Account, Rung, Session

from ..made import climbing, make, without

#: A loop without workers, in whose step of 60 ms one of torch's threads waits 40 ms for a core.
LADDER = without({**climbing(), "baseline": 60.0}, "host", "worker")
QUEUED = Account(cpu_ms=20.0, queue_ms=40.0, threads_cpu_ms=20.0, threads_queue_ms=40.0)
#: Other processes use 1.5 of 2 cores.
BUSY = {"cores_busy": 2.0, "cores_used": 0.5, "process_cpu": 0.5}


def fighting(
    account: Account = QUEUED, torch: int = 2, cores: int = 2, seen: Any = BUSY, device: str = "cpu", **more: Any
) -> Session:
    session = make(
        more.pop("ladder", LADDER),
        noise=0.0,
        workers=0,
        accounts={"baseline": account},
        evidence={"baseline": seen},
        environment={"cores": cores, "threads": {"torch": torch}},
        device=device,
        **more,
    )
    session.rungs.setdefault(FEWER_THREADS, Rung(FEWER_THREADS))
    return session


def tried(ms: float, rounds: int = 3, **more: Any) -> Session:
    """A session whose step took ``ms`` milliseconds with one thread."""
    session = fighting(ladder={**LADDER, FEWER_THREADS: ms}, rounds=rounds, **more)
    session.environment["fewer_threads"] = 1
    return session


class TestWhen:
    def test_a_thread_waits_for_a_core(self) -> None:
        assert next_rungs(fighting()) == ["baseline", FEWER_THREADS]
        assert {"baseline", FEWER_THREADS} <= {*next_round(fighting(rounds=1))}

    @pytest.mark.parametrize(
        "session",
        [
            fighting(replace(QUEUED, threads_queue_ms=5.0)),  # no thread waits long
            fighting(torch=1),
            fighting(device="cuda"),
            fighting(seen={}, cores=0),
            tried(60.0),  # decided
        ],
        ids=["idle-cores", "one-thread", "gpu", "unknown", "decided"],
    )
    def test_nothing_speaks_for_it(self, session: Session) -> None:
        assert next_rungs(session) == []
        assert FEWER_THREADS not in next_round(session)

    def test_not_if_it_cannot_be_measured(self) -> None:
        session = fighting()
        session.rungs[FEWER_THREADS] = Rung(FEWER_THREADS, False, "the ranks of a job wait for each other")
        assert next_rungs(session) == []

    def test_no_part_of_an_audit(self) -> None:
        assert FEWER_THREADS not in next_of_audit(fighting(rounds=1), 0.05)


class TestNumber:
    """As many threads as other processes and the workers leave cores."""

    @pytest.mark.parametrize(("busy", "used", "own", "threads"), [(16.0, 8.0, 4.0, 4), (12.0, 8.0, 8.0, 12)])
    def test_of_many_cores(self, busy: float, used: float, own: float, threads: int) -> None:
        seen = {"cores_busy": busy, "cores_used": used, "process_cpu": own}
        assert threads_to_try(fighting(torch=16, cores=16, seen=seen)) == threads

    def test_not_more_than_there_are(self) -> None:
        seen = {"cores_busy": 4.0, "cores_used": 4.0, "process_cpu": 4.0}
        assert threads_to_try(fighting(torch=8, cores=16, seen=seen)) is None

    def test_it_stays_as_it_was_tried(self) -> None:
        session = tried(20.0)
        session.windows = [replace(one, account=None) for one in session.windows]
        assert threads_to_try(session) == 1


def advised(session: Session) -> list[Recommendation]:
    return [one for one in diagnose_session(session).recommendations if one.id == "threads"]


class TestAdvice:
    def test_as_measured(self) -> None:
        (one,) = advised(tried(20.0))
        assert one.title == "1 thread for torch in the training process"
        assert one.measured is not None
        assert one.measured.value == pytest.approx(3.0)
        assert one.how.startswith("OMP_NUM_THREADS=1 in the environment, or torch.set_num_threads(1) before the loop")
        assert one.evidence == [
            "measured in 3 rounds against the script as it is, which has 2 threads",
            "one of these waits for a core 67 % of each step, and all operations wait for it",
        ]

    @pytest.mark.parametrize(("ms", "rounds"), [(60.0, 3), (90.0, 3), (20.0, 2)])
    def test_none_unless_it_certainly_pays(self, ms: float, rounds: int) -> None:
        assert advised(tried(ms, rounds)) == []

    def test_the_ladder_is_that_of_the_script_as_it_is(self) -> None:
        """Steps with fewer threads are no rung: they change neither the verdict nor the ceiling."""
        with_trial, without_it = diagnose_session(tried(20.0)), diagnose_session(fighting(rounds=3))
        assert with_trial.verdict == without_it.verdict
        assert with_trial.ladder.rungs == without_it.ladder.rungs

    def test_the_whole_report_gives_the_rate(self) -> None:
        text = RENDERERS[".txt"](diagnose_session(tried(20.0)))
        assert "the loader as it is, with fewer torch threads in the training process: 50 steps/s" in text

    def test_outcome(self) -> None:
        found = outcome(tried(30.0))
        assert found is not None
        assert (found.threads, found.before, found.rounds, found.pays) == (1, 2, 3, True)
        assert outcome(fighting()) is None

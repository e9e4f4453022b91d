"""Jobs of two ranks under torchrun, or on two hosts: they are measured in lockstep, stop together, and the late one is
named."""

from __future__ import annotations

import pytest

from benchmarks.ranks import hosts
from pipediag.analysis.ranks.stragglers import straggler_of
from pipediag.session import Session

from .sandbox import PIPEDIAG, SCRIPTS, Analysis, Sandbox, slow

JOB = ("torchrun", "--standalone", "--nproc-per-node", "2")


def analyze(sandbox: Sandbox, kind: str, budget: float = 8.0) -> Analysis:
    script = str(SCRIPTS / "ranks/kinds.py")
    return sandbox.analyze(*JOB, script, kind, budget=budget, cwd=sandbox.cwd)


def reached(sandbox: Sandbox) -> list[str]:
    """Epoch and position of the last step of each rank."""
    return [(sandbox.cwd / f"reached-{rank}.txt").read_text() for rank in range(2)]


def check(found: Analysis) -> None:
    """Both ranks were measured, and neither failed."""
    ranks = found.json["session"]["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert {rank["world_size"] for rank in ranks} == {2}
    assert not any(rank["ended"] for rank in ranks)
    assert all(rank["step_ms"] > 0 for rank in ranks)
    assert {"baseline", "device"} <= found.measured


class TestKinds:
    @pytest.mark.parametrize(
        "kind",
        [
            "short",
            *slow("breaks", "stream", "validates", "peeks", "accumulates", "without-workers", "persistent"),
        ],
    )
    def test_all_ranks_stop_at_the_same_step(self, sandbox: Sandbox, kind: str) -> None:
        check(analyze(sandbox, kind))
        first, second = reached(sandbox)
        assert first == second

    @pytest.mark.slow
    def test_ranks_with_more_data_than_others(self, sandbox: Sandbox) -> None:
        """Under ``model.join()`` rank 1 trains on when rank 0 has ended its epoch."""
        check(analyze(sandbox, "uneven", budget=12.0))


class TestLate:
    @pytest.mark.slow
    def test_the_rank_with_slow_samples_holds_the_job(self, sandbox: Sandbox) -> None:
        found = analyze(sandbox, "late", budget=12.0)
        check(found)
        slow = {rank["rank"]: rank["worker_ms"] for rank in found.json["session"]["ranks"]}
        assert slow[1] > 5 * slow[0]
        assert found.json["session"]["rank_trials"]
        straggler = straggler_of(Session.from_dict(found.json["session"]))
        assert straggler is not None
        assert (straggler.ranks, straggler.kind) == ((1,), "input")
        assert straggler.gain.low > 1.5

    @pytest.mark.slow
    def test_it_is_named_before_there_was_time_to_prove_it(self, sandbox: Sandbox) -> None:
        """A trial takes more than a second of steps of 60 ms, and two pairs are needed in half of the budget."""
        found = analyze(sandbox, "late", budget=3.0)
        assert len(found.json["session"]["rank_trials"]) <= 2
        straggler = found.json["straggler"]
        assert straggler is not None, (found.json["no_straggler"], found.json["session"]["ranks"])
        assert (straggler["ranks"], straggler["kind"], straggler["level"]) == ([1], "input", "observed")
        screen = " ".join(sandbox.run(*PIPEDIAG, "report", str(sandbox.report)).stdout.split())
        assert "Rank 1 holds up the job (observed: its workers give a batch every " in screen
        assert ", rank 0's every " in screen


@pytest.mark.slow
@pytest.mark.parametrize("case", hosts.CASES)
def test_two_hosts(case: str) -> None:
    """The hosts are network namespaces of this machine; only root may make them."""
    if not hosts.possible():
        pytest.skip("this system lets this user make no network namespaces")
    assert hosts.run(case) == []

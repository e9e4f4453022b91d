"""What is seen beside the clock: worker figures, and the machine's limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipediag.measure.evidence import BatchCost, Evidence, worker_figures
from pipediag.measure.machine import cgroup_quota, environment


def test_worker_figures() -> None:
    costs = [BatchCost(0.2, 0.1, 0.02), BatchCost(0.3, 0.2, 0.03)]
    assert worker_figures(costs) == {
        "worker_ms": 250.0,
        "worker_cpu": 0.6,
        "worker_queued": 0.1,
        "worker_blocked": 0.3,
    }


def test_worker_figures_with_copies() -> None:
    figures = worker_figures([BatchCost(0.1, 0.1, copy=0.004), BatchCost(0.1, 0.1, copy=0.002)])
    assert figures["copy_ms"] == 3.0


def test_worker_figures_with_collating() -> None:
    figures = worker_figures([BatchCost(0.1, 0.1, collate=0.02), BatchCost(0.1, 0.1, collate=0.03)])
    assert figures["collate_ms"] == 25.0


def test_worker_figures_of_a_worker_with_threads() -> None:
    """More CPU time than wall time: the blocked share is 0, not negative."""
    assert worker_figures([BatchCost(0.1, 0.25)]) == {
        "worker_ms": 100.0,
        "worker_cpu": 2.5,
        "worker_queued": 0.0,
        "worker_blocked": 0.0,
    }


@pytest.mark.parametrize("costs", [[], [BatchCost()]])
def test_worker_figures_without_batches(costs: list[BatchCost]) -> None:
    assert worker_figures(costs) == {}


def test_evidence_of_this_process() -> None:
    gone = 2**22 + 1  # there is no such process
    evidence = Evidence([os.getpid(), gone], None)
    sum(range(100_000))
    figures = evidence.finish(steps=5)
    assert figures.keys() == {"process_cpu", "cores_used", "cores_busy", "disk_read_mb"}
    assert all(value >= 0 for value in figures.values())
    assert figures["cores_used"] == figures["process_cpu"], "its own time counts once"


class TestQuota:
    def test_version_2(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("150000 100000\n")
        assert cgroup_quota(tmp_path) == 1.5

    def test_version_2_unlimited(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("max 100000\n")
        assert cgroup_quota(tmp_path) is None

    @pytest.mark.parametrize("quota, cores", [("400000", 4.0), ("50000", 0.5), ("-1", None)])
    def test_version_1(self, tmp_path: Path, quota: str, cores: float | None) -> None:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
        (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
        assert cgroup_quota(tmp_path) == cores

    def test_version_1_without_a_period(self, tmp_path: Path) -> None:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000\n")
        assert cgroup_quota(tmp_path) is None

    def test_no_control_groups(self, tmp_path: Path) -> None:
        assert cgroup_quota(tmp_path / "nowhere") is None


def test_environment_takes_the_smallest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipediag.measure import machine

    monkeypatch.setattr(machine, "allowed_cpus", lambda: {*range(8)})
    monkeypatch.setattr(machine, "cgroup_quota", lambda: 2.5)
    assert environment()["cores"] == 2.5
    monkeypatch.setattr(machine, "cgroup_quota", lambda: 32.0)
    assert environment()["cores"] == 8
    monkeypatch.setattr(machine, "cgroup_quota", lambda: None)
    assert environment()["cores"] == 8
    monkeypatch.setattr(machine, "allowed_cpus", set)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert environment()["cores"] == 6

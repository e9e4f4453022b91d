"""Evidence beside the clock: figures of the workers and of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from pipediag.measure.evidence import BatchCost, Evidence, worker_figures


def figures_of(
    worker_ms: float,
    cpu: float = 1.0,
    queued: float = 0.0,
    blocked: float = 0.0,
    typical_ms: float | None = None,
    **more: float,
) -> dict[str, float]:
    took = {"worker_ms": worker_ms, "typical_ms": worker_ms if typical_ms is None else typical_ms}
    return {**took, "worker_cpu": cpu, "worker_queued": queued, "worker_blocked": blocked, **more}


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([], {}),
        ([BatchCost()], {}),
        ([BatchCost(0.2, 0.1, 0.02), BatchCost(0.3, 0.2, 0.03)], figures_of(250.0, 0.6, 0.1, 0.3)),
        ([BatchCost(0.1, 0.1)] * 3 + [BatchCost(0.5, 0.5)], figures_of(200.0, typical_ms=100.0)),
        # More CPU time than wall time, by threads: the blocked share is 0, not negative.
        ([BatchCost(0.1, 0.25)], figures_of(100.0, 2.5)),
        ([BatchCost(0.1, 0.1, copy=0.004), BatchCost(0.1, 0.1, copy=0.002)], figures_of(100.0, copy_ms=3.0)),
        ([BatchCost(0.1, 0.1, collate=0.02), BatchCost(0.1, 0.1, collate=0.03)], figures_of(100.0, collate_ms=25.0)),
        ([BatchCost(0.1, 0.1, own=0.004), BatchCost(0.1, 0.1, own=0.002)], figures_of(100.0, own_ms=3.0)),
        # Batches under heavy inspection are left out, as their code may run differently under it, if there are others.
        ([BatchCost(0.1, 0.1), BatchCost(0.3, 0.3, own=0.06)], figures_of(100.0, own_ms=30.0)),
        ([BatchCost(0.3, 0.3, own=0.06)], figures_of(300.0, own_ms=60.0)),
    ],
)
def test_worker_figures(costs: list[BatchCost], expected: dict[str, float]) -> None:
    assert worker_figures(costs) == expected


def test_programs_that_make_the_batches_are_the_scripts_own() -> None:
    """Otherwise ffmpeg, run by the dataset, would be the load of others."""
    evidence = Evidence([], None)
    used = ["-S", "-c", "import time\nwhile time.process_time() < 0.2: pass"]
    subprocess.run([sys.executable, *used], check=True)
    figures = evidence.finish(steps=1)
    assert figures["cores_used"] > figures["process_cpu"] + 0.05


def test_evidence_of_this_process() -> None:
    gone = 2**22 + 1  # there is no such process
    evidence = Evidence([os.getpid(), gone], None)
    sum(range(100_000))
    figures = evidence.finish(steps=5)
    assert figures.keys() == {"process_cpu", "cores_used", "cores_busy", "disk_read_mb"}
    assert all(value >= 0 for value in figures.values())
    assert figures["cores_used"] == figures["process_cpu"], "its own time counts once"


def test_what_a_worker_reads_is_not_told_if_its_counters_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", refused)
    assert "disk_read_mb" not in Evidence([os.getpid()], None).finish(steps=5)


def test_evidence_of_another_process() -> None:
    program = "import time; end = time.time() + 60\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        evidence = Evidence([], None, process.pid)
        spent = psutil.Process(process.pid).cpu_times()
        while psutil.Process(process.pid).cpu_times().user < spent.user + 0.5:
            time.sleep(0.05)
        figures = evidence.finish(steps=1)
        process.kill()
    assert figures["process_cpu"] > 0
    assert figures["cores_used"] == pytest.approx(figures["process_cpu"])

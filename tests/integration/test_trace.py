"""Single steps of whole scripts, on one clock over all processes, and the trace of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import pipediag
from pipediag import report
from pipediag.report import trace
from pipediag.session import UNTOUCHED, Session, Stretch

from ..report.chrome_trace import Slice, read
from .sandbox import Analysis, Sandbox

#: Rounding and the way from a worker to the loop, in seconds.
SLACK = 2e-3


def check(session: Session) -> None:
    """Hold what is true of every stretch, whatever was measured."""
    reached = 0.0
    for one in sorted(session.stretches, key=lambda one: one.asked[0]):
        assert len(one.asked) == len(one.got) == len(one.ready) > 0
        assert len(one.worker) == len(one.made_from) == len(one.made_until) == len(one.collate_ms)
        ends = [*one.asked[1:], one.ended]
        assert all(a <= got <= end for a, got, end in zip(one.asked, one.got, ends, strict=True))
        assert reached <= one.asked[0], "two stretches are never at once"
        reached = one.ended
        assert all(
            since <= until <= reached + SLACK for since, until in zip(one.made_from, one.made_until, strict=True)
        )
        assert all(ms >= 0 for ms in one.collate_ms)


def of(session: Session, rung: str, observed: bool = False) -> list[Stretch]:
    return [one for one in session.stretches if one.rung == rung and (one.round == UNTOUCHED) == observed]


@pytest.mark.slow
def test_a_script(sandbox: Sandbox) -> None:
    """Each worker sleeps 100 ms for a batch, and the loop 20 ms for a step."""
    sleeps = ["--sample-ms", "25", "--step-ms", "20"]
    ran = sandbox.analyze("short_runs.py", *sleeps, rungs="device,sample,baseline,supply", budget=5)
    session = report.read(str(sandbox.report)).session
    check(session)
    assert {one.rung for one in session.stretches} == {window.rung for window in session.windows}
    assert of(session, "baseline", observed=True)
    assert {(one.rung, one.round) for one in session.stretches if one.round != UNTOUCHED} == {
        (window.rung, window.round) for window in session.windows
    }
    for one in of(session, "baseline"):
        assert {*one.worker} == {0, 1}
        made = [until - since for since, until in zip(one.made_from, one.made_until, strict=True)]
        assert 0.1 <= min(made) < 0.2
        # A batch was made before the loop had it, and what it waited for was made meanwhile.
        assert all(until <= got + SLACK for until, got in zip(one.made_until, one.got, strict=True))
        assert min(got - until for until, got in zip(one.made_until, one.got, strict=True)) < 0.2
    first, last = session.stretches[0].asked[0], max(one.ended for one in session.stretches)
    assert 0 < first < last < ran.seconds

    (process,) = read(trace.write(report.read(str(sandbox.report)))).values()
    assert process.name == "short_runs.py"
    assert [*process.tracks] == ["rung", "training loop", "worker 0", "worker 1"]
    loop = [one for one in process.tracks["training loop"] if one.args["rung"] == "baseline"]
    assert {one.name for one in loop} == {"wait", "step"}
    assert all(one.until - one.since >= 20_000 for one in loop if one.name == "step")
    assert {one.name for one in inside(process.tracks["worker 0"])} == {"collate"}
    assert "batches ready" in process.counters


def inside(slices: list[Slice]) -> list[Slice]:
    return [inner for one in slices for inner in one.inner]


@pytest.mark.slow
def test_a_script_of_two_passes(analyze: Callable[..., Analysis], sandbox: Sandbox) -> None:
    analyze("loops.py", "break_early", rungs="device,baseline", budget=8)
    diagnosis = report.read(str(sandbox.report))
    check(diagnosis.session)
    attempts = {one.attempt for one in diagnosis.session.stretches}
    assert len(attempts) > 1
    assert len(read(trace.write(diagnosis))) == len(attempts)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


@pytest.mark.parametrize("workers", [0, 1])
def test_in_this_process(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers)
    diagnosis = pipediag.diagnose(loader, lambda batch: batch.sum(), budget=1.5, knobs=False)
    session = diagnosis.session
    check(session)
    assert of(session, "baseline", observed=True) and of(session, "device")
    assert {worker for one in session.stretches for worker in one.worker} == ({0} if workers else {-1})
    assert sum(len(one.asked) for one in session.stretches) <= 4000
    assert session.tail is not None and sum(session.tail.counts) > 0
    (process,) = read(trace.write(diagnosis)).values()
    made = process.tracks["worker 0"] if workers else inside(process.tracks["training loop"])
    assert {one.name for one in made} == {"batch"}
    file = tmp_path / "x.json"
    report.write(diagnosis, str(file))
    assert trace.write(report.read(str(file))) == trace.write(diagnosis)
    assert len(json.dumps(session.to_dict()["stretches"])) < 400_000

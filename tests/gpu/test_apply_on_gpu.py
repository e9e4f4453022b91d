"""The remedy of a script that trains on a GPU: it pays and is kept, or the script cannot do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("augmented.py")


def python(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def analyze(folder: Path, *arguments: str) -> dict[str, Any]:
    report, plan = folder / "report.json", folder / "plan.json"
    options = ["--budget", "6", "--rungs", "baseline", "--apply", "--apply-budget", "30", "--plan", plan, "-o", report]
    done = python("-m", "pipediag", "analyze", "-v", *options, SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(report.read_text())["remedy"])


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("applied")


@pytest.fixture(scope="module")
def remedy(folder: Path) -> dict[str, Any]:
    return analyze(folder)


def test_it_pays(remedy: dict[str, Any], folder: Path) -> None:
    assert remedy["applied"] and remedy["measured_speedup"]["low"] > 1.5, remedy
    assert remedy["device"] == "cuda:0" and len(remedy["moved"]) == 5
    assert remedy["certificate"]["passed"] and remedy["certificate"]["draws_equal"]
    assert 0 <= remedy["memory_bytes"] < 1 << 30
    assert '+    loader = pipediag.offload(loader, "cuda")' in remedy["how"]["diff"]
    assert (folder / "plan.json").exists()


@pytest.mark.parametrize("how", ["cuda", "numpy", "pin"])
def test_other_ways_to_move_a_batch(tmp_path: Path, how: str) -> None:
    remedy = analyze(tmp_path, "--how", how)
    assert remedy["applied"] == (how == "cuda"), remedy
    if how != "cuda":
        assert "on these batches" in remedy["reverted"] and not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("planned", [True, False])
def test_run_trains_as_natively(remedy: dict[str, Any], folder: Path, planned: bool) -> None:
    plan = ["--plan", folder / "plan.json"] if planned else []
    done = python("-m", "pipediag", "run", *plan, SCRIPT, "--steps", "12")
    ours, theirs = losses(done), losses(python(SCRIPT, "--steps", "12"))
    assert "to cuda:0: " in done.stderr, done.stderr
    assert len(ours) == 12 and ours == pytest.approx(theirs, rel=2e-3)

"""Settings of the loader that matter only with a GPU are tried on one: whatever they gain, it is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis.trials.halving import FIRST_LOOK

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("unpinned.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("knobs") / "report.json"
    options = ["--budget", "60", "--rungs", "device,host,baseline", "-o", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "pipediag", "analyze", "-v", *options, str(SCRIPT)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text()))


def test_pinned_memory_is_tried(report: dict[str, Any]) -> None:
    told = report["loader_settings"]
    assert told is not None, report["verdict"]
    pinned = [one for one in told["tried"] if one["pin_memory"]]
    assert pinned and pinned[0]["why_not"] is None, told
    assert pinned[0]["rounds"] >= FIRST_LOOK and pinned[0]["measured_speedup"]["value"] > 0, told


def test_what_is_recommended_of_it_is_what_was_measured(report: dict[str, Any]) -> None:
    told = report["loader_settings"]
    measured = [one for one in report["recommendations"] if one["evidence"][0].startswith("measured in")]
    best = [one for one in told["tried"] if one["rung"] == told["best"]]
    for one in measured:
        assert one["measured_speedup"] == best[0]["measured_speedup"]
    worth = [one for one in best if one["measured_speedup"]["high"] >= 1 / 0.95]
    assert len(measured) == len(worth), told

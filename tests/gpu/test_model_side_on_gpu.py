"""The model's side on a real GPU: what its kernels take, and the frozen encoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "frozen_encoder.py"
#: Small batches.
ARGUMENTS = ("--size", "128", "--width", "32", "--batch-size", "4", "--workers", "4", "--steps", "1000000")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model-side")
    file = folder / "report.json"
    options = ["--budget", "40", "--rungs", "device,host,baseline", "--profile", str(folder / "trace.json")]
    done = subprocess.run(
        [sys.executable, "-m", "pipediag", "analyze", "-v", *options, "-o", str(file), str(SCRIPT), *ARGUMENTS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text()))


def test_kernels_are_recorded(report: dict[str, Any]) -> None:
    found = report["evidence"]["profile"]
    assert (found["why_not"], found["steps"]) == ("", 5)
    assert found["kernels"] and all(one["ms"] > 0 for one in found["kernels"])
    assert sum(one["ms"] for one in found["operators"]) > 0
    operators = {one["name"] for one in found["operators"]}
    assert any("convolution_backward" in name for name in operators), operators
    device = next(one for one in report["rungs"] if one["name"] == "device")
    assert found["step_ms"] == pytest.approx(device["ms_per_step"]["value"], rel=0.5)
    assert found["busy_ms"] > 0


def test_modules_have_their_kernels(report: dict[str, Any]) -> None:
    found = report["evidence"]["profile"]
    roots = {one["name"].partition(".")[0] for one in found["modules"]}
    assert {"encoder", "decoder"} & roots and roots <= {"encoder", "decoder", "criterion"}, roots
    assert sum(one["ms"] for one in found["modules"]) <= 1.01 * sum_of_kernels(found)


def sum_of_kernels(found: dict[str, Any]) -> float:
    """What all kernels took, those of other streams included."""
    with open(found["trace"]) as file:
        events = json.load(file)["traceEvents"]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return float(sum(event["dur"] for event in events if event.get("cat") in kinds)) / 1000 / found["steps"]


def test_the_encoder_is_found_and_timed(report: dict[str, Any]) -> None:
    found = report["evidence"]["prefix"]
    assert (found["modules"], found["around"], found["why_not"]) == (["encoder"], "", ""), found
    assert found["ms"] > 0 and found["rest_ms"] > 0
    device = next(one for one in report["rungs"] if one["name"] == "device")
    assert found["ms"] + found["rest_ms"] == pytest.approx(device["ms_per_step"]["value"], rel=0.5)
    assert "frozen_encoder.py:" in found["where"]


def test_the_lines_are_told_where_it_may_pay(report: dict[str, Any]) -> None:
    """Where the loader limits, the model's own step does not, and nothing would be gained."""
    for one in report["recommendations"]:
        if one["id"] == "frozen-prefix":
            assert "return batch, encoder(...)" in one["how"] and "StagePipeline" in one["how"]
            assert one["measured_speedup"] is None

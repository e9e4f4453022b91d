"""What is found out about a batch on a real GPU, and what is recommended for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("wasteful.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a process of its own: where other tests have compiled something, no step is watched. What is predicted is
    looked at, so that nothing is tried."""
    file = tmp_path_factory.mktemp("recommend") / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "pipediag", "analyze", "--no-knobs", "--budget", "20", "-o", str(file), str(SCRIPT)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text()))


def leaf(report: dict[str, Any], path: str) -> dict[str, Any]:
    return next(dict(one) for one in report["session"]["batch"]["leaves"] if one["path"] == path)


def test_copies_are_timed(report: dict[str, Any]) -> None:
    batch = report["session"]["batch"]
    assert batch["copy_ms"] > batch["pinned_copy_ms"] > batch["device_copy_ms"] > 0


def test_steps_are_watched(report: dict[str, Any]) -> None:
    batch = report["session"]["batch"]
    assert (batch["unwatched"], batch["autocast"]) == ("", "bfloat16")
    image, mask, extra = (leaf(report, f"['{name}']") for name in ("image", "mask", "extra"))
    assert all(one["copied"] and one["non_blocking"] is False for one in (image, mask, extra))
    assert (image["read"], image["turned_into"], image["arrives"]) == (True, "bfloat16", "float32")
    assert (mask["read"], mask["turned_into"], mask["high"]) == (True, "float32", 18.0)
    assert extra["read"] is False


def test_what_is_recommended(report: dict[str, Any]) -> None:
    assert report["verdict"]["bottleneck"] == "transfer", report["verdict"]
    found = {one["id"]: one for one in report["recommendations"]}
    assert found.keys() >= {"overlap-copies", "pin-memory", "unread", "low-precision", "pack"}
    assert found["unread"]["title"] == "Leave batch['extra'] on the host"
    assert found["pin-memory"]["predicted_speedup"]["value"] > 1.2
    assert found["overlap-copies"]["predicted_speedup"]["value"] > found["unread"]["predicted_speedup"]["value"]

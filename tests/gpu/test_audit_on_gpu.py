"""An audit on a real GPU: what it finds in a script that copies badly, and that it lets a good one pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def audited(folder: Path, *command: str, code: int) -> dict[str, dict[str, Any]]:
    """The items of the checklist by id."""
    file = folder / "audit.json"
    done = subprocess.run(
        [sys.executable, "-m", "pipediag", "audit", "-v", "-o", str(file), *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return {item["id"]: item for item in json.loads(file.read_text())["audit"]["items"]}


def line_of(script: str, text: str) -> int:
    lines = (HERE / script).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number


@pytest.fixture(scope="module")
def wasteful(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("wasteful")
    return audited(folder, "--budget", "40", str(HERE / "wasteful.py"), code=3)


def test_a_script_that_copies_badly(wasteful: dict[str, dict[str, Any]]) -> None:
    status = {id: item["status"] for id, item in wasteful.items()}
    assert status["starvation"] == status["transfer"] == status["syncs"] == status["unread"] == "failed", wasteful
    assert (
        "the loop waits for the copy of batch['image'], batch['mask'] and batch['extra']"
        in wasteful["transfer"]["told"]
    )
    assert wasteful["unread"]["told"].startswith("batch['extra']")


def test_its_synchronising_copies_are_named(wasteful: dict[str, dict[str, Any]]) -> None:
    (call,) = wasteful["syncs"]["todo"]
    line = line_of("wasteful.py", 'tensor.to("cuda")')
    assert call.startswith("to() at ") and f"wasteful.py:{line} (3 times a step, " in call
    assert call.endswith("Copy from pinned memory (pin_memory=True in the loader) and pass non_blocking=True.")


def test_a_good_script(tmp_path: Path) -> None:
    script = [str(HERE / "script.py"), "--pin", "--step-ms", "20"]
    items = audited(tmp_path, "--fail-over", "30", *script, code=0)
    told = {id: item["told"] for id, item in items.items()}
    assert items["syncs"]["status"] == "passed" and told["syncs"] == "none in 16 steps watched", told
    assert items["transfer"]["status"] == "passed", told
    assert told["transfer"].endswith("; from pinned memory, without waiting")
    assert items["unread"]["status"] == "passed", told
    assert items["starvation"]["status"] == "passed", told

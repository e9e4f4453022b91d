"""torch's own sanitizer finds no race in the executor's launches, and finds one that is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..devices import GPU

pytestmark = GPU

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "sanitized.py"


def sanitized(what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), what],
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("what", ["pipeline", "offload"])
def test_no_race_is_found(what: str) -> None:
    done = sanitized(what)
    assert "CSAN" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_a_planted_race_is_found() -> None:
    done = sanitized("race")
    assert done.returncode != 0
    assert "CSAN detected a possible data race" in done.stderr, done.stderr

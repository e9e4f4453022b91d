"""What needs more than one row of the table: a terminal that is lost, and what the next command does after a kill."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time

import pytest

from .fault import trained
from .leaks import Leaks

#: Seconds until something must have happened: far more than it needs.
PATIENCE = 60.0


@pytest.mark.slow
def test_a_lost_terminal(leaks: Leaks) -> None:
    """As of a lost connection: what was measured is written to the report's file."""
    (leaks.cwd / "results").mkdir()
    ours, theirs = pty.openpty()
    process = leaks.start(*trained("analyze", options=("--budget", "60")), terminal=theirs)
    os.close(theirs)
    until, said = time.monotonic() + PATIENCE, b""
    while b" round " not in said and time.monotonic() < until:
        assert process.poll() is None, said
        said += _read(ours)
    os.close(ours)
    assert b" round " in said, said
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGHUP
    assert leaks.left() == {}
    assert json.loads((leaks.cwd / "results" / "report.json").read_text())["session"]["ended"] == "interrupted"


def _read(terminal: int) -> bytes:
    return os.read(terminal, 4096) if select.select([terminal], [], [], 0.1)[0] else b""


@pytest.mark.slow
def test_the_folder_of_a_killed_analysis_is_swept_by_the_next(leaks: Leaks) -> None:
    (leaks.cwd / "results").mkdir()
    leaks.start(*trained("analyze", "--fault=SIGKILL", "--at=import")).communicate(timeout=PATIENCE)
    assert "temporary" in leaks.left()
    leaks.start(*trained("analyze", "--fault=SIGTERM", "--at=import")).communicate(timeout=PATIENCE)
    assert leaks.left() == {}

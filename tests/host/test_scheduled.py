"""Ranks find their leader if a scheduler starts pipediag in front of each."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipediag.errors import UsageError
from pipediag.host import scheduled
from pipediag.host.script import Target
from pipediag.measure.own_rank import LOCAL_VARIABLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The file of a job of two ranks, of which this process is the first."""
    for name in (*scheduled._OF_JOB, *itertools.chain(*LOCAL_VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    yield Path(scheduled._path())


def leading(path: Path, then: str) -> subprocess.Popen[str]:
    """A process that announces a pass at ``path``, says so, and then runs the code ``then``."""
    code = (
        "import sys; from pipediag.host import scheduled; from pipediag.host.script import Target\n"
        f"announced = scheduled._Announcement({str(path)!r})\n"
        f"announced.begin('order', Target('train.py', ['-x']), None)\nprint('begun', flush=True)\n{then}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_a_pass_is_seen_as_long_as_its_leader_lives(job: Path) -> None:
    assert scheduled._begun(str(job)) is None
    leader = leading(job, "sys.stdin.read()")
    begun = scheduled._begun(str(job))
    assert begun == {"pass": 1, "order": "order", "argv": ["train.py", "-x"], "flags": [], "folder": None}
    leader.communicate()
    assert scheduled._begun(str(job)) is None and not job.exists()


def test_what_a_killed_leader_left_is_no_pass(job: Path) -> None:
    leader = leading(job, "sys.stdin.read()")
    leader.kill()
    leader.communicate()
    assert json.loads(job.read_text())["pass"] == 1 and scheduled._begun(str(job)) is None
    leading(job, "").communicate()
    assert not job.exists()


def test_two_leaders_of_one_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = leading(job, "sys.stdin.read()")
    monkeypatch.setattr(scheduled, "_announcement", None)
    with pytest.raises(UsageError, match="another pipediag leads this job already"):
        scheduled.announce("order", Target("train.py"), None)
    leader.communicate()


def test_nothing_is_announced_outside_a_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK")
    scheduled.announce("order", Target("train.py"), None)
    assert not job.exists() and not scheduled.follows()


def test_a_rank_without_a_leader(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(scheduled, "_PATIENCE", 0.2)
    assert scheduled.follows()
    with pytest.raises(UsageError, match="no pipediag leads this job on this host"):
        scheduled.follow()


def test_another_job_has_another_file(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert Path(scheduled._path()) != job


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_pipe_under_the_jobs_name_stops_nobody(job: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """Anybody may make one in a shared temporary folder. Opening it would wait for its other end."""
    os.mkfifo(job)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(scheduled, "_announcement", None)
    with pytest.raises(UsageError, match="another user's, or no regular file"):
        scheduled.follow() if rank == "1" else scheduled.announce("order", Target("train.py"), None)


def test_a_variable_that_a_job_left_is_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(scheduled, "_PATIENCE", 0.0)
    with pytest.raises(UsageError, match="unset LOCAL_RANK"):
        scheduled.follow()

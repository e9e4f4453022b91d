"""Jobs whose scheduler starts pipediag in front of every rank, as srun does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from .sandbox import PATIENCE, PIPEDIAG, SCRIPTS, Sandbox

TRAIN = str(SCRIPTS / "ranks" / "train.py")


def free_port() -> int:
    """Return a port that no outgoing connection gets: rank 1, which may try before rank 0 listens, could otherwise
    connect to itself."""
    for port in range(20000 + os.getpid() % 5000, 32768):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def started(sandbox: Sandbox, *args: str, budget: float = 3.0) -> list[subprocess.Popen[str]]:
    """Start the same command for two ranks; only their variables differ."""
    port = free_port()
    options = ["--no-knobs", "--rungs", "device,baseline", "--budget", str(budget), "-o", str(sandbox.report)]
    ranks = []
    for rank in ("1", "0"):
        sandbox._environment.update(
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS="1",
        )
        ranks.append(sandbox.start(*PIPEDIAG, "analyze", *options, TRAIN, *args))
    return ranks[::-1]


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    done = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    return [(rank.returncode, *streams) for rank, streams in zip(ranks, done, strict=True)]


@pytest.mark.slow
def test_one_report_of_all_ranks(sandbox: Sandbox) -> None:
    """A script that ends before its rungs are measured is run several times, in each rank as often as in the first."""
    first, second = ended(started(sandbox, "--steps", "30", budget=14.0))
    assert first[0] == second[0] == 0, (first, second)
    report = json.loads(sandbox.report.read_text())
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert {rung["name"] for rung in report["rungs"] if rung["windows"]} == {"device", "baseline"}
    assert "% of every step" in first[1] and "% of every step" not in second[1]
    assert second[1].count("rank 1 is training") == report["script"]["passes"] and "pipediag: " not in second[2]


@pytest.mark.slow
def test_a_signal_to_all(sandbox: Sandbox) -> None:
    ranks = started(sandbox, "--steps", "400000", budget=60.0)
    until = time.monotonic() + PATIENCE
    while not list(sandbox._scratch.glob("pipediag-job-*")) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(10.0)
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    first, second = ended(ranks)
    assert first[0] == 130 and second[0] == 130, (first, second)
    assert json.loads(sandbox.report.read_text())["ranks"][1]["rank"] == 1


@pytest.mark.slow
def test_a_rank_that_fails(sandbox: Sandbox) -> None:
    first, second = ended(started(sandbox, "--steps", "400000", "--at", "12", "--ends", "raise", budget=60.0))
    assert first[0] == 1 and second[0] == 1, (first, second)
    assert "rank 1: LookupError" in json.loads(sandbox.report.read_text())["script"]["error"]

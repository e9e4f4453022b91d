"""Jobs of two ranks as frameworks start them: measured whole, and trained as natively by ``run``."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Sandbox

pytestmark = pytest.mark.slow
pytest.importorskip("torchvision")

SCRIPT = SCRIPTS / "launchers"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("accelerate", "launch", "--multi_gpu", "--num_machines", "1", "--num_processes", "2")
ACCELERATE = (*LAUNCH, "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")


def job(package: str, *command: str) -> object:
    """A command that starts two ranks; ``*`` stands before the script's name."""
    missing = importlib.util.find_spec(package) is None
    words = tuple(str(SCRIPT / word[1:]) if word.startswith("*") else word for word in command)
    name = " ".join(Path(word).name for word in command if word.startswith("*") or not word.startswith("-"))
    return pytest.param(words, id=name, marks=pytest.mark.skipif(missing, reason=f"{package} is not installed"))


JOBS = [
    job("torch", *TORCHRUN, "*plain.py"),
    job("torch", "*plain.py", "--way", "fork"),
    job("accelerate", *ACCELERATE, "*accelerated.py"),
    job("accelerate", "*accelerated.py", "--way", "notebook"),
    job("lightning", "*trainer.py", "--way", "ddp"),
    job("lightning", "*trainer.py", "--way", "ddp_fork"),
    job("lightning", "*fabric.py", "--way", "ddp"),
    job("transformers", *TORCHRUN, "*hugging_face.py"),
    job("ignite", *TORCHRUN, "*ignited.py"),
]


@pytest.fixture(autouse=True)
def commands(sandbox: Sandbox) -> None:
    """The console scripts of this Python are found; a process uses one core."""
    folder = os.path.dirname(sys.executable)
    sandbox._environment.update(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="1")


@pytest.mark.parametrize("command", JOBS)
def test_both_ranks_are_measured_and_wait_for_data(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    options = ("--budget", "16", "--no-knobs", "--rungs", "device,baseline", "-o", str(sandbox.report))
    ran = sandbox.run(*PIPEDIAG, "analyze", *options, *command)
    assert ran.code == 0, f"{ran.stdout}\n{ran.stderr}"
    report = json.loads(sandbox.report.read_text())
    assert [rank["rank"] for rank in report["session"]["ranks"]] == [0, 1]
    assert not any(rank["ended"] for rank in report["session"]["ranks"])
    ms = {rung["name"]: rung["ms_per_step"]["value"] for rung in report["rungs"] if rung["windows"]}
    assert ms["baseline"] > 30, "each batch sleeps for 32 ms, in one worker"
    assert ms["device"] < ms["baseline"] / 2


@pytest.mark.parametrize("command", JOBS)
def test_run_trains_each_rank_as_natively(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    command = (*command, "--batches", "10", "--epochs", "1")
    natively = command if not command[0].endswith(".py") else (sys.executable, *command)
    native, ran = sandbox.run(*natively), sandbox.run(*PIPEDIAG, "run", *command)
    assert (native.code, ran.code) == (0, 0), ran.stderr
    losses = [Counter(line for line in one.stdout.splitlines() if " loss " in line) for one in (native, ran)]
    assert losses[0] == losses[1] and losses[0].total() == 20
    (said,) = ran.said
    assert "RandomHorizontalFlip, ToDtype, dim" in said

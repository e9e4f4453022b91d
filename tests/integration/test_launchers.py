"""Jobs of several processes as launchers really start them: every rank is hosted, and nothing else is.

``-m slow`` adds the other ways to start one, and to end it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .sandbox import PATIENCE, PIPEDIAG, SCRIPTS, Ran, Sandbox, line_of

RANKS = SCRIPTS / "ranks"
TRAIN = str(RANKS / "train.py")
#: Options of torchrun for a job beside others on the same machine.
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
ANALYZE = (*PIPEDIAG, "analyze", "--no-knobs", "--rungs", "device,baseline")
#: Steps of a job that does not end by itself.
ENDLESS = ("--steps", "400000")
#: Seconds within which everything has ended after a rank or the user has ended it.
ENDS_WITHIN = 15.0


@pytest.fixture(autouse=True)
def commands(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console scripts of this Python are found; a process uses one core."""
    folder = os.path.dirname(sys.executable)
    sandbox._environment.update(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="1")


def analyzed(sandbox: Sandbox, *command: str, budget: float = 3, code: int = 0) -> Ran:
    ran = sandbox.run(*ANALYZE, "--budget", str(budget), "-o", str(sandbox.report), *command)
    assert ran.code == code, f"{ran.stdout}\n{ran.stderr}"
    return ran


def is_measured(sandbox: Sandbox, where: str = f"{TRAIN}:{line_of('ranks/train.py', '# the loop')}") -> None:
    report = json.loads(sandbox.report.read_text())
    assert report["loader"]["where"] == where
    assert report["session"]["observed"] or report["session"]["windows"]


@pytest.mark.slow
def test_torchrun(sandbox: Sandbox) -> None:
    """Both ranks train as natively, their files are known, and the progress is that of one."""
    # Enough for one run of the script, which takes 0.9 s, and too little for another: that begins with a second left.
    ran = analyzed(sandbox, *TORCHRUN, TRAIN, "--steps", "25", budget=1.5)
    is_measured(sandbox)
    # Two ranks may write into one line.
    assert sorted(re.findall(r"rank \d of 2(?=:)", ran.stdout)) == ["rank 0 of 2", "rank 1 of 2"]
    assert sum("training loader at" in line for line in ran.said) == 1
    assert "model.pt" in json.loads(sandbox.report.read_text())["session"]["script"]["wrote"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("python", "-u", "-m", "torch.distributed.run", *TORCHRUN[1:], TRAIN),
        (str(RANKS / "spawns.py"), "spawn"),
        (str(RANKS / "spawns.py"), "fork"),
        (str(RANKS / "spawns.py"), "forkserver"),
        (str(RANKS / "relaunches.py"),),
    ],
    ids=lambda command: Path(command[-1]).stem if command[0] == "python" else " ".join(command)[len(str(RANKS)) + 1 :],
)
def test_other_ways_to_start_one(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    analyzed(sandbox, *command)
    is_measured(sandbox)


@pytest.mark.slow
def test_processes_that_do_not_train_are_left_alone(sandbox: Sandbox) -> None:
    """They see the same command line, flags and environment."""
    script = str(RANKS / "helpers.py")
    native = sandbox.run(sys.executable, script)
    ran = analyzed(sandbox, script, budget=1)
    assert native.code == 0 and len(native.stdout.splitlines()) == 11
    assert ran.stdout.startswith(native.stdout)
    is_measured(sandbox, f"{script}:{line_of('ranks/helpers.py', 'for x in DataLoader')}")


def test_a_rank_that_another_shell_starts_is_said_not_to_be_measured(sandbox: Sandbox) -> None:
    script = sandbox.folder / "shell.py"
    command = f"{sys.executable} -c pass"
    script.write_text(
        f"import os, subprocess\nsubprocess.run({command!r}, shell=True, env={{**os.environ, 'RANK': '1'}})\n"
    )
    ran = analyzed(sandbox, str(script), code=1)
    assert f"trains in processes that it starts itself ({command}) and that pipediag cannot measure" in ran.said[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ("raise", "rank 1: LookupError: sample 7 is damaged"),
        ("kill", "rank 1: it ended without a word"),
    ],
)
def test_a_rank_that_fails_ends_the_job(sandbox: Sandbox, ends: str, sentence: str) -> None:
    """The error is the rank's, the exit code the launcher's, and what was measured is reported."""
    command = (*TORCHRUN, TRAIN, *ENDLESS, "--at", "12", "--ends", ends)
    analyzed(sandbox, *command, budget=60, code=1)
    report = json.loads(sandbox.report.read_text())
    assert sentence in report["script"]["error"] and report["session"]["observed"]
    assert sentence in next(one["message"] for one in report["warnings"] if one["code"] == "script-failed")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["raise", "kill"])
@pytest.mark.parametrize("script", [("spawns.py", "spawn"), ("relaunches.py",)], ids=lambda script: script[0])
def test_a_rank_that_fails_under_other_launchers(sandbox: Sandbox, script: tuple[str, ...], ends: str) -> None:
    name, *args = script
    analyzed(sandbox, str(RANKS / name), *args, *ENDLESS, "--at", "12", "--ends", ends, budget=60, code=1)
    assert "rank 1: " in json.loads(sandbox.report.read_text())["script"]["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whom", "code"),
    [
        (signal.SIGINT, "all", 130),
        (signal.SIGINT, "pipediag", 130),
        (signal.SIGTERM, "pipediag", 143),
        (signal.SIGTERM, "launcher", 1),
    ],
)
def test_a_signal_ends_every_rank(sandbox: Sandbox, number: signal.Signals, whom: str, code: int) -> None:
    process = sandbox.start(*ANALYZE, "--budget", "60", "-o", str(sandbox.report), *TORCHRUN, TRAIN, *ENDLESS)
    _wait_for(process, "the loop waits ")
    began = time.monotonic()
    if whom == "all":  # as a terminal does
        os.killpg(process.pid, number)
    else:
        top = psutil.Process(process.pid)
        (top if whom == "pipediag" else top.children()[0]).send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < ENDS_WITHIN and process.returncode == code
    is_measured(sandbox)


def _wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read what pipediag says until it has said this."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it ended before it said: {words}")


@pytest.mark.slow
def test_run_puts_every_rank_under_the_remedy(sandbox: Sandbox) -> None:
    """The first rank says what it does; the loss is that of the native run in each."""
    command = (str(SCRIPTS / "remediable.py"), "--batches", "4", "--epochs", "2", "--losses", "--ms", "0.1")
    native = sandbox.run(*TORCHRUN, *command)
    ran = sandbox.run(*PIPEDIAG, "run", *TORCHRUN, *command)
    assert (native.code, ran.code) == (0, 0), ran.stderr
    assert sorted(ran.stdout.split()) == sorted(native.stdout.split()) and native.stdout
    (said,) = ran.said
    assert said.startswith("pipediag: moved from the loader at ")

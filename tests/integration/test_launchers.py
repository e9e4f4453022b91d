"""Jobs as launchers, frameworks and schedulers really start them: every rank is hosted, and nothing else is."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from .sandbox import PATIENCE, PIPEDIAG, SCRIPTS, Ran, Sandbox, line_of, said_until

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
    said_until(process, "the loop waits ")
    began = time.monotonic()
    if whom == "all":  # as a terminal does
        os.killpg(process.pid, number)
    else:
        top = psutil.Process(process.pid)
        (top if whom == "pipediag" else top.children()[0]).send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < ENDS_WITHIN and process.returncode == code
    is_measured(sandbox)


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


FRAMEWORKS = SCRIPTS / "launchers"
LAUNCH = ("accelerate", "launch", "--multi_gpu", "--num_machines", "1", "--num_processes", "2")
ACCELERATE = (*LAUNCH, "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")


def job(package: str, *command: str) -> object:
    """A command that starts two ranks; ``*`` stands before the script's name."""
    missing = importlib.util.find_spec(package) is None
    words = tuple(str(FRAMEWORKS / word[1:]) if word.startswith("*") else word for word in command)
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


@pytest.mark.slow
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


@pytest.mark.slow
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

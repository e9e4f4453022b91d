"""Watch real trainings in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipediag.errors import PipediagError
from pipediag.watch.sampling import local_numbers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watch reads Linux's /proc")

HEAD = """
import os
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, index):
        time.sleep({sleep})
        return torch.ones(8)

def batches():
    while True:
        time.sleep({sleep})
        yield torch.ones(4, 8)

def main():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    optimizer.register_step_post_hook(lambda *_: time.sleep(0.05))
    for number, batch in enumerate({batches}):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if number == 3:
            open("{ready}", "w").close()

if __name__ == "__main__":
    child = os.fork() if "forked" in sys.argv else 0
    os.waitpid(child, 0) if child else main()
"""
LOADER = "DataLoader(Samples(), batch_size=4, num_workers=2)"
Start = Callable[..., psutil.Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a training, wait until it trains, and end it with the test.

    A shell is between: pytest has torch in its memory after other tests, and a child of such a process is its worker.
    """
    shells: list[subprocess.Popen[bytes]] = []

    def begin(batches: str, sleep: float, *arguments: str) -> psutil.Process:
        ready, folder = tmp_path / "ready", tmp_path / "work"
        folder.mkdir()
        (folder / "train.py").write_text(HEAD.format(batches=batches, sleep=sleep, ready=ready))
        shell = subprocess.Popen(["sh", "-c", '"$@"; :', "sh", sys.executable, "train.py", *arguments], cwd=folder)
        shells.append(shell)
        while not ready.exists():
            assert shell.poll() is None
            time.sleep(0.1)
        (process,) = psutil.Process(shell.pid).children()
        try:
            local_numbers(process.pid)
        except PipediagError as error:
            if "may not be read" in str(error):
                pytest.skip(str(error))
            raise
        return process

    yield begin
    for shell in shells:
        for process in psutil.Process(shell.pid).children(recursive=True) if shell.poll() is None else []:
            process.kill()
        shell.wait()


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipediag", "watch", *arguments], capture_output=True, text=True, timeout=120
    )


def seen(*arguments: str) -> dict[str, Any]:
    done = watch(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_workers_that_hold_up_the_loop(start: Start, tmp_path: Path) -> None:
    process = start(LOADER, 0.1, "--api-key", "secret")
    before = Path(f"/proc/{process.pid}/status").read_text().split("SigPnd:")[1].split("\n")[0]
    report = seen(str(process.pid), "--seconds", "6")
    verdict, watched = report["verdict"], report["session"]["watched"]
    assert (verdict["bottleneck"], verdict["level"]) == ("load", "observed")
    assert verdict["starved"]["value"] > 0.5  # 0.15 of 0.2 s; the machine may be busy
    assert verdict["culprit"]["where"].endswith("train.py:13")
    assert (report["loader"]["dataset"], report["loader"]["num_workers"]) == ("Samples", 2)
    assert watched["steps_by"] and not watched["ended"]
    assert report["script"]["argv"] == ["train.py", "--api-key", "***"]
    assert "worker_blocked" in report["session"]["observed"][0]["evidence"]
    # The target is as it was.
    assert process.is_running() and os.listdir(tmp_path / "work") == ["train.py"]
    assert Path(f"/proc/{process.pid}/status").read_text().split("SigPnd:")[1].split("\n")[0] == before
    assert Path(f"/proc/{process.pid}/status").read_text().split("TracerPid:")[1].split()[0] == "0"


def test_a_generator_without_a_loader_that_is_fast_enough(start: Start) -> None:
    process = start("batches()", 0.0)
    report = seen(str(process.pid), "--seconds", "4")
    assert report["verdict"]["bottleneck"] in ("none", "inconclusive")  # the machine may be busy
    assert report["verdict"]["starved"]["value"] < 0.2


@pytest.mark.slow
def test_a_target_that_ends_meanwhile_is_said(start: Start) -> None:
    process = start("batches()", 0.1)
    watching = subprocess.Popen(
        [sys.executable, "-m", "pipediag", "watch", str(process.pid), "--seconds", "60", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stderr is not None
    assert "the loop waits" in watching.stderr.readline()
    process.kill()
    process.wait()
    out, _ = watching.communicate(timeout=60)
    report = json.loads(out)
    assert report["session"]["watched"]["ended"]
    assert any("ended after" in warning["message"] for warning in report["warnings"])


def test_without_a_number_the_only_training_is_found(start: Start, tmp_path: Path) -> None:
    process = start(LOADER, 0.0)
    done = watch("--seconds", "2", "-o", str(tmp_path / "seen.json"))
    if done.returncode == 2:  # others train on this machine, too
        assert f"pipediag: {process.pid}, train.py, 2 workers\n" in done.stderr
        return
    assert "to prove it: " in done.stdout
    again = subprocess.run(
        [sys.executable, "-m", "pipediag", "report", str(tmp_path / "seen.json")], capture_output=True, text=True
    )
    assert again.stdout == done.stdout


def test_a_parent_of_the_process_that_trains(start: Start) -> None:
    process = start(LOADER, 0.0, "forked")
    done = watch(str(process.pid), "--seconds", "2")
    (child,) = process.children()
    assert done.returncode == 1 and done.stderr.rstrip().endswith(f"may train: pipediag watch {child.pid}")


def test_no_such_process() -> None:
    done = watch("999999999")
    assert done.returncode == 1 and done.stderr == "pipediag: there is no process 999999999\n"


def test_a_process_that_runs_no_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        done = watch(str(process.pid))
        process.kill()
    assert done.returncode == 1 and done.stderr.startswith(f"pipediag: process {process.pid} ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_ends_a_live_view_with_its_last_screen(start: Start) -> None:
    process = start("batches()", 0.1)
    command = [sys.executable, "-m", "pipediag", "watch", "--live", str(process.pid)]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    first = watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    rest = watching.stdout.read()
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0 and errors == ""
    assert first.startswith("YOUR TRAINING WAITS FOR DATA")
    assert rest.count("to prove it: ") == 2 and process.is_running()

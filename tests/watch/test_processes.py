from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pipediag.errors import PipediagError
from pipediag.watch.processes import Training, described, jobs_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watch reads Linux's /proc")
#: A program that starts two more with the variables of ranks, as a launcher does; each of these starts a worker, and
#: another program.
LAUNCHER = """
import os, subprocess, sys, time
rank = "import os, subprocess, time; subprocess.Popen(['sleep', '60']); os.fork() or time.sleep(60); "
rank += "os.write(1, bytes([49, 10])); time.sleep(60)"
open("train.py", "w").write(rank)
given = {"WORLD_SIZE": "2", "MASTER_PORT": "29500"}
for number in (1, 0):
    subprocess.Popen([sys.executable, "train.py", "--lr", "1"], env={**os.environ, **given, "RANK": str(number)})
time.sleep(60)
"""


@pytest.fixture
def launcher(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr("pipediag.watch.processes._has_torch", lambda pid: True)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (script := os.path.join(tmp_path, "launch.py"))
    with open(script, "w") as file:
        file.write(LAUNCHER)
    process = subprocess.Popen(
        [sys.executable, script, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"1\n"] * 2
    yield process.pid
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()


def test_a_launcher_stands_for_its_ranks(launcher: int) -> None:
    ((first, second),) = jobs_of(launcher)
    assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
    assert first.job == second.job
    assert os.path.basename(first.argv[0]) == "launch.py"  # what is analysed is the job
    assert len(first.workers) == 1
    assert described([first, second]).startswith(f"{first.pid}, ")
    assert "2 ranks, 1 worker" in described([first, second])


@pytest.mark.parametrize("rank", ["9" * 5000, "9" * 10, "first", "-1", ""])
def test_a_process_may_call_itself_any_rank(rank: str) -> None:
    given = {**os.environ, "RANK": rank, "SLURM_PROCID": "3"}
    waits = ["sh", "-c", "echo; read line"]
    with subprocess.Popen(waits, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has been begun
        try:
            assert Training.of(process.pid).rank == 3
        finally:
            process.communicate()


def test_a_rank_alone(launcher: int) -> None:
    ((first, _),) = jobs_of(launcher)
    assert jobs_of(first.pid) == [[first]]


def test_no_such_process() -> None:
    with pytest.raises(PipediagError, match="there is no process 999999999"):
        Training.of(999999999)


#: A program that trains, with two workers that are started as its argument says. Told to, it runs another program
#: that has torch.
TRAINS = """
import subprocess, sys, time, torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    if "evaluates" in sys.argv:
        subprocess.Popen([sys.executable, "-c", "import time, torch; print(2, flush=True); time.sleep(60)"])
    if sys.argv[1] != "none":
        batches = iter(DataLoader(range(9), num_workers=2, multiprocessing_context=sys.argv[1]))
        next(batches)
    print(1, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def trains(tmp_path: os.PathLike[str]) -> Iterator[Callable[..., int]]:
    """Return a function that starts the program with these arguments, and returns its number once it trains."""
    (script := os.path.join(tmp_path, "train.py"))
    with open(script, "w") as file:
        file.write(TRAINS)
    started = []

    def start(*arguments: str) -> int:
        process = subprocess.Popen(
            [sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in arguments} == {f"{n}\n" for n in range(1, len(arguments) + 1)}
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_workers_however_they_are_started(trains: Callable[..., int], method: str) -> None:
    """Multiprocessing's own helpers are none."""
    assert len(Training.of(trains(method)).workers) == 2


def test_another_program_of_a_training_is_no_worker(trains: Callable[..., int]) -> None:
    pid = trains("none", "evaluates")
    assert Training.of(pid).workers == []
    with suppress(PipediagError):  # there may be other trainings, or none
        assert pid not in {one.pid for job in jobs_of(None) for one in job}

"""A process that would wait for ever ends when its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPO = Path(__file__).resolve().parents[1]
#: Seconds in which the child of a killed process has to end.
GRACE = 6.0

CHILD = """
import os, sys, time
from pipediag import lifeline
if sys.argv[2] == "watched":
    lifeline.prctl = lambda option, value: False
lifeline.end_with(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid()), sys.argv[1]])
time.sleep(60)
"""
WORKER = """
import multiprocessing, os, time
from pipediag.lifeline import end_worker_with_parent

def work(queue):
    end_worker_with_parent()
    end_worker_with_parent()
    queue.put(bytes(1 << 24))  # more than a pipe holds: ending in order waits for a reader
    os.write(1, f"{os.getpid()}{os.linesep}".encode())  # in one piece

if __name__ == "__main__":
    end_worker_with_parent()  # nothing, as this is no worker
    context = multiprocessing.get_context("METHOD")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(60)
"""


def first_pids(command: list[str], count: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, [psutil.Process(int(process.stdout.readline())) for _ in range(count)]


def ends_after_parent(process: subprocess.Popen[str], children: list[psutil.Process]) -> bool:
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=GRACE)
    for child in alive:
        child.kill()
    assert process.stdout is not None
    process.stdout.close()
    return not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", ["by-the-kernel", "watched"])
def test_a_child(how: str) -> None:
    assert ends_after_parent(*first_pids([sys.executable, "-c", PARENT, how], 1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_whose_results_nobody_reads(tmp_path: Path, method: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(WORKER.replace("METHOD", method))
    assert ends_after_parent(*first_pids([sys.executable, str(script)], 2))


@pytest.mark.parametrize("way", ["end_with", "end_with_starter"])
def test_a_parent_that_had_gone_already(way: str) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    child = CHILD.replace("end_with(", f"{way}(")
    done = subprocess.run([sys.executable, "-c", child, str(gone.pid), ""], env=environment, timeout=30)
    assert done.returncode == -signal.SIGKILL

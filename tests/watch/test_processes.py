from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipediag.errors import PipediagError
from pipediag.watch.processes import Training, described, jobs_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watch reads Linux's /proc")
#: A program that starts two more with the variables of ranks, as a launcher does; each of these starts a worker.
LAUNCHER = """
import os, subprocess, sys, time
rank = "import os, subprocess, time; subprocess.Popen(['sleep', '60']); os.write(1, bytes([49, 10])); time.sleep(60)"
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


def test_a_rank_alone(launcher: int) -> None:
    ((first, _),) = jobs_of(launcher)
    assert jobs_of(first.pid) == [[first]]


def test_no_such_process() -> None:
    with pytest.raises(PipediagError, match="there is no process 999999999"):
        Training.of(999999999)

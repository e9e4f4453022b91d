"""Where a script hangs, read from what Python writes when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipediag.host.supervision import stuck_at

REPO = Path(__file__).resolve().parents[2]
DATALOADER = "/x/site-packages/torch/utils/data/dataloader.py"


def stacks(*frames: str) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in map(str.split, frames)]
    return "Stack (most recent call first):\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (stacks(f"{DATALOADER} 9 _get_data", "/u/train.py 7 <module>"),
         "it waited at /u/train.py:7 for a batch: a DataLoader worker hangs"),
        (stacks("/u/data.py 3 __getitem__", f"{DATALOADER} 9 _next_data", "/u/train.py 7 <module>"),
         "it was at /u/data.py:3, in __getitem__"),
        (stacks(f"{DATALOADER} 9 _get_data"), ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_the_stacks_say(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "stacks.txt").write_text(text)
    assert stuck_at(str(tmp_path / "stacks.txt")) == told


def test_a_process_that_is_ended_writes_them(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "stacks.txt"
    script.write_text(
        "import sys, time\nfrom pipediag.host.supervision import write_stacks_on_end\n"
        "write_stacks_on_end(sys.argv[1])\nprint('ready', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen([sys.executable, str(script), str(file)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None and process.stdout.readline()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert stuck_at(str(file)) == f"it was at {script}:4, in <module>"


def test_a_handler_of_the_scripts_own_stays_in_what_it_forks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys\nfrom pipediag.host.supervision import write_stacks_on_end\n"
        "write_stacks_on_end(sys.argv[1])\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "child = os.fork()\nif not child:\n    os.kill(os.getpid(), signal.SIGTERM)\n    os._exit(8)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "stacks.txt")], env=environment, timeout=20)
    assert done.returncode == 7


def test_there_are_none(tmp_path: Path) -> None:
    assert stuck_at(str(tmp_path / "none")) == ""

"""A command that is killed, at whatever moment: its processes end, and it leaves nothing behind.

``python -m pytest tests/faults -m "slow or not slow"`` runs every combination, the default a quick half.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .leaks import PIPEDIAG, Leaks

pytest.importorskip("torchvision")

SCRIPT = str(Path(__file__).parent / "scripts" / "trains.py")
#: Seconds until the moment at which a command is killed, and from then to its end: far more than either needs.
PATIENCE = 60.0
WORKERS = 2

ANALYZE = ("analyze", "--budget", "60", "--no-knobs")
APPLY = ("analyze", "--budget", "3", "--no-knobs", "--rungs", "device,baseline", "--apply")
#: Words by which Python tells of a hook or destructor that raised.
_BAD = re.compile("Exception ignored|Traceback|pipediag/")


class Started:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[str], cwd: Path) -> None:
        self.process = process
        self.said = ""
        self._steps = cwd / "steps"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    @property
    def steps(self) -> int:
        """Number of the training's last step."""
        text = self._steps.read_text().split() if self._steps.exists() else []
        return int(text[1]) if len(text) == 2 else 0

    def workers(self) -> list[psutil.Process]:
        """The workers below the process of the script."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []
        return [one for one in below if "multiprocessing.resource_tracker" not in " ".join(_command(one))]

    def wait_until(self, reached: Callable[[Started], object]) -> None:
        until = time.monotonic() + PATIENCE
        while not reached(self):
            assert self.process.poll() is None, f"it ended by itself:\n{self.said}"
            assert time.monotonic() < until, f"it did not get there:\n{self.said}"
            time.sleep(0.02)

    def end(self, number: int, whole_group: bool) -> int:
        """Send the signal and return the exit code."""
        (os.killpg if whole_group else os.kill)(self.process.pid, number)
        code = self.process.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


#: How to tell that a command has come to the moment: from the script's words and steps, and from the processes.
MOMENTS: dict[str, Callable[[Started], object]] = {
    "import": lambda run: "at import" in run.said,
    "first-batch": lambda run: "at first-batch" in run.said,
    "window": lambda run: run.steps > 100,
    # One process more than the script's own and its workers: it makes samples both ways.
    "certification": lambda run: len(run.workers()) > 1 + WORKERS,
    "certification-of-run": lambda run: run.workers(),
    "training": lambda run: run.steps > 5,
}

QUICK = [
    (ANALYZE, "import", signal.SIGHUP),
    (ANALYZE, "window", signal.SIGKILL),
    (ANALYZE, "window", signal.SIGINT),
    (("run",), "certification-of-run", signal.SIGKILL),
    (("run",), "training", signal.SIGTERM),
]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
ALL = [
    *((ANALYZE, moment, number) for moment in ("import", "first-batch", "window") for number in SIGNALS),
    *((APPLY, "certification", number) for number in SIGNALS),
    *((("run",), moment, number) for moment in ("import", "certification-of-run", "training") for number in SIGNALS),
]


def named(command: tuple[str, ...], moment: str, number: signal.Signals) -> str:
    return f"{command[0]}{'-apply' if '--apply' in command else ''}-{moment}-{number.name}"


CASES = [pytest.param(*case, id=named(*case)) for case in QUICK] + [
    pytest.param(*case, id=named(*case), marks=pytest.mark.slow) for case in ALL if case not in QUICK
]


@pytest.mark.parametrize(("command", "moment", "number"), CASES)
def test_it(leaks: Leaks, command: tuple[str, ...], moment: str, number: signal.Signals) -> None:
    waits = [f"--wait-at={moment}"] if moment in ("import", "first-batch") else []
    size = ["--size=256"] if moment.startswith("certification") else []
    run = Started(leaks.start(*PIPEDIAG, *command, SCRIPT, *waits, *size), leaks.cwd)
    run.wait_until(MOMENTS[moment])
    code = run.end(number, whole_group=number == signal.SIGINT)
    killed = number == signal.SIGKILL
    assert leaks.left(folders=not killed) == {}
    steps = run.steps
    time.sleep(0.2)
    assert run.steps == steps, "the script trains on"
    codes = (128 + number, -number) if command[0] == "analyze" else (-number, 1)  # 1: as Python does without us
    assert code in ((-number,) if killed else codes), run.said
    if command[0] == "analyze" and not killed:
        assert not _BAD.search(run.said), run.said
    assert "Exception ignored" not in run.said, run.said


@pytest.mark.slow
def test_a_lost_terminal(leaks: Leaks) -> None:
    """As of a lost connection: what was measured is written to the report's file."""
    ours, theirs = pty.openpty()
    report = leaks.cwd / "report.json"
    process = leaks.start(*PIPEDIAG, *ANALYZE, "-o", str(report), SCRIPT, terminal=theirs)
    os.close(theirs)
    until = time.monotonic() + PATIENCE
    while b"worker" not in (said := _read(ours)) and time.monotonic() < until:
        assert process.poll() is None, said
    os.close(ours)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGHUP
    assert leaks.left() == {}
    assert json.loads(report.read_text())["session"]["ended"] == "interrupted"


def _read(terminal: int) -> bytes:
    return os.read(terminal, 4096) if select.select([terminal], [], [], 0.1)[0] else b""


@pytest.mark.slow
def test_the_folder_of_a_killed_analysis_is_swept_by_the_next(leaks: Leaks) -> None:
    run = Started(leaks.start(*PIPEDIAG, *ANALYZE, SCRIPT, "--wait-at=import"), leaks.cwd)
    run.wait_until(MOMENTS["import"])
    run.end(signal.SIGKILL, whole_group=False)
    assert "temporary" in leaks.left()
    run = Started(leaks.start(*PIPEDIAG, *ANALYZE, SCRIPT, "--wait-at=import"), leaks.cwd)
    run.wait_until(MOMENTS["import"])
    run.end(signal.SIGTERM, whole_group=False)
    assert leaks.left() == {}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_what_only_reads(leaks: Leaks, command: str, number: signal.Signals) -> None:
    file = leaks.cwd / "session.json"
    file.write_text('{"session": {')
    arguments = [str(file)] * (2 if command == "compare" else 1)
    process = leaks.start(*PIPEDIAG, command, *arguments)
    time.sleep(0.15)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert leaks.left() == {} and "Exception ignored" not in said

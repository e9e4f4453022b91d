"""Run each tool on a script as its documentation says, and read its output."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import suite
from benchmarks.common import ENVIRONMENT

from . import edits
from .edits import Edited
from .reading import SCRIPT, Reading, read_gpuprof, read_pipediag, read_traceml

#: Maximum seconds of a run beyond its training: startup, spawning workers, summary.
GRACE_S = 120.0


@dataclass(frozen=True)
class Settings:
    """The durations, the interpreter and the device of a run.

    Attributes:
        seconds: Length of the training under a tool that answers at its end.
        budget: Seconds of pipediag's analysis.
        python: The interpreter with the other tools.
        gpu: True if the case needs a GPU; other cases cannot see one.
    """

    seconds: float
    budget: float
    python: str
    gpu: bool


@dataclass(frozen=True)
class Answer:
    exit_code: int
    took_s: float
    reading: Reading


@dataclass(frozen=True)
class Tool:
    """A tool in one mode of use.

    Attributes:
        distribution: The package to install; empty for this project.
        how: The command a user types.
        edit: Makes the edit that its documentation asks for, given whether the script uses a GPU.
        run: Runs it on ``train.py`` in a folder.
    """

    distribution: str
    how: str
    edit: Callable[[str, bool], Edited]
    run: Callable[[Path, Settings], Answer]


def diagnose(tool: Tool, source: str, settings: Settings) -> tuple[Answer, Edited]:
    """Give a case's script to a tool; return its answer, and the size of its edit."""
    edited = tool.edit(source, settings.gpu)
    # pipediag ends the script itself once it has measured enough.
    seconds = settings.seconds if tool.distribution else 10 * settings.budget
    with tempfile.TemporaryDirectory() as folder:
        text = tool.edit(edits.end_after(source, seconds), settings.gpu).source
        (Path(folder) / SCRIPT).write_text(text)
        return tool.run(Path(folder), settings), edited


def _pipediag(folder: Path, settings: Settings) -> Answer:
    command = [sys.executable, "-m", "pipediag", "analyze", "--budget", f"{settings.budget:g}", "-o", "report.json"]
    code, took = _run([*command, SCRIPT], folder, settings.budget + GRACE_S, settings)
    return Answer(code, took, _read(folder, code, "report.json", read_pipediag))


def _traceml(folder: Path, settings: Settings) -> Answer:
    # ``traceml run train.py``, with separate ports so that two can run on one machine.
    options = ["--logs-dir", "logs", "--run-name", "train"]
    options += ["--aggregator-port", _free_port(), "--master-port", _free_port()]
    command = [settings.python, "-m", "traceml_ai.launcher.cli", "run", SCRIPT, *options]
    code, took = _run(command, folder, settings.seconds + GRACE_S, settings)
    return Answer(code, took, _read(folder, code, "logs/train/final_summary.json", read_traceml))


def _gpuprof(folder: Path, settings: Settings) -> Answer:
    code, took = _run([settings.python, SCRIPT], folder, settings.seconds + GRACE_S, settings)
    # Its final output, in full and as JSON; without training there is no database.
    command = [settings.python, "-m", "gpuprof", "insights", "gpuprof.db", "--json"]
    with (folder / "insights.json").open("w") as out:
        subprocess.run(command, cwd=folder, stdout=out, stderr=subprocess.DEVNULL, check=False)
    return Answer(code, took, _read(folder, code, "insights.json", lambda report: read_gpuprof(report, settings.gpu)))


def _unmodified(source: str, gpu: bool) -> Edited:
    return Edited(source)


TOOLS = {
    "pipediag": Tool("", "pipediag analyze train.py", _unmodified, _pipediag),
    "traceml": Tool("traceml-ai", "traceml run train.py", _unmodified, _traceml),
    "traceml-edited": Tool("traceml-ai", "traceml run train.py", lambda s, gpu: edits.for_traceml(s), _traceml),
    "gpuprof": Tool("gpuprof", "python train.py; gpuprof insights", edits.for_gpuprof, _gpuprof),
}


def _run(command: list[str], folder: Path, limit: float, settings: Settings) -> tuple[int, float]:
    """Return exit code and seconds of a command; save its output beside the script."""
    environment = suite.environment(ENVIRONMENT)
    if not settings.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    started = time.monotonic()
    with (folder / "output.txt").open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = _end(process)
    return code, round(time.monotonic() - started, 1)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Interrupt the tool, as a user would, and kill it if it does not end."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _read(folder: Path, code: int, name: str, read: Callable[[dict[str, Any]], Reading]) -> Reading:
    """Return the answer in a file, or, if the run failed or left none, the last printed line as a missing answer."""
    try:
        if code == 0:
            return read(json.loads((folder / name).read_text()))
    except (OSError, ValueError):
        pass
    lines = [line.strip() for line in (folder / "output.txt").read_text(errors="replace").splitlines() if line.strip()]
    return Reading(f"no answer: {lines[-1][:200] if lines else 'nothing was printed'}")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])

"""Running each tool on a script, as its documentation says, and reading what it leaves behind."""

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

#: What a run may take beyond its training: starting, spawning workers, summing up.
GRACE_S = 120.0


@dataclass(frozen=True)
class Settings:
    """How long, with what, and where.

    Attributes:
        seconds: How long a script trains under a tool that answers at its end.
        budget: How long pipediag may measure.
        python: The interpreter with the other tools.
        gpu: Whether the case is one for a GPU; the others do not get to see one.
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
    """A tool in one way of using it.

    Attributes:
        distribution: What to install; empty for this project.
        how: The command a user types.
        edit: What its documentation has the user change in the script, given whether it uses a GPU.
        run: Runs it on ``train.py`` in a folder.
    """

    distribution: str
    how: str
    edit: Callable[[str, bool], Edited]
    run: Callable[[Path, Settings], Answer]


def diagnose(tool: Tool, source: str, settings: Settings) -> tuple[Answer, Edited]:
    """Give a case's script to a tool: its answer, and what its edit changed."""
    edited = tool.edit(source, settings.gpu)
    # pipediag ends the script itself, when it has measured enough.
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
    # ``traceml run train.py``, with ports of its own so that two may run on a machine at a time.
    options = ["--logs-dir", "logs", "--run-name", "train"]
    options += ["--aggregator-port", _free_port(), "--master-port", _free_port()]
    command = [settings.python, "-m", "traceml_ai.launcher.cli", "run", SCRIPT, *options]
    code, took = _run(command, folder, settings.seconds + GRACE_S, settings)
    return Answer(code, took, _read(folder, code, "logs/train/final_summary.json", read_traceml))


def _gpuprof(folder: Path, settings: Settings) -> Answer:
    code, took = _run([settings.python, SCRIPT], folder, settings.seconds + GRACE_S, settings)
    # What it has printed at the end, in full and as JSON; there is no database where the script never began to train.
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
    """Exit code and seconds of a command; what it prints is kept beside the script."""
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
    """Interrupt the tool, as a user would, and kill it where that does not help."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _read(folder: Path, code: int, name: str, read: Callable[[dict[str, Any]], Reading]) -> Reading:
    """The answer in a file; where a run failed or left none, the last line that was printed, which is no answer."""
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

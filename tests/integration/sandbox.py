"""A folder and a mark in which real scripts run through the command line, and out of which nothing may escape."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from pipediag.remedy.saved_plan import MOVES_ON_CPU

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
PIPEDIAG = (sys.executable, "-m", "pipediag")
#: No child may take longer, whatever happens; far above what any of them needs.
PATIENCE = 90.0
_MARK = "PIPEDIAG_TEST_MARK"

_T = TypeVar("_T")


@dataclass
class Ran:
    """A process that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def said(self) -> list[str]:
        """What pipediag itself said on standard error, line by line."""
        return [line for line in self.stderr.splitlines() if line.startswith("pipediag: ")]

    @property
    def others(self) -> list[str]:
        """Everything else on standard error: the script's, and Python's."""
        return [line for line in self.stderr.splitlines() if line and not line.startswith("pipediag: ")]


@dataclass
class Analysis(Ran):
    """One ``pipediag analyze`` in ``cwd`` with ``-o out.json``; ``report`` is None when none was written."""

    report: dict[str, Any] | None
    cwd: Path

    @property
    def json(self) -> dict[str, Any]:
        assert self.report is not None, f"no JSON was written; exit code {self.code}, standard error:\n{self.stderr}"
        return self.report

    @property
    def bottleneck(self) -> str:
        return str(self.json["verdict"]["bottleneck"])

    @property
    def passes(self) -> int:
        return int(self.json["script"]["passes"])

    @property
    def ended(self) -> str:
        return str(self.json["session"]["ended"])

    @property
    def warned(self) -> dict[str, str]:
        return {w["code"]: w["message"] for w in self.json["warnings"]}

    @property
    def measured(self) -> set[str]:
        return {r["name"] for r in self.json["rungs"] if r["windows"]}

    def rung(self, name: str) -> dict[str, Any]:
        return next(r for r in self.json["rungs"] if r["name"] == name)

    def ms(self, name: str) -> float:
        """Milliseconds a step takes under the rung; it must have been measured."""
        rung = self.rung(name)
        assert rung["ms_per_step"] is not None, f"{name} was not measured: {rung['why_not']}\n{self.stderr}"
        return float(rung["ms_per_step"]["value"])


class Sandbox:
    """Runs processes in ``folder``; all that they start can be told by a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "out.json"
        #: Where scripts run, empty at first.
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        # Workers make sockets here, whose paths have room for a hundred characters.
        self._scratch = Path(tempfile.mkdtemp(prefix="sandbox-"))
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[str]] = []
        self._environment = {
            **os.environ,
            _MARK: self._mark,
            MOVES_ON_CPU: "1",
            "PYTHONPATH": str(REPO),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self._scratch),
        }

    def start(self, *command: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Begin a process, in a group of its own."""
        process = subprocess.Popen(
            command,
            cwd=cwd or self.cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *command: str, cwd: Path | None = None) -> Ran:
        """Run a command to its end."""
        began = time.monotonic()
        process = self.start(*command, cwd=cwd)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{' '.join(command)} did not end within {PATIENCE:.0f} s:\n{out}\n{err}")
        return Ran(process.returncode, out, err, time.monotonic() - began)

    def analyze(
        self,
        script: str,
        *args: str,
        budget: float = 5,
        rungs: str | None = None,
        options: Sequence[str] = (),
        cwd: Path | None = None,
        code: int | None = 0,
        crashes: bool = False,
    ) -> Analysis:
        """``pipediag analyze`` on one of the scripts beside this file; where ``cwd`` is given, just as it is named.

        Unless told otherwise by ``code`` and ``crashes``, it has to exit with 0 and without a single traceback.
        """
        chosen = [] if rungs is None else ["--rungs", rungs]
        target = str(SCRIPTS / script) if cwd is None and "-m" not in options else script
        output = ["--budget", str(budget), "-o", str(self.report)]
        command = [*PIPEDIAG, "analyze", "-v", *output, *chosen, *options, target, *args]
        ran = self.run(*command, cwd=cwd)
        report = json.loads(self.report.read_text()) if self.report.exists() else None
        told = f"{' '.join(command)}\nexit code {ran.code}\n{ran.stdout}\n{ran.stderr}"
        assert code is None or ran.code == code, told
        assert crashes or "Traceback" not in ran.stderr, told
        return Analysis(ran.code, ran.stdout, ran.stderr, ran.seconds, report, cwd or self.cwd)

    def end(self) -> None:
        """End what the test itself has left running, then hold that nothing else is left."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        left = wait_for_none(self._alive) if self._started else []
        for straggler in left:  # the next tests shall not suffer
            straggler.kill()
        ours = list(self._scratch.glob("pipediag-*"))
        shutil.rmtree(self._scratch)
        assert not left, f"still running: {left}"
        assert not ours, "a scratch folder of ours is left"

    def _alive(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _environment_of(process).get(_MARK) == self._mark]


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # ended meanwhile, or not ours to look into
        return {}


def wait_for_none(look: Callable[[], list[_T]]) -> list[_T]:
    """What ``look`` still finds after a moment in which it may vanish by itself."""
    until = time.monotonic() + 3.0
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.05)
    return left


class Results(Mapping[str, Analysis]):
    """The analyses of a module's cases: asking for one waits for it."""

    def __init__(self, begun: dict[str, Future[Analysis]]) -> None:
        self._begun = begun

    def __getitem__(self, case: str) -> Analysis:
        return self._begun[case].result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._begun)

    def __len__(self) -> int:
        return len(self._begun)


def analyses(
    cases: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]],
    slow: Collection[str] = (),
    script: str | None = None,
    **options: Any,
) -> Any:
    """Return a fixture, the :class:`Results` of these cases: of each the script's arguments, and options of its own.

    Args:
        slow: cases that only slow tests take; they are left out where none runs.
        script: what is analysed; if None, each case's arguments begin with it.
    """
    before = [] if script is None else [script]

    @pytest.fixture(scope="module")
    def results(side_by_side: Callable[..., Future[Analysis]], slow_too: bool) -> Results:
        chosen = {name: case for name, case in cases.items() if slow_too or name not in slow}
        return Results(
            {name: side_by_side(*before, *words, **{**options, **own}) for name, (words, own) in chosen.items()}
        )

    return results


def slow(*cases: Any) -> list[Any]:
    """Return parameters of a test that run with the slow tests; a tuple stands for several."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow) for one in cases]


def some_slow(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    """Parameters of a test, of which those in ``slow`` run with the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


def said_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process says on standard error up to the line with this text."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}:\n{said}")


def line_of(script: str, text: str) -> int:
    """The number of the only line of the script that holds ``text``."""
    lines = (SCRIPTS / script).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number

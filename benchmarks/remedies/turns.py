"""Run one training in several forms side by side; each times windows in turn while the others are stopped.

Every form has its own process group. Its loop waits inside an optimizer's step for the next window (:mod:`.clock`). A
signal stops its workers meanwhile, so that they neither take cores nor fill their queues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..common import ENVIRONMENT
from .clock import LOSSES, PIPE, Ask, WindowTimes

#: Maximum seconds for a script's answer.
PATIENCE = 120.0
#: Maximum seconds for a script to end when asked.
_LEAVING = 20.0
#: Seconds of the first window, which does not count.
_RUN_UP = 0.3
_SAID = "pipediag: "


@dataclass(frozen=True)
class Form:
    """A form of the training.

    Attributes:
        command: the command line.
        timed: True if windows are measured; otherwise only the losses are requested.
        environment: variables in addition to the process's own.
    """

    name: str
    command: Sequence[str]
    timed: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Taken:
    """The measurements.

    Attributes:
        rates: steps per second of each timed form, in the order of the rounds.
        losses: the first losses of every form.
        said: pipediag's lines on the form's standard error.
        failed: why a form did not answer.
        seconds: durations of starting the forms, of the turn before the windows, and of the windows.
        checking: seconds of spot checks that made a window be repeated.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checking: list[float] = field(default_factory=list)


class Failed(Exception):
    """The error raised if a script ended, or did not answer in time."""


class Running:
    """The process group of a form, stopped unless a request is open."""

    def __init__(self, form: Form, folder: Path) -> None:
        self.form = form
        self._errors = folder / f"{form.name}.err"
        self._pipe, theirs = Pipe()
        variables = {**ENVIRONMENT, **form.environment, PIPE: str(theirs.fileno())}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                form.command,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()

    def answer(self, until: float) -> Any:
        """Return the script's next answer, and stop the script afterwards.

        Raises:
            Failed: it ended, or time is over.
        """
        answer = _received(self._pipe, self._process, until)
        if isinstance(answer, Failed):
            raise Failed(f"{answer}; {self._last_words()}".rstrip("; "))
        self._signal(signal.SIGSTOP)
        return answer

    def ask(self, what: Ask | None, until: float) -> Any:
        """Let the script continue until it has answered."""
        self._pipe.send(what)
        self._signal(signal.SIGCONT)
        return self.answer(until)

    def leave(self, until: float) -> list[float]:
        """Return the losses and let the script end normally."""
        losses = self.ask(None, until)
        self._signal(signal.SIGCONT)
        return list(losses)

    def ended(self, until: float) -> bool:
        """Return whether the script has ended by itself."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def said(self) -> list[str]:
        return [line.removeprefix(_SAID) for line in self._lines() if line.startswith(_SAID)]

    def close(self) -> None:
        """End the whole process group. Safe to call twice."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._pipe.close()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:  # every process of the group has ended
            pass

    def _lines(self) -> list[str]:
        return self._errors.read_text(errors="replace").splitlines()

    def _last_words(self) -> str:
        return " | ".join(line for line in self._lines()[-2:] if line.strip())


def _received(pipe: Connection, process: subprocess.Popen[bytes], until: float) -> Any:
    while not pipe.poll(0.2):
        if process.poll() is not None and not pipe.poll():
            return Failed(f"ended with exit code {process.returncode}")
        if time.monotonic() > until:
            return Failed("it did not answer in time")
    try:
        return pipe.recv()
    except EOFError:
        return Failed("ended")


@contextmanager
def running(forms: Sequence[Form], folder: Path) -> Iterator[list[Running]]:
    """Yield the forms' processes, and end them all afterwards."""
    started: list[Running] = []
    try:
        for form in forms:
            started.append(Running(form, folder))
        yield started
    finally:
        for one in started:
            one.close()


class _Stopwatch:
    """A recorder of the duration of consecutive parts."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name] = round(now - self._began, 1)
        self._began = now


def take(forms: Sequence[Form], folder: Path, workers: int, seconds: float, rounds: int, until: float) -> Taken:
    """Run the forms side by side and measure ``rounds`` windows of each in turn, or until ``until`` (monotonic).

    The first form changes from round to round. A form that fails is left out from then on.
    """
    taken = Taken()
    ask = Ask(max(2, workers), seconds, max(1, workers))
    watch = _Stopwatch(taken.seconds)
    with running(forms, folder) as started:
        alive = list(started)
        _each(alive, taken, lambda one: one.answer(_limit(until)))
        watch.lap("start")
        # One uncounted turn: each form runs alone through its one-time work and its recorded losses.
        _each(alive, taken, lambda one: one.ask(Ask(LOSSES, _RUN_UP if one.form.timed else 0.0), _limit(until)))
        done = [one for one in alive if not one.form.timed]
        _end(done, taken, until)
        alive = [one for one in alive if one.form.timed]
        watch.lap("run_up")
        for turn in range(rounds):
            if not alive or time.monotonic() > until:
                break
            first = turn % len(alive)
            in_order = [*alive[first:], *alive[:first]]
            rates = _each(in_order, taken, lambda one: _window(one, ask, taken, until))
            alive = [one for one in alive if one in rates]
            for one, times in rates.items():
                taken.rates.setdefault(one.form.name, []).append(times.rate)
        watch.lap("windows")
        _end(alive, taken, until)
        for one in started:
            taken.said[one.form.name] = one.said()
    return taken


def _window(one: Running, ask: Ask, taken: Taken, until: float) -> WindowTimes:
    """Return a window without a spot check; after a spot check there is none for two hundred times its duration.

    Raises:
        Failed: see :meth:`Running.answer`.
    """
    times: WindowTimes = one.ask(ask, _limit(until))
    while times.checking and time.monotonic() < until:
        taken.checking.append(times.checking)
        times = one.ask(ask, _limit(until))
    return times


def _limit(until: float) -> float:
    """Return when to give up waiting: after a while, and soon after the time is over."""
    return min(time.monotonic() + PATIENCE, until + _LEAVING)


def _each(alive: list[Running], taken: Taken, do: Any) -> dict[Running, Any]:
    """Return each form's answer; record failed forms and remove them from ``alive``."""
    answers = {}
    for one in list(alive):
        try:
            answers[one] = do(one)
        except (Failed, OSError) as why:
            taken.failed[one.form.name] = str(why)
            alive.remove(one)
    return answers


def _end(alive: Sequence[Running], taken: Taken, until: float) -> None:
    for one, losses in _each(list(alive), taken, lambda one: one.leave(_limit(until))).items():
        taken.losses[one.form.name] = losses
    limit = time.monotonic() + _LEAVING
    for one in alive:
        if one.form.name not in taken.failed and not one.ended(limit):
            taken.failed[one.form.name] = "did not end when it was asked to"

"""One training in several forms, side by side: each times windows in its turn, while the others' processes are stopped.

Every form is a process group of its own. Its loop waits inside an optimizer's step for the next window
(:mod:`.clock`); its workers are stopped by a signal meanwhile, so that they neither take cores nor fill their queues.
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
from .clock import LOSSES, PIPE, Ask, Told

#: Seconds in which a script has to answer.
PATIENCE = 120.0
#: Seconds in which it has to end when it is asked to.
_LEAVING = 20.0
#: Seconds of the window that is not counted.
_RUN_UP = 0.3
_SAID = "pipediag: "


@dataclass(frozen=True)
class Form:
    """A way to run the training.

    Attributes:
        command: what to start.
        timed: whether windows are taken of it; of one that is not, the losses alone are asked for.
        environment: variables beside the process's own.
    """

    name: str
    command: Sequence[str]
    timed: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Taken:
    """What was measured.

    Attributes:
        rates: steps a second of each timed form, in the order of the rounds.
        losses: the first losses of every form.
        said: the lines of pipediag's on the form's standard error.
        failed: why a form did not answer.
        seconds: what starting the forms took, then what comes before the windows, then the windows.
        checking: seconds of spot checks for which windows were taken once more.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checking: list[float] = field(default_factory=list)


class Failed(Exception):
    """A script ended, or did not answer in time."""


class Running:
    """A form's process group, stopped while nothing is asked of it."""

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
        """The next thing that the script tells; it is stopped afterwards.

        Raises:
            Failed: it ended, or time is over.
        """
        told = _received(self._pipe, self._process, until)
        if isinstance(told, Failed):
            raise Failed(f"{told}; {self._last_words()}".rstrip("; "))
        self._signal(signal.SIGSTOP)
        return told

    def ask(self, what: Ask | None, until: float) -> Any:
        """Let it go on until it has answered."""
        self._pipe.send(what)
        self._signal(signal.SIGCONT)
        return self.answer(until)

    def leave(self, until: float) -> list[float]:
        """The losses, of a script that then ends as scripts do."""
        losses = self.ask(None, until)
        self._signal(signal.SIGCONT)
        return list(losses)

    def ended(self, until: float) -> bool:
        """Whether it has ended by itself."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def said(self) -> list[str]:
        return [line.removeprefix(_SAID) for line in self._lines() if line.startswith(_SAID)]

    def close(self) -> None:
        """Nothing of it is left. Safe to call twice."""
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
    """The forms' processes, none of which is left afterwards."""
    started: list[Running] = []
    try:
        for form in forms:
            started.append(Running(form, folder))
        yield started
    finally:
        for one in started:
            one.close()


class _Stopwatch:
    """Writes down what the parts of something take, one after the other."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name] = round(now - self._began, 1)
        self._began = now


def take(forms: Sequence[Form], folder: Path, workers: int, seconds: float, rounds: int, until: float) -> Taken:
    """Run the forms side by side and measure them in turns, ``rounds`` windows each, or until ``until`` (monotonic).

    Which form comes first changes from round to round. A form that fails is left out from there on.
    """
    taken = Taken()
    ask = Ask(max(2, workers), seconds, max(1, workers))
    watch = _Stopwatch(taken.seconds)
    with running(forms, folder) as started:
        alive = list(started)
        _each(alive, taken, lambda one: one.answer(_limit(until)))
        watch.lap("start")
        # Once around without counting: each alone on the machine, past what it makes once, to the last of the losses.
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
            for one, told in rates.items():
                taken.rates.setdefault(one.form.name, []).append(told.rate)
        watch.lap("windows")
        _end(alive, taken, until)
        for one in started:
            taken.said[one.form.name] = one.said()
    return taken


def _window(one: Running, ask: Ask, taken: Taken, until: float) -> Told:
    """A window without a spot check: one takes a moment, and there is none for two hundred times as long afterwards.

    Raises:
        Failed: see :meth:`Running.answer`.
    """
    told: Told = one.ask(ask, _limit(until))
    while told.checking and time.monotonic() < until:
        taken.checking.append(told.checking)
        told = one.ask(ask, _limit(until))
    return told


def _limit(until: float) -> float:
    """When to give up waiting: a while from now, and soon after all time is over."""
    return min(time.monotonic() + PATIENCE, until + _LEAVING)


def _each(alive: list[Running], taken: Taken, do: Any) -> dict[Running, Any]:
    """What each form answers; those that fail are noted and taken out of ``alive``."""
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

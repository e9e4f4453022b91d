"""Measure steps per second of several forms of one loop in turn, in one process: a window of each, round after round.

The workers of all forms live from the first round to the last. While one form is measured, the workers of the others
sleep (SIGSTOP), so that they take no cores and fill no queues for their next window.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import torch

#: Steps of a loop before its first window, as in the article: selecting kernels, capturing graphs, allocating memory.
_STARTING = 10
#: Uncounted steps at the beginning of a window: batches that were ready before the form slept.
_SETTLING = 5


@dataclass(frozen=True)
class Form:
    """One way of feeding the loop.

    Attributes:
        name: its name in the results.
        start: begins the loop, as a generator: it does one step between two of its yields.
        turn: number of its workers. They send in bursts, so a window consists of whole rounds.
    """

    name: str
    start: Callable[[], Generator[None, None, None]]
    turn: int = 1


@dataclass(frozen=True)
class Windows:
    """The length of the measurement.

    Attributes:
        seconds: minimum length of a window.
        rounds: windows of each form.
        steps: minimum steps of a window, instead of ``seconds``.
    """

    seconds: float
    rounds: int
    steps: int | None = None

    def enough(self, count: int, seconds: float) -> bool:
        return seconds >= self.seconds if self.steps is None else count >= self.steps


@dataclass
class Rates:
    """The measurements.

    Attributes:
        rounds: steps per second of each form's windows, in order.
        failed: the error of each form that raised; it has no rates.
    """

    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.rounds.items()}


def measure(forms: Sequence[Form], windows: Windows, device: torch.device) -> Rates:
    """Return the rates of every form; one that raises does not end the others."""
    rates = Rates()
    running: dict[str, _Running] = {}
    with ExitStack() as stack:

        def start(form: Form) -> None:
            running[form.name] = stack.enter_context(closing(_Running(form, device)))

        def window(form: Form) -> None:
            rates.rounds.setdefault(form.name, []).append(running[form.name].window(windows))

        for work in (start, *[window] * windows.rounds):
            for form in forms:
                if form.name in rates.failed:
                    continue
                try:
                    work(form)
                except Exception as error:
                    traceback.print_exc()
                    rates.rounds.pop(form.name, None)
                    rates.failed[form.name] = f"{type(error).__name__}: {error}"
    return rates


class _Running:
    """A form whose loop has begun. Its workers sleep unless a window of it is measured."""

    def __init__(self, form: Form, device: torch.device) -> None:
        self._turn = form.turn
        self._device = device
        others = _children()
        self._loop = form.start()
        self._advance(max(form.turn, _STARTING))
        self._workers = _children() - others
        self._signal(signal.SIGSTOP)

    def window(self, windows: Windows) -> float:
        """Return steps per second; the clock stops after the device has finished all their work."""
        self._signal(signal.SIGCONT)
        try:
            self._advance(_SETTLING)
            begin, count = time.perf_counter(), 0
            while count % self._turn or not windows.enough(count, time.perf_counter() - begin):
                next(self._loop)
                count += 1
            synchronize(self._device)
            return count / (time.perf_counter() - begin)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._loop.close()

    def _advance(self, steps: int) -> None:
        for _ in range(steps):
            next(self._loop)
        synchronize(self._device)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._workers & _children():
            os.kill(pid, number)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}

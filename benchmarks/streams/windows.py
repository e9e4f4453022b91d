"""Steps a second of several forms of one loop, taken in turns: a window of each, round after round, in one process.

The workers of all forms live from the first round to the last, and those of a form sleep (SIGSTOP) while another is
measured: they take no cores from it, and fill no queues that the next window would begin with.
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

#: Steps of a loop before its first window, as in the article: kernels are chosen, graphs captured, memory is taken.
_STARTING = 10
#: Steps at the beginning of a window that do not count: batches that lay ready when the form was sent to sleep.
_SETTLING = 5


@dataclass(frozen=True)
class Form:
    """One way of feeding the loop.

    Attributes:
        name: stands for it in the results.
        start: begins the loop, as a generator: it does one step between two of its yields.
        turn: how many workers feed it. They send in turn, often several at once, so that a window is whole turns.
    """

    name: str
    start: Callable[[], Generator[None, None, None]]
    turn: int = 1


@dataclass(frozen=True)
class Windows:
    """How long is measured.

    Attributes:
        seconds: of a window, at least.
        rounds: windows of each form.
        steps: of a window, at least, in place of ``seconds``.
    """

    seconds: float
    rounds: int
    steps: int | None = None

    def enough(self, count: int, seconds: float) -> bool:
        return seconds >= self.seconds if self.steps is None else count >= self.steps


@dataclass
class Rates:
    """What was measured.

    Attributes:
        rounds: for each form the steps a second of its windows, in their order.
        failed: for each form that raised, what it said. It has no rates then.
    """

    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.rounds.items()}


def measure(forms: Sequence[Form], windows: Windows, device: torch.device) -> Rates:
    """The rates of every form; one that raises does not end the others."""
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
        """Steps a second; all that the device has to do for them is done when the clock stops."""
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

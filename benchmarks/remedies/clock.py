"""Time windows inside a training script whenever the benchmark asks for one.

The measured copy of a script has one additional line, which imports this module. Without the benchmark's pipe the
import does nothing. With it, the loop stops after an optimizer's step, with the device idle, until a window is
requested. The losses are recorded on their device and sent at the end.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

#: Environment variables: the number of the pipe's file descriptor, and, if the raw loader is timed instead of the loop
#: (:mod:`.raw`), the kind of memory of its batches.
PIPE, RAW = "REMEDIES_PIPE", "REMEDIES_RAW"
PINNED, PAGEABLE = "pinned", "pageable"
#: Maximum number of losses kept.
LOSSES = 20
#: Steps before the first request is awaited: one-time work is then done.
_BEGUN = 2


@dataclass(frozen=True)
class Ask:
    """A request for a window.

    Attributes:
        settle: steps before the clock starts, at least one.
        seconds: minimum length of the window.
        whole: the number of timed steps is a multiple of this. Workers that started together deliver in bursts.
    """

    settle: int
    seconds: float
    whole: int = 1


@dataclass(frozen=True)
class WindowTimes:
    """The answer: steps of a window and their seconds; ``checking`` seconds of them went into spot checks."""

    steps: int
    seconds: float
    checking: float = 0.0

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


class SpotChecks:
    """The seconds of all spot checks of ``pipediag run`` in this process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._watched = False

    def watch(self) -> None:
        """Time future spot checks once their module is loaded: the plain script never loads it."""
        module = sys.modules.get("pipediag.remedy.spotcheck")
        if self._watched or module is None:
            return
        self._watched, doubt = True, module.SpotCheck.doubt

        def timed(*args: Any) -> str:
            began = time.perf_counter()
            try:
                return str(doubt(*args))
            finally:
                self.seconds += time.perf_counter() - began

        module.SpotCheck.doubt = timed


@dataclass
class _Window:
    ask: Ask
    checks: SpotChecks
    passed: int = 0
    first: int = 0
    began: float = 0.0
    checked: float = 0.0

    def after_step(self) -> WindowTimes | None:
        """Return the answer once the window is complete."""
        self.passed += 1
        if self.passed == self.ask.settle:
            _synchronize()
            self.first, self.began, self.checked = self.passed, time.perf_counter(), self.checks.seconds
        steps = self.passed - self.first
        if not self.first or not steps or steps % self.ask.whole:
            return None
        if time.perf_counter() - self.began < self.ask.seconds:
            return None
        _synchronize()
        return WindowTimes(steps, time.perf_counter() - self.began, self.checks.seconds - self.checked)


@dataclass
class Clock:
    """A counter of optimizer steps, or of the raw loader's batches, that answers the benchmark between two of them."""

    pipe: Connection
    losses: list[Any] = field(default_factory=list)
    _checks: SpotChecks = field(default_factory=SpotChecks)
    _steps: int = 0
    _window: _Window | None = None

    def stepped(self, *_: Any) -> None:
        """Count an optimizer step or a batch."""
        self._steps += 1
        if self._steps < _BEGUN:
            return
        if self._window is None:
            self._ask(None)
            return
        times = self._window.after_step()
        if times is not None:
            self._ask(times)

    def saw(self, loss: Any) -> None:
        """Record a loss before its backward pass; copy it on its device, without waiting."""
        if len(self.losses) < LOSSES:
            self.losses.append(loss.detach().clone())

    def _ask(self, times: WindowTimes | None) -> None:
        _synchronize()
        self.pipe.send(times)
        ask = self.pipe.recv()
        if ask is None:
            self.pipe.send([float(loss) for loss in self.losses if loss.numel() == 1])
            sys.exit(0)
        self._checks.watch()
        self._window = _Window(ask, self._checks)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def install(clock: Clock) -> None:
    """Hook every optimizer and every loss of this process, until it ends with the script."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        clock.saw(self)
        backward(self, *args, **kwargs)

    torch.Tensor.backward = watched
    register_optimizer_step_post_hook(clock.stepped)


def _at_import() -> None:
    # Only this process may answer: those that the script starts do not inherit these.
    number, memory = os.environ.pop(PIPE, ""), os.environ.pop(RAW, "")
    if not number:
        return
    clock = Clock(Connection(int(number)))
    if memory:
        from . import raw

        raw.install(clock, pinned=memory == PINNED)
    else:
        install(clock)


_at_import()

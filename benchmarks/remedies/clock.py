"""The clock inside a training script: it times windows of the loop whenever the benchmark asks for one.

The copy of a script that is measured has one line more than the script, the import of this module. Without the
benchmark at the other end of the pipe the import does nothing; with it the loop is stopped after an optimizer's step,
with the device idle, until a window is asked for. The losses are kept on the way, where they are, and told at the end.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

#: The environment's variables with the number of the pipe's file descriptor, and, where the raw loader is to be timed
#: in place of the loop (:mod:`.raw`), with the kind of memory that its batches lie in.
PIPE, RAW = "REMEDIES_PIPE", "REMEDIES_RAW"
PINNED, PAGEABLE = "pinned", "pageable"
#: Losses that are kept at most.
LOSSES = 20
#: Steps before the first window is waited for: by then the loop has had what it makes once.
_BEGUN = 2


@dataclass(frozen=True)
class Ask:
    """What the benchmark wants to have timed.

    Attributes:
        settle: steps before the clock starts, at least one.
        seconds: the least length of the window.
        whole: the number of timed steps is a multiple of this. Workers that started together deliver in bursts.
    """

    settle: int
    seconds: float
    whole: int = 1


@dataclass(frozen=True)
class Told:
    """Steps of a window and the seconds that they took, of which ``checking`` went into spot checks."""

    steps: int
    seconds: float
    checking: float = 0.0

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


class SpotChecks:
    """The seconds that spot checks of ``pipediag run`` have taken in this process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._watched = False

    def watch(self) -> None:
        """Time those to come, once their module is loaded: the plain script never loads it."""
        module = sys.modules.get("pipediag.remedy.spotcheck")
        if self._watched or module is None:
            return
        self._watched, doubt = True, module.SpotCheck.doubt

        def timed(check: Any) -> str:
            began = time.perf_counter()
            try:
                return str(doubt(check))
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

    def after_step(self) -> Told | None:
        """What to tell once the window is complete."""
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
        return Told(steps, time.perf_counter() - self.began, self.checks.seconds - self.checked)


@dataclass
class Clock:
    """Counts optimizer steps, or the raw loader's batches, and answers the benchmark between two of them."""

    pipe: Connection
    losses: list[Any] = field(default_factory=list)
    _checks: SpotChecks = field(default_factory=SpotChecks)
    _steps: int = 0
    _window: _Window | None = None

    def stepped(self, *_: Any) -> None:
        """An optimizer has stepped, or a batch has come."""
        self._steps += 1
        if self._steps < _BEGUN:
            return
        if self._window is None:
            self._ask(None)
            return
        told = self._window.after_step()
        if told is not None:
            self._ask(told)

    def saw(self, loss: Any) -> None:
        """A loss is about to be differentiated; it is copied where it is, without waiting for the device."""
        if len(self.losses) < LOSSES:
            self.losses.append(loss.detach().clone())

    def _ask(self, told: Told | None) -> None:
        _synchronize()
        self.pipe.send(told)
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
    """Hook every optimizer and every loss of this process, which ends with the script."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        clock.saw(self)
        backward(self, *args, **kwargs)

    torch.Tensor.backward = watched
    register_optimizer_step_post_hook(clock.stepped)


def _at_import() -> None:
    number, memory = os.environ.pop(PIPE, ""), os.environ.pop(RAW, "")  # no process that the script starts is to answer
    if not number:
        return
    clock = Clock(Connection(int(number)))
    if memory:
        from . import raw

        raw.install(clock, pinned=memory == PINNED)
    else:
        install(clock)


_at_import()

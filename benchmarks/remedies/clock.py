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

#: The environment's variables with the number of the pipe's file descriptor, and, where the supply is to be measured in
#: place of the loop (:mod:`.raw`), with the seconds of that.
PIPE, RAW = "REMEDIES_PIPE", "REMEDIES_RAW_SECONDS"
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
    """Steps of a window and the seconds that they took."""

    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


@dataclass
class _Window:
    ask: Ask
    passed: int = 0
    first: int = 0
    began: float = 0.0

    def after_step(self) -> Told | None:
        """What to tell once the window is complete."""
        self.passed += 1
        if self.passed == self.ask.settle:
            _synchronize()
            self.first, self.began = self.passed, time.perf_counter()
        steps = self.passed - self.first
        if not self.first or not steps or steps % self.ask.whole:
            return None
        if time.perf_counter() - self.began < self.ask.seconds:
            return None
        _synchronize()
        return Told(steps, time.perf_counter() - self.began)


@dataclass
class Clock:
    """Counts optimizer steps, and answers the benchmark between two of them."""

    pipe: Connection
    losses: list[Any] = field(default_factory=list)
    _steps: int = 0
    _window: _Window | None = None

    def stepped(self, *_: Any) -> None:
        """An optimizer has stepped."""
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
        self._window = _Window(ask)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def install(pipe: Connection) -> Clock:
    """Hook every optimizer and every loss of this process, which ends with the script."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = Clock(pipe)
    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        clock.saw(self)
        backward(self, *args, **kwargs)

    torch.Tensor.backward = watched
    register_optimizer_step_post_hook(clock.stepped)
    return clock


def _at_import() -> None:
    number, seconds = (
        os.environ.pop(PIPE, ""),
        os.environ.pop(RAW, ""),
    )  # no process that the script starts is to answer
    if number and seconds:
        from . import raw

        raw.install(Connection(int(number)), float(seconds))
    elif number:
        install(Connection(int(number)))


_at_import()

"""Find which loader trains and on which device, from the optimizers rather than from order or names."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from threading import get_ident, main_thread
from typing import Any, NamedTuple

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..patches import hooked, replaced

#: Credited optimizer steps after which a loader is considered the training loader.
EVIDENCE = 2


class Training:
    """A counter of optimizer steps that credits each to the loaders drawn from since the previous step.

    It also knows in which order loaders are drawn from, and in which threads.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.backwards = 0  # counted only while models are watched
        self.unfed = 0  # optimizer steps since the last one with a batch
        self.device: torch.device | None = None
        self.credits: dict[int, int] = {}
        self.draws: dict[int, int] = {}  # batches yielded by each loader
        self._draws = 0
        self._first: dict[int, int] = {}  # the number of each loader's first draw
        self._latest: dict[int, int] = {}
        self._drawn: set[int] = set()
        self._drawers: dict[int, int] = {}  # the thread that draws from each loader
        self._stepper = 0  # the thread of the optimizers

    def drew(self, loader: int) -> None:
        """Record that this loader (by its ordinal) has yielded a batch to the script."""
        self._draws += 1
        self.draws[loader] = self.draws.get(loader, 0) + 1
        self._first.setdefault(loader, self._draws)
        self._latest[loader] = self._draws
        self._drawn.add(loader)
        self._drawers[loader] = get_ident()

    def drawn_ahead(self, loader: int) -> bool:
        """Return whether a thread of the script's own draws from this loader ahead of the loop.

        What that thread waits, the loop need not wait. The main thread is the loop's also if the optimizer steps in
        another one: on a GPU, a hook of a parameter runs in a thread of autograd.
        """
        return bool(self._stepper) and not self._is_loops(self._drawers.get(loader))

    @property
    def in_loop(self) -> bool:
        """True if the calling thread is the loop's."""
        return self._is_loops(get_ident())

    def _is_loops(self, thread: int | None) -> bool:
        return thread in (self._stepper, main_thread().ident)

    def drawn_since(self, loader: int) -> list[int]:
        """Return the loaders that the script has drawn from since it last drew from this one."""
        latest = self._latest.get(loader, 0)
        return [other for other, drawn in self._latest.items() if drawn > latest]

    def beside(self, loader: int, other: int) -> bool:
        """Return whether the script goes on drawing from the other loader, which this one then does not replace."""
        return self._latest.get(other, 0) > self._first.get(loader, 0)

    def ended(self, loader: int) -> None:
        """Record the end of a loader's epoch: batches not trained on by now never will be, as in a validation."""
        self._drawn.discard(loader)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hook every optimizer of the process within the context."""
        scaled = GradScaler.step

        @wraps(scaled)
        def step(scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self.steps
            result = scaled(scaler, optimizer, *args, **kwargs)
            if self.steps == before:  # gradients overflowed: the loop trains nevertheless
                self._stepped(optimizer, args, kwargs)
            return result

        with hooked(register_optimizer_step_post_hook(self._stepped)), replaced(GradScaler, "step", step):
            yield

    @contextmanager
    def watching_models(self) -> Iterator[None]:
        """Do without an optimizer within the context: count backward passes, and take the first called module's device.

        Not every optimizer is one of torch's.
        """
        native = torch.autograd.backward

        @wraps(native)
        def backward(*args: Any, **kwargs: Any) -> None:
            native(*args, **kwargs)
            self.backwards += 1

        with hooked(register_module_forward_pre_hook(self._called)), replaced(torch.autograd, "backward", backward):
            yield

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        self._stepper = get_ident()
        self.unfed = 0 if self._drawn else self.unfed + 1
        for loader in self._drawn:
            self.credits[loader] = self.credits.get(loader, 0) + 1
        self._drawn.clear()
        if self.device is None:
            self.device = _device_of(p for group in optimizer.param_groups for p in group["params"])

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if self.device is None:
            self.device = _device_of(module.parameters())


def _device_of(parameters: Iterator[torch.Tensor]) -> torch.device | None:
    for parameter in parameters:
        return parameter.device
    return None


def training_device() -> torch.device | None:
    """Return the one device that holds all optimized parameters, or None if there is not exactly one."""
    found = {parameter.device for parameter in _optimized()}
    return found.pop() if len(found) == 1 else None


def is_training() -> bool:
    """Return whether a module with optimized parameters is in training mode."""
    optimized = {id(parameter) for parameter in _optimized()}
    return any(
        getattr(module, "training", False) and any(id(one) in optimized for one in module._parameters.values())
        for module in _alive(torch.nn.Module)
    )


def _optimized() -> Iterator[torch.Tensor]:
    for optimizer in _alive(torch.optim.Optimizer):
        for group in getattr(optimizer, "param_groups", ()):
            yield from group["params"]


def _alive(kind: type) -> Iterator[Any]:
    """Yield every object of a class; objects that only pretend to be of it through ``__class__`` are skipped."""
    return (obj for obj in gc.get_objects() if issubclass(type(obj), kind))


class Place(NamedTuple):
    """Where a loader is iterated."""

    where: str  # ``file:line`` of the user's code
    order: int  # the loader's number among those that are iterated there, from 0 on


class Places:
    """The places of all loaders of this process. It keeps no loader alive."""

    def __init__(self) -> None:
        self._at: dict[str, list[weakref.ref[Any]]] = {}

    def of(self, loader: Any, where: str) -> Place:
        """Return the place of a loader that is now iterated at ``where``.

        A loader that was not seen there before takes the first place whose loader is gone, as in a script that builds
        its loader again for every epoch, or else a new place.
        """
        loaders = [known() for known in self._at.setdefault(where, [])]
        free = next((k for k, known in enumerate(loaders) if known is None), len(loaders))
        order = next((k for k, known in enumerate(loaders) if known is loader), free)
        self._at[where][order : order + 1] = [weakref.ref(loader)]
        return Place(where, order)

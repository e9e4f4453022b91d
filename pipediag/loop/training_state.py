"""Undo what training steps change: parameters, buffers, gradients, optimizers, schedulers, scalers, random numbers.

What a step function can reach is saved before its first call; a module or an optimizer that it reaches in another way
is saved when it is first seen, before it runs. The copies are kept in host memory: how much device memory a step needs
is unknown before it runs, and copies there could make it run out. Only what does not fit into host memory is copied on
the device.
"""

from __future__ import annotations

import gc
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from ..measure.machine import free_bytes
from ..patches import hooked
from ..usercode import randomness, tree
from ..usercode.attributes import attribute
from .reachable import reachable

#: Objects whose attributes are saved, with the tensors and containers in them.
_HOLDERS = (nn.Module, Optimizer, LRScheduler, GradScaler)
_STEP_FN = "step_fn"
_CONTAINERS = (dict, list, set, deque)
#: Containers with more items than these are saved, but not what their items hold.
_MOST_ITEMS = 10_000
#: Bytes above which a tensor outside a model or an optimizer may be data: it is only watched for writes.
_LARGE = 256 << 20
#: Maximum share of the free host memory for copies.
_SHARE = 0.5


class TrainingState:
    """The state of a training, saved piece by piece and restored into the same objects."""

    def __init__(self) -> None:
        self.lost: list[str] = []  # what could not be saved or restored, in words
        self._seen: dict[int, Any] = {}  # holds the objects, so that no id is used twice
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[_SavedTensor] = []
        self._lazy: list[tuple[Any, type]] = []  # lazy modules and their parameters, whose class the first call changes
        self._watched: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        self._generators: list[Callable[[], object]] = []
        self._others: set[int] = set()  # scalers that may be of another training
        self._room = int(_SHARE * free_bytes())

    @contextmanager
    def kept(self, step_fn: Callable[[Any], object], loader: DataLoader[Any]) -> Iterator[None]:
        """Save what ``step_fn`` and the loader's samplers can reach; restore it at exit, however the context ends."""
        self._generators.append(partial(randomness.restore, randomness.state()))
        if torch.cuda.is_initialized():
            self._generators.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        else:
            self._generators.append(_as_first_seeded)
        if torch.backends.mps.is_available():
            self._generators.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))
        for one in reachable(step_fn):
            if isinstance(one, (*_HOLDERS, torch.Tensor)):
                self.save(one)
            self._save_generator(one)
        parts = [loader.generator, loader.sampler, loader.batch_sampler, loader.collate_fn]
        if not loader.num_workers:  # the dataset may draw in this process too
            parts += attribute(loader.dataset, "__dict__", {}).values()
        for one in reachable(*parts):
            self._save_generator(one)
        self._save_alive()
        try:
            with ExitStack() as stack:
                stack.enter_context(hooked(register_module_forward_pre_hook(self._runs)))
                stack.enter_context(hooked(register_optimizer_step_pre_hook(self._steps)))
                yield
        finally:
            self.restore()

    @property
    def holders(self) -> list[str]:
        """The classes of the saved optimizers, schedulers and scalers, after "the model" if a module was saved."""
        holders = (one for number, one in self._seen.items() if number not in self._others)
        kinds = [type(one) for one in holders if isinstance(one, _HOLDERS)]
        names = ["the model" if issubclass(kind, nn.Module) else kind.__name__ for kind in kinds]
        return sorted(set(names), key=lambda name: (name != "the model", name))

    def save(self, root: Any) -> None:
        """Save a tensor with its gradient, or a holder with everything in it, unless that is saved already."""
        owner = _STEP_FN if isinstance(root, torch.Tensor) else type(root).__name__
        waiting = [root]
        while waiting:
            one = waiting.pop()
            if id(one) in self._seen or isinstance(one, (str, bytes, int, float, type(None))):
                continue
            if isinstance(one, torch.Tensor):
                self._seen[id(one)] = one
                if is_lazy(one):
                    self._lazy.append((one, type(one)))
                elif one.is_leaf:  # others are results of a step
                    self._save_tensor(one, owner)
            elif isinstance(one, _HOLDERS):
                self._seen[id(one)] = one
                waiting.append(vars(one))
                if isinstance(one, LazyModuleMixin):
                    self._lazy.append((one, type(one)))
            elif isinstance(one, _CONTAINERS):
                self._seen[id(one)] = one
                self._containers.append((one, dict(one) if isinstance(one, dict) else list(one)))
                if len(one) <= _MOST_ITEMS:
                    waiting.extend(one.values() if isinstance(one, dict) else one)
            elif isinstance(one, tuple):
                waiting.extend(one)

    def restore(self) -> None:
        """Restore everything that was saved. What fails is added to ``lost``; the rest is restored nevertheless."""
        for container, saved in self._containers:
            _refill(container, saved)
        for one, kind in self._lazy:
            _make_lazy(one, kind)
        for tensor in self._tensors:
            try:
                tensor.restore()
            except Exception as error:  # also a device that has failed
                self._lose(f"{tensor.name} ({type(error).__name__})")
        for large, versions in self._watched:
            if tree.versions(large) != versions:
                self._lose(f"a large tensor of {_STEP_FN}")
        for restore in self._generators:
            try:
                restore()
            except Exception as error:
                self._lose(f"a random generator ({type(error).__name__})")

    def _save_tensor(self, tensor: torch.Tensor, owner: str) -> None:
        if tensor.layout == torch.strided and tensor.numel() > 1 and 0 in tensor.stride():
            return  # expanded: it cannot be written to
        name = f"a tensor of {owner}"
        nbytes = tensor.numel() * tensor.element_size() * (1 + (tensor.grad is not None))
        if owner == _STEP_FN and nbytes > _LARGE and not tensor.requires_grad:
            self._watched.append((tensor, tree.versions(tensor)))
            return
        try:
            self._tensors.append(_SavedTensor(tensor, name, "cpu" if nbytes <= self._room else tensor.device))
            self._room -= nbytes
        except Exception as error:
            self._lose(f"{name} ({type(error).__name__})")

    def _lose(self, what: str) -> None:
        if what not in self.lost:
            self.lost.append(what)

    def _save_generator(self, one: Any) -> None:
        if isinstance(one, torch.Generator):
            self._generators.append(partial(one.set_state, one.get_state()))
        elif isinstance(one, random.Random):
            self._generators.append(partial(one.setstate, one.getstate()))
        elif isinstance(one, numpy.random.RandomState):
            self._generators.append(partial(one.set_state, one.get_state()))
        elif isinstance(one, numpy.random.Generator):
            self._generators.append(partial(setattr, one.bit_generator, "state", one.bit_generator.state))

    def _save_alive(self) -> None:
        """Save scalers, and the schedulers of saved optimizers, wherever they are: no hook shows their steps."""
        for one in gc.get_objects():
            kind = type(one)
            if issubclass(kind, GradScaler) and id(one) not in self._seen:
                self._others.add(id(one))
                self.save(one)
            elif issubclass(kind, LRScheduler) and id(attribute(one, "optimizer", None)) in self._seen:
                self.save(one)

    def _runs(self, module: nn.Module, args: Any) -> None:
        if id(module) in self._seen or torch.compiler.is_compiling():
            return
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            self.save(module)

    def _steps(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._seen:
            self.save(optimizer)
            self._save_alive()


class _SavedTensor:
    """A tensor and its gradient: the objects, and copies of their values in ``place``."""

    def __init__(self, tensor: torch.Tensor, name: str, place: torch.device | str) -> None:
        self.name = name
        self._tensor = tensor
        self._values = _copied(tensor, place)
        self._needs_grad = tensor.requires_grad
        self._grad = tensor.grad
        self._grad_values = None if self._grad is None else _copied(self._grad, place)

    def restore(self) -> None:
        tensor = self._tensor
        _write(tensor, self._values)
        tensor.requires_grad_(self._needs_grad)
        if self._grad is not None and self._grad_values is not None:
            _write(self._grad, self._grad_values)
        tensor.grad = self._grad


def _copied(tensor: torch.Tensor, place: torch.device | str) -> torch.Tensor:
    return tensor.detach().to(place, copy=True)


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    if tensor.shape == values.shape and tensor.dtype == values.dtype:
        with torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(values)
    else:  # the step has set ``data``
        tensor.data = values.to(tensor.device)


def _make_lazy(one: Any, kind: type) -> None:
    """Give a lazy module or parameter its former class; empty the parameter if it has received values since."""
    if isinstance(one, torch.Tensor) and not is_lazy(one):
        one.grad = None
        one.data = torch.empty(0, device=one.device, dtype=one.dtype)
    one.__class__ = kind


def _refill(container: Any, saved: Any) -> None:
    """Give a container its former items; leave it untouched if it still has them."""
    if len(container) == len(saved) and all(map(operator.is_, _items(container), _items(saved))):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(saved)
    else:
        container.extend(saved)


def _items(container: Any) -> Iterator[Any]:
    return (part for item in container.items() for part in item) if isinstance(container, dict) else iter(container)


def _as_first_seeded() -> None:
    """Reset the GPUs' generators to their initial seeds."""
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(generator.initial_seed())

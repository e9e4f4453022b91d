"""The frozen part of a forward, run ahead; and the rest of it, run on what that gave."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...usercode import tree
from ..autocast import casts_made_anew
from .agreement import Agreement, SplitDiffers, Surroundings, agreement
from .cut import Action, Cut, cut
from .late import Late, Result
from .patches import Patch, patch_for, running
from .rewinding import generators_kept
from .structure import Like, Skeleton
from .trace import Facts, Given, Recording, record
from .weights import Weights

#: How much smaller the numbers are made in a batch that is to differ.
_SMALLER = 0.75
#: One entry for each frozen call: its result without the tensors, then the tensors.
Features = tuple[tuple[Any, ...], ...]
Call = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class NoPrefix:
    """Nothing can, or need, be run ahead. False in a condition.

    Attributes:
        reason: why, as a sentence.
        blocked: what keeps frozen modules from it, as sentences that say what to do.
    """

    reason: str
    blocked: tuple[str, ...]

    def __bool__(self) -> bool:
        return False


class Split:
    """A forward in two parts: the frozen prefix, which needs nothing of what the loop learns, and the rest.

    Both run the model's own code, unmodified; together they give what the forward gives, with the same gradients.

        features = split.prefix(batch)         # a batch ahead
        output = split.rest(batch, features)   # in place of model(batch)

    Attributes:
        names: the modules whose calls are in the prefix, in order.
        frozen: the same modules themselves.
        reason: what ends the prefix, as a sentence.
        blocked: what keeps more frozen modules out of it, as sentences that say what to do.
        capturable: whether a CUDA graph may hold the prefix, as far as one forward shows it: nothing on the way is read
            by Python, no random numbers are drawn.
    """

    def __init__(self, forward: _Forward, recording: Recording, where: Cut) -> None:
        self._forward = forward
        self._steps = [_Step.of(recording.facts[step.call], step.action, step.needed) for step in where.steps]
        taken = [recording.facts[step.call].module for step in where.steps if step.action is Action.TAKE]
        self.names = tuple(dict.fromkeys(recording.names[module] for module in taken))
        self.frozen: tuple[nn.Module, ...] = tuple(dict.fromkeys(taken))
        self.reason = where.reason
        self.blocked = where.blocked
        self.capturable = not (where.draws or where.leaks)
        self._generators = recording.generators if where.draws else None
        self._devices = recording.devices
        self._along = tuple(dict.fromkeys(step.patch for step in self._steps))
        inside = {part for module in self.frozen for part in module.modules()} - {patch.module for patch in self._along}
        self._watched = [patch_for(module) for module in recording.names if module not in inside]
        self._weights = _weights(recording, where)
        written = [recording.read[key] for key in recording.trace.changed if key in recording.read]
        self._around = Surroundings(recording.roots, written, sorted(self._devices, key=str), recording.generators)
        #: For a number of features the number of steps that lead up to the last of them.
        self._reach = [0, *(n for n, step in enumerate(self._steps, 1) if step.action is Action.TAKE)]

    def __repr__(self) -> str:
        return f"Split({', '.join(self.names)})"

    def prefix(self, batch: Any) -> Features:
        """What the frozen part makes of ``batch``: runs the forward without gradients, up to the last frozen call.

        Where the forward takes another course than it did when the split was found, fewer calls are in it, and the rest
        makes up for them.

        Raises:
            NotFrozen: a module of the prefix is in train mode now, or one of its weights requires grad.
        """
        self._weights.check()
        run = _Ahead(self._steps)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(casts_made_anew())
            if self._generators is not None:
                stack.enter_context(generators_kept(self._devices, self._generators))
            stack.enter_context(running(run, self._watched))
            try:
                self._forward.ahead(batch)
            except _Stop:
                pass
        return tuple(run.features)

    def rest(self, batch: Any, features: Features) -> Any:
        """What the forward gives for ``batch``, with the frozen calls answered by ``features``."""
        with running(_Behind(self._steps[: self._reach[len(features)]], features), self._along):
            return self._forward(batch)

    def stage(self, batch: Any) -> tuple[Any, Features]:
        """The batch and its features: a stage for a pipeline."""
        return batch, self.prefix(batch)

    def forward(self, batch: Any) -> Any:
        """The forward as it is without the split."""
        return self._forward(batch)

    def verify(self, batch: Any, other: Any = None) -> Agreement:
        """Run two steps with and without the split and compare them: outputs, gradients, buffers, random numbers.

        Nothing is changed by it, and of the model only gradients and what the forward writes into are copied.

        Args:
            batch: on the device.
            other: the batch of the second step. By default the same with its floating-point numbers made smaller.

        Raises:
            SplitDiffers: they differ by more than the forward does from itself.
        """

        def split(batches: list[Any]) -> Iterator[Any]:
            features = [self.prefix(one) for one in batches]
            if any(len(one) + 1 < len(self._reach) for one in features):
                raise SplitDiffers("the forward takes another course ahead of the loop: leave the model as it is")
            yield from map(self.rest, batches, features)

        steps = [batch, _varied(batch) if other is None else other]
        return agreement(lambda batches: map(self.forward, batches), split, steps, self._around)

    def changed(self) -> str | None:
        """The name of a weight of the prefix that holds something else than when the split was found.

        Ask after some steps of training: a teacher that follows its student needs no gradient either, and must not run
        ahead. Reads all the weights and waits for the device.
        """
        return self._weights.changed()


def find_prefix(model: Callable[[Any], Any], batch: Any, *, call: Call | None = None) -> Split | NoPrefix:
    """Find the part of ``model(batch)`` that depends on the batch and on frozen weights alone.

    The forward is run twice and watched; what it changes is put back. A call of a module is frozen if nothing in it
    reads what is trained, or what was computed from that, by whatever way; if it draws no random numbers, keeps no
    state, and writes into nothing that was there before.

    The code between the calls, hooks included, runs in both parts. What it does to tensors, to attributes of modules
    and to random generators is seen, and ends the prefix where it may not happen twice. What it does to other objects
    is not seen: :meth:`Split.verify` compares the results.

    Args:
        model: a module; or any function of the batch that calls modules, for encoders that the loop calls itself. It
            should be in the mode that it is trained in.
        batch: one batch of the loop's, on the device.
        call: runs the model, where that is not ``model(batch)``: ``lambda model, batch: model(batch[0])``. Of a
            ``DistributedDataParallel`` the prefix is given the module inside, so use the model that is passed.

    Returns:
        The split; or a :class:`NoPrefix` with the reason, which is false in a condition.

    Raises:
        UsageError: the model has modules without parameters, or runs them in threads.
    """
    forward = _Forward(model, call)
    recording = record(forward.ahead, batch, forward.roots())
    where = cut(recording.trace)
    return Split(forward, recording, where) if where.steps else NoPrefix(where.reason, where.blocked)


class _Forward:
    """How the forward is run in the loop, and how ahead of it: without the communication between processes."""

    def __init__(self, model: Callable[[Any], Any], call: Call | None) -> None:
        self._model = model
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._call = call

    def __call__(self, batch: Any) -> Any:
        return self._model(batch) if self._call is None else self._call(self._model, batch)

    def ahead(self, batch: Any) -> Any:
        return self._inner(batch) if self._call is None else self._call(self._inner, batch)

    def roots(self) -> dict[str, nn.Module]:
        """The modules that can be seen from here, by the names that they have in the user's code."""
        if isinstance(self._inner, nn.Module):
            return {"": self._inner, **_modules_of(self._call)}
        return {**_modules_of(self._inner), **_modules_of(self._call)}


def _modules_of(fn: Any) -> dict[str, nn.Module]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    held: Mapping[str, Any] = getattr(getattr(fn, "__self__", None), "__dict__", {})
    fn = inspect.unwrap(getattr(fn, "__func__", fn)) if callable(fn) else fn
    if inspect.isfunction(fn):
        try:
            seen = inspect.getclosurevars(fn)
        except ValueError:  # a variable that has no value yet
            return {}
        held = {**held, **seen.globals, **seen.nonlocals}
    return {name: value for name, value in held.items() if isinstance(value, nn.Module)}


def _weights(recording: Recording, where: Cut) -> Weights:
    """What the taken calls read."""
    calls = [recording.trace.calls[step.call] for step in where.steps if step.action is Action.TAKE]
    read = {key for call in calls for op in recording.trace.within(call) for key in op.reads}
    found = {weight[1:]: weight for key, weight in recording.weights.items() if key in read}
    modules = {recording.facts[step.call].module: None for step in where.steps if step.action is Action.TAKE}
    parts = {part: recording.names.get(part, recording.names[root]) for root in modules for part in root.modules()}
    return Weights(found.values(), [(name, part) for part, name in parts.items()])


@dataclass(frozen=True)
class _Step:
    """A call as it is met along the way; see :class:`.cut.Step`."""

    patch: Patch
    action: Action
    needed: bool
    given: tuple[Like, ...]
    form: Skeleton | None

    @classmethod
    def of(cls, facts: Facts, action: Action, needed: bool) -> _Step:
        return cls(patch_for(facts.module), action, needed, facts.given, facts.form)


class _Stop(BaseException):
    """The prefix has all that it wants. No ``Exception``, so that the model's code does not take it for one."""


class _Ahead:
    """Goes through the forward up to the last frozen call, and keeps what the frozen calls give."""

    def __init__(self, steps: list[_Step]) -> None:
        self.features: list[tuple[Any, ...]] = []
        self._steps = steps
        self._at = 0
        self._inside = False

    def called(self, patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside:
            return patch.original(*args, **kwargs)
        step = self._steps[self._at] if self._at < len(self._steps) else None
        if step is None or step.patch is not patch:
            self._stop()
        self._at += 1
        if step.action is Action.ENTER:
            return patch.original(*args, **kwargs)
        if step.action is Action.SKIP:
            return self._stood_in_for(step, args, kwargs)
        return self._taken(step, args, kwargs)

    def _taken(self, step: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._inside = True
        try:
            result = step.patch.original(*args, **kwargs)
        finally:
            self._inside = False
        self.features.append(_packed(result, step.needed))
        if self._at == len(self._steps):
            self._stop()
        return result

    def _stood_in_for(self, step: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tree.tensors((args, kwargs)))
        if step.form is None or tuple(map(Like, given)) != step.given:
            self._stop()  # the size of the result is not known

        def made(leaf: Any) -> Any:
            if isinstance(leaf, Given):
                return given[leaf.number]
            return leaf.zeros() if isinstance(leaf, Like) else leaf

        return step.form.filled((), made)

    def _stop(self) -> NoReturn:
        self._at = len(self._steps)  # also if the model's code goes on after this
        raise _Stop


class _Behind:
    """Goes through the forward with the frozen calls answered, as far as there are features."""

    def __init__(self, steps: list[_Step], features: Features) -> None:
        self._steps = steps
        self._features = iter(features)
        self._at = 0
        self._inside = False

    def called(self, patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside or self._at >= len(self._steps):
            return patch.original(*args, **kwargs)
        step = self._steps[self._at]
        if step.patch is not patch:
            self._at = len(self._steps)
            return patch.original(*args, **kwargs)
        self._at += 1
        if step.action is Action.TAKE:
            return _unpacked(next(self._features), Result(patch.original, args, kwargs))
        if step.action is Action.ENTER:
            return patch.original(*args, **kwargs)
        self._inside = True
        try:
            return patch.original(*args, **kwargs)
        finally:
            self._inside = False


def _varied(batch: Any) -> Any:
    """A batch that may be told from the one that it is made of."""

    def vary(leaf: Any) -> Any:
        is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach() * _SMALLER if is_number else leaf

    return tree.map_leaves(batch, vary)


def _packed(result: Any, needed: bool) -> tuple[Any, ...]:
    """A result as its skeleton and its tensors, if the loop needs these; else their shapes will do."""
    tensors: list[torch.Tensor] = []

    def kept(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if needed:
            tensors.append(leaf)
            return leaf
        return Like(leaf)

    return (Skeleton(result, kept), *tensors)


def _unpacked(feature: tuple[Any, ...], late: Result) -> Any:
    skeleton, *tensors = feature
    numbers = itertools.count()
    return skeleton.filled(tensors, lambda leaf: Late(leaf, late, next(numbers)) if isinstance(leaf, Like) else leaf)

"""The frozen modules that a step begins with: found and timed by hooks, in a few of the loop's own steps.

They learn nothing, so they could run a batch ahead of the loop. The hooks only watch: nothing is run a second time,
nothing is drawn at random, and they are removed after each step.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ...errors import PipediagError
from ...measure.clock import Clock
from ...measure.device import Device
from ...remedy.streams.frozen import drops, learns
from ...session import Prefix
from ...usercode import tree
from ...usercode.call_sites import call_site
from ..caches import BatchCache
from ..loop_side import LoopSide
from .tensor_uses import why_unwatched

#: Steps that are watched, at least and at most. Weights are compared after the first and after the last of them.
LEAST_STEPS, MOST_STEPS = 2, 5
#: Steps that may be handed out for each that is to be watched: an epoch may end in the middle of one.
TRIES = 2
#: Values of each weight that are compared.
_COMPARED = 64


def frozen_prefix(
    loop_side: LoopSide, cache: BatchCache, device: Device, clock: Clock, step_ms: float, steps: int
) -> Generator[Any, None, Prefix | None]:
    """The frozen modules that the loop's step begins with, over ``steps`` steps; None where there are none.

    ``step_ms`` is what a step takes that nobody watches. None, too, where nothing is trained, and where the script has
    compiled code, in which there are no modules any more.
    """
    if why_unwatched():
        return None
    try:
        found: Prefix | None = yield from _looked_for(loop_side, cache, device, clock, step_ms, steps)
    except Exception as error:  # the loop goes on, whatever its modules do when they are asked
        return _unknown(f"watching its modules failed ({type(error).__name__}: {error})")
    return found


def _unknown(why: str) -> Prefix:
    return Prefix([], 0.0, 0.0, why_not=why)


def _looked_for(
    loop_side: LoopSide, cache: BatchCache, device: Device, clock: Clock, step_ms: float, steps: int
) -> Generator[Any, None, Prefix | None]:
    seen: list[_Step] = []
    before: dict[str, _Weights] = {}
    for _ in range(TRIES * steps):
        if loop_side.epochs.complete:  # what the loop does between two epochs is no part of a step
            yield from loop_side.hand(cache.next())
        step = _Step(device, clock)
        with step.watched():
            whole = yield from loop_side.hand(cache.next())
        if step.trouble:
            return _unknown(step.trouble)
        if not whole:
            continue
        if not seen and not (step.trained and step.calls):
            return None
        before = before or _weights(step)
        seen.append(step)
        if len(seen) == steps:
            break
    if len(seen) < LEAST_STEPS:
        return None
    first, last = seen[0], seen[-1]
    if any(not step.trained or step.names != first.names for step in seen):
        return _unknown("the loop calls other modules from step to step")
    device.synchronize()
    ms = statistics.median(step.ms() for step in seen)
    return Prefix(
        modules=list(dict.fromkeys(first.names)),
        ms=ms,
        rest_ms=max(0.0, step_ms - ms),
        where=first.calls[0].where,
        around=next((call.root for call in first.calls if call.root != call.name), ""),
        why_not=_changed(before, _weights(last)) or _with_a_state(last) or _no_streams(device),
    )


@dataclass
class _Call:
    """A call of a frozen module: ``root`` is what the loop called, at ``where``, for this to be called."""

    module: nn.Module
    name: str
    root: str
    where: str
    began: Any
    ended: Any = None


class _Step:
    """Watches one step.

    Attributes:
        calls: of frozen modules, before any of a trained one.
        trained: whether a trained module was called, or a frozen one was given what depends on trained weights. What
            comes after that is not looked at.
        trouble: why the step could not be watched; empty if all is well.
    """

    def __init__(self, device: Device, clock: Clock) -> None:
        self.calls: list[_Call] = []
        self.trained = False
        self.trouble = ""
        self._device = device
        self._clock = clock
        self._thread = threading.get_ident()
        self._stack: list[nn.Module] = []  # the calls under way
        self._frozen = 0  # how deep in it the frozen module lies; 0 where none is called
        self._root = ("", "")

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def ms(self) -> float:
        """What all the calls took; the device has to be synchronised before."""
        return sum(_ms_between(call.began, call.ended) for call in self.calls)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """All modules of the process are hooked inside; the hooks never raise."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._begins).remove)
            # Without keyword arguments: torch would keep a note of such a hook for good, and all calls would be slower.
            stack.callback(register_module_forward_hook(self._ended, always_call=True).remove)
            yield
        if self._frozen:  # it was left by an exception that hooks do not see
            self.trouble = self.trouble or f"{self.calls[-1].name} was left in the middle"

    @property
    def _over(self) -> bool:
        return self.trained or bool(self.trouble) or threading.get_ident() != self._thread

    def _begins(self, module: nn.Module, args: Any) -> None:
        if self._over:
            return
        try:
            if not self._stack:
                self._root = call_site(module)
            self._stack.append(module)
            if not self._frozen:
                self._enter(module)
        except Exception as error:  # it is no error of the script's
            self._give_up(module, error)

    def _enter(self, module: nn.Module) -> None:
        if any(weight.requires_grad for weight in module.parameters(recurse=False)):
            self.trained = True
            return
        weights = list(module.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            name = _named(module, self._stack[0], self._root[0])
            self.calls.append(_Call(module, name, *self._root, began=self._now()))
            self._frozen = len(self._stack)

    def _ended(self, module: nn.Module, args: Any, result: Any) -> None:
        if self._over or not self._stack or self._stack[-1] is not module:
            return
        try:
            if len(self._stack) == self._frozen:
                self.calls[-1].ended = self._now()
                self._frozen = 0
                if any(tensor.requires_grad for tensor in tree.tensors((args, result))):
                    self.trained = True
                    self.calls.pop()
            self._stack.pop()
        except Exception as error:  # it is no error of the script's
            self._give_up(module, error)

    def _now(self) -> Any:
        """A moment on the device's clock; on a device without one, that of the host."""
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise PipediagError("it is being captured in a graph, which knows no time")
        event = self._device.event()
        return self._clock.now() if event is None else event

    def _give_up(self, module: nn.Module, error: Exception) -> None:
        self.trouble = f"a call of {type(module).__name__} could not be watched ({type(error).__name__}: {error})"
        self._frozen = 0


def _ms_between(began: Any, ended: Any) -> float:
    return 1000.0 * (ended - began) if isinstance(began, float) else float(began.elapsed_time(ended))


def _named(module: nn.Module, root: nn.Module, root_name: str) -> str:
    """The path to a module from what the loop calls; the name of its class where none leads to it."""
    path = next((path for path, part in root.named_modules() if part is module), None)
    if path is None:
        return type(module).__name__
    return f"{root_name}.{path}" if path else root_name


#: The counters of the changes of a module's weights, and a few values of each, since writing to ``.data`` is not
#: counted.
_Weights = tuple[tuple[int, ...], list[Tensor]]


def _weights(step: _Step) -> dict[str, _Weights]:
    """Of each frozen module, by its name."""
    weights = {call.name: list(call.module.parameters()) for call in step.calls}
    return {name: (tree.versions(held), _samples(held)) for name, held in weights.items()}


def _samples(weights: Sequence[Tensor]) -> list[Tensor]:
    # Those of a kind of their own may lie on other processes, too, which would have to be asked.
    plain = (one for one in weights if type(one) is nn.Parameter and one.layout == torch.strided)
    return [one.detach().flatten()[:_COMPARED].clone() for one in plain]


def _changed(before: dict[str, _Weights], after: dict[str, _Weights]) -> str:
    """Which weights change although no gradient reaches them: those of a teacher that follows its student, say."""
    for name, (versions, samples) in before.items():
        versions_now, samples_now = after[name]
        if versions != versions_now or not all(map(torch.equal, samples, samples_now)):
            return f"weights of {name} change while the loop trains"
    return ""


def _with_a_state(step: _Step) -> str:
    """Which module in the frozen ones does more than to compute its output."""
    for call in step.calls:
        for part in call.module.modules():
            what = "updates its running statistics" if learns(part) else "draws random numbers" if drops(part) else ""
            if what and part.training:
                told = f"{type(part).__name__} in {call.name} is in train mode and {what}"
                return f"{told}: put it into eval mode, or leave it in the loop"
    return ""


def _no_streams(device: Device) -> str:
    kind = device.torch_device.type
    return "" if kind == "cuda" else f"training runs on the {kind.upper()}, where nothing runs beside the rest"

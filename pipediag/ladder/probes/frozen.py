"""Find and time the frozen modules at the beginning of a step, with hooks, during a few of the loop's own steps.

Frozen modules learn nothing, so they could run one batch ahead of the loop. The hooks only watch: they run nothing a
second time, draw nothing at random, and are removed after each step.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ...clock import Clock
from ...errors import PipediagError
from ...measure.device import Device
from ...patches import hooked
from ...session import Prefix
from ...streams.stage import drops, learns
from ...usercode import tree
from ...usercode.holders import call_site
from ..loop_side import LoopSide, Turn
from .tensor_uses import why_unwatched

#: Minimum and maximum number of steps to watch. Weights are compared after the first and the last of them.
LEAST_STEPS, MOST_STEPS = 2, 5
#: Maximum number of steps per watched step: an epoch may end in the middle of one.
TRIES = 2
#: Number of values of each weight to compare.
_COMPARED = 64


def frozen_prefix(loop_side: LoopSide, step_ms: float, steps: int) -> Turn[Prefix | None]:
    """Return the frozen modules that run first in the loop's step, or None if there are none.

    The loop takes ``steps`` watched steps on batches cached on the device; ``step_ms`` is the duration of an unwatched
    step. The result is also None if nothing is trained, or if the script has compiled code, in which modules cannot be
    seen.
    """
    if why_unwatched():
        return None
    try:
        return (yield from _looked_for(loop_side, step_ms, steps))
    except Exception as error:  # an error in a user's module must not end the loop
        return _unknown(f"watching its modules failed ({type(error).__name__}: {error})")


def _unknown(why: str) -> Prefix:
    return Prefix([], 0.0, 0.0, why_not=why)


def _looked_for(loop_side: LoopSide, step_ms: float, steps: int) -> Turn[Prefix | None]:
    cache, device = loop_side.cache("device"), loop_side.device
    seen: list[_Step] = []
    before: dict[str, _Weights] = {}
    for _ in range(TRIES * steps):
        if loop_side.epochs.complete:  # code between two epochs is not part of a step
            yield from loop_side.hand(cache.next())
        step = _Step(device, loop_side.clock)
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
    first, last, kind = seen[0], seen[-1], device.torch_device.type
    no_streams = "" if kind == "cuda" else f"training runs on the {kind.upper()}, which has no streams"
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
        why_not=_changed(before, _weights(last)) or _with_a_state(last) or no_streams,
    )


@dataclass
class _Call:
    """A call of a frozen module, made by a call of ``root`` in the loop at ``where``."""

    module: nn.Module
    name: str
    root: str
    where: str
    began: Any
    ended: Any = None


class _Step:
    """The module calls of one step."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self.calls: list[_Call] = []  # calls of frozen modules before the first call of a trained one
        #: True once a trained module was called, or a frozen one got input that depends on trained weights. Later calls
        #: are ignored.
        self.trained = False
        self.trouble = ""  # why the step could not be watched, or ""
        self._device = device
        self._clock = clock
        self._thread = threading.get_ident()
        self._stack: list[nn.Module] = []  # open calls, outermost first
        self._frozen = 0  # depth of the open call of a frozen module, or 0
        self._root = ("", "")

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def ms(self) -> float:
        """Return the milliseconds of all calls. Synchronize the device first."""
        spans = [(call.began, call.ended) for call in self.calls]
        return float(
            sum(1000.0 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end) for begin, end in spans)
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hook all modules of the process within the context; the hooks never raise."""
        # No hooks with keyword arguments: torch would remember that it had one, and all later calls would be slower.
        with (
            hooked(register_module_forward_pre_hook(self._begins)),
            hooked(register_module_forward_hook(self._ended, always_call=True)),
        ):
            yield
        if self._frozen:  # an exception that hooks do not see ended the call
            self.trouble = self.trouble or f"a call of {self.calls[-1].name} did not end"

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
        except Exception as error:  # not an error of the script
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
        except Exception as error:  # not an error of the script
            self._give_up(module, error)

    def _now(self) -> Any:
        """Return a time on the device's clock, or on the host's if the device has none."""
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise PipediagError("it is being captured in a CUDA graph, where events have no time")
        event = self._device.event()
        return self._clock.now() if event is None else event

    def _give_up(self, module: nn.Module, error: Exception) -> None:
        self.trouble = f"a call of {type(module).__name__} could not be watched ({type(error).__name__}: {error})"
        self._frozen = 0


def _named(module: nn.Module, root: nn.Module, root_name: str) -> str:
    """Return the path from the module that the loop calls to ``module``, or the name of its class without a path."""
    path = next((path for path, part in root.named_modules() if part is module), None)
    if path is None:
        return type(module).__name__
    return f"{root_name}.{path}" if path else root_name


#: Version counters of a module's weights, and a few values of each weight: writes to ``.data`` are not counted.
_Weights = tuple[tuple[int, ...], list[Tensor]]


def _weights(step: _Step) -> dict[str, _Weights]:
    weights = {call.name: list(call.module.parameters()) for call in step.calls}
    return {name: (tree.versions(held), _samples(held)) for name, held in weights.items()}


def _samples(weights: Sequence[Tensor]) -> list[Tensor]:
    # Skip subclasses of Parameter: a sharded one would have to ask other processes.
    plain = (one for one in weights if type(one) is nn.Parameter and one.layout == torch.strided)
    return [one.detach().flatten()[:_COMPARED].clone() for one in plain]


def _changed(before: dict[str, _Weights], after: dict[str, _Weights]) -> str:
    """Say which weights change although they get no gradient, such as those of a teacher that follows its student."""
    for name, (versions, samples) in before.items():
        versions_now, samples_now = after[name]
        if versions != versions_now or not all(map(torch.equal, samples, samples_now)):
            return f"weights of {name} change while the loop trains"
    return ""


def _with_a_state(step: _Step) -> str:
    """Say which frozen module has a state or draws random numbers."""
    for call in step.calls:
        for part in call.module.modules():
            what = "updates its running statistics" if learns(part) else "draws random numbers" if drops(part) else ""
            if what and part.training:
                reason = f"{type(part).__name__} in {call.name} is in train mode and {what}"
                return f"{reason}: put it into eval mode, or leave it in the loop"
    return ""

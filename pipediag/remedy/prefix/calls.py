"""The outermost modules that a training loop calls in one of its steps, with what they are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...usercode import tree
from ...usercode.call_sites import call_site
from .origins import Origins
from .patches import Patch, patch_for, running
from .structure import rebuilt, tensors_in


class Link:
    """Stands for the ``tensor``-th tensor in the result of the ``call``-th call of the step."""

    __slots__ = ("call", "tensor")

    def __init__(self, call: int, tensor: int) -> None:
        self.call, self.tensor = call, tensor


class Input:
    """Stands for something that a call is given, by its number among all of them in the step."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class Seen:
    """One call of a module that was called by no other.

    Attributes:
        name, where: what the loop calls it, and ``file:line`` of the call.
        form: its arguments and keyword arguments, with :class:`Link` and :class:`Input` in place of tensors.
        grad: whether gradients were recorded.
        autocast: the type that autocast was set to; None where it was off.
        opaque: an argument that is not the batch's, and cannot be marked as such.
        results: its tensors, as long as the step lasts.
    """

    module: nn.Module
    name: str
    where: str
    grad: bool
    autocast: torch.dtype | None
    form: Any = None
    opaque: bool = False
    results: list[Tensor] = field(default_factory=list)


class Step:
    """Watches steps of the loop's, and keeps the calls of the last.

    What a call is given that depends on the batch alone is copied as it is. What depends on anything else is copied
    as a tensor that requires grad: nothing that reads it is frozen.

    Attributes:
        calls: in order.
        inputs: what :class:`Input` stands for.
        trouble: why a call could not be followed; empty if all is well.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self.calls: list[Seen] = []
        self.inputs: list[Any] = []
        self.trouble = ""
        self._patches = [patch_for(module) for module in modules]
        self._device = device
        self._origins = Origins(device)
        self._inside = False

    @contextmanager
    def watched(self, batch: Any) -> Iterator[None]:
        """The loop is given ``batch`` inside. Its step is what it is without being watched."""
        self.calls, self.inputs = [], []
        with ExitStack() as stack:
            stack.enter_context(running(self, self._patches))
            stack.enter_context(self._origins.step(batch))
            yield
        for call in self.calls:
            call.results.clear()

    def called(self, patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside:
            return patch.original(*args, **kwargs)
        seen = self._noted(patch.module, args, kwargs, torch.is_grad_enabled())
        self._inside = True
        try:
            result = patch.original(*args, **kwargs)
        finally:
            self._inside = False
        if seen is not None:
            seen.results = tensors_in(result)
        return result

    def _noted(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> Seen | None:
        if self.trouble:
            return None
        try:
            with self._origins.aside(), torch.inference_mode(False), torch.no_grad():
                return self._note(module, args, kwargs, grad)
        except Exception as error:  # the loop goes on, whatever its arguments are
            self.trouble = f"a call of {type(module).__name__} could not be followed ({type(error).__name__}: {error})"
            return None

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> Seen:
        drawn = self._origins.drawn()
        seen = Seen(module, *call_site(module), grad=grad, autocast=_autocast(self._device))
        seen.form = rebuilt((args, kwargs), lambda leaf: self._kept(seen, leaf, drawn))
        self.calls.append(seen)
        return seen

    def _kept(self, seen: Seen, leaf: Any, drawn: bool) -> Any:
        if not isinstance(leaf, Tensor):
            if tree.moves_itself(leaf) and any(True for _ in tree.tensors(leaf)):
                seen.opaque = seen.opaque or drawn or self._origins.strays(tree.tensors(leaf))
                return self._input(tree.clone(leaf))
            return leaf
        link = self._link(leaf)
        if link is not None:
            return link
        copy = leaf.detach().clone()
        if drawn or self._origins.strays([leaf]):
            if not (leaf.is_floating_point() or leaf.is_complex()):
                seen.opaque = True
            else:
                copy.requires_grad_(True)
        return self._input(copy)

    def _input(self, value: Any) -> Input:
        self.inputs.append(value)
        return Input(len(self.inputs) - 1)

    def _link(self, tensor: Tensor) -> Link | None:
        """The result of an earlier call that is handed on as it is, or detached."""
        for number, call in enumerate(self.calls):
            for index, result in enumerate(call.results):
                if result is tensor or (_same_memory(result, tensor) and result.requires_grad == tensor.requires_grad):
                    return Link(number, index)
        return None


def _same_memory(one: Tensor, other: Tensor) -> bool:
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    alike = (one.shape, one.stride(), one.dtype, one.device) == (other.shape, other.stride(), other.dtype, other.device)
    return alike and one.data_ptr() == other.data_ptr() and one.numel() > 0


def _autocast(device: torch.device) -> torch.dtype | None:
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    dtype: torch.dtype = torch.get_autocast_dtype(device.type)
    return dtype

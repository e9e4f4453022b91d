"""A training step's calls of modules, made once more beside the loop: the step that a prefix is looked for in."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .calls import Input, Link, Seen
from .rewinding import rewound
from .structure import found_in, rebuilt, tensors_in


class Again:
    """The calls of a step as a function of what they were given.

    What lies between two calls is not made again: where a call is given the result of an earlier one, it is given that,
    and else what it was given in the step. Calls from the first one on whose arguments cannot be told apart are left
    out.

    Attributes:
        calls: those that are made.
        modules: by the names that they have in the loop.
        trained: the parameters in them that require grad.
    """

    def __init__(self, calls: Sequence[Seen], device: torch.device) -> None:
        opaque = next((number for number, call in enumerate(calls) if call.opaque), len(calls))
        self.calls = list(calls[:opaque])
        self._device = device
        self._runs = [_without_communication(call.module) for call in self.calls]
        self.modules: dict[str, nn.Module] = {}
        for call, module in zip(self.calls, self._runs, strict=True):
            if module not in self.modules.values():
                self.modules[_free(call.name, self.modules)] = module
        parameters = (weight for module in self._runs for weight in module.parameters() if weight.requires_grad)
        self.trained: list[Tensor] = list(dict.fromkeys(parameters))
        links = {link for call in self.calls for link in found_in(call.form, Link)}
        self._last = [number for number in range(len(self.calls)) if not any(link.call == number for link in links)]

    @property
    def forward(self) -> Callable[[list[Any]], list[Any]]:
        """Takes the inputs, gives the results that no other call takes. Shows its modules, with their names."""
        names = types.SimpleNamespace(**self.modules)
        return types.MethodType(lambda _, inputs: self._run(inputs), names)

    def step(self, inputs: Any, forward: Callable[[Any], Any]) -> None:
        """The forward and the backward pass. No gradient is kept, and nothing is learnt."""
        results = [tensor for tensor in tensors_in(forward(inputs)) if tensor.requires_grad]
        if results:
            loss = torch.stack([result.sum().float() for result in results]).sum()
            torch.autograd.grad(loss, self.trained, allow_unused=True)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Afterwards the modules and all random generators are as they were. Gradients are recorded inside."""
        buffers = dict.fromkeys(buffer for module in self.modules.values() for buffer in module.buffers())
        before = [(buffer, buffer.detach().clone()) for buffer in buffers]
        with ExitStack() as stack:
            kept = stack.enter_context(rewound([self._device]))
            for module in self.modules.values():
                kept.add(module)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, value in before:
                        if not torch.equal(buffer, value):
                            buffer.copy_(value)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        tensors: list[list[Tensor]] = []

        def given(leaf: Any) -> Any:
            if isinstance(leaf, Link):
                return tensors[leaf.call][leaf.tensor]
            return inputs[leaf.number] if isinstance(leaf, Input) else leaf

        for call, module in zip(self.calls, self._runs, strict=True):
            args, kwargs = rebuilt(call.form, given)
            with torch.set_grad_enabled(call.grad), self._cast(call.autocast):
                results.append(module(*args, **kwargs))
            tensors.append(tensors_in(results[-1]))
        return [results[number] for number in self._last]

    def _cast(self, dtype: torch.dtype | None) -> torch.autocast:
        kind = self._device.type if torch.amp.is_autocast_available(self._device.type) else "cpu"
        return torch.autocast(kind, dtype, enabled=dtype is not None)


def _without_communication(module: nn.Module) -> nn.Module:
    inner: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
    return inner


def _free(name: str, taken: dict[str, nn.Module]) -> str:
    """The name, with a number where another module has it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found

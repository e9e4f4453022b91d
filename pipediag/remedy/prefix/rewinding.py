"""Running a forward and leaving no trace of it: what it changes is put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...usercode import randomness
from .memory import memory_of


class Kept:
    """What is put back at the end: modules as they were when they were added, tensors as they were before a write.

    Only what is written to is copied.
    """

    def __init__(self) -> None:
        self._modules: dict[nn.Module, _Module] = {}
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._spans: set[Any] = set()
        self._generators: dict[torch.Generator, Tensor] = {}

    def add(self, root: nn.Module) -> None:
        """Keep what this module and those in it hold."""
        for module in root.modules():
            if module not in self._modules:
                self._modules[module] = _Module(module)

    def before_write(self, tensor: Tensor) -> None:
        """``tensor`` is about to be changed in place."""
        span = (tensor.data_ptr(), tensor.size(), tensor.stride(), tensor.dtype)
        if span not in self._spans:
            self._spans.add(span)
            self._tensors.append((tensor.detach(), tensor.detach().clone()))

    def before_draw(self, generator: torch.Generator) -> None:
        """A generator that somebody made is about to be drawn from."""
        if generator not in self._generators:
            self._generators[generator] = generator.get_state()

    def put_back(self) -> None:
        for generator, state in self._generators.items():
            generator.set_state(state)
        for module, kept in self._modules.items():
            kept.put_back(module)
        with torch.no_grad():
            for tensor, before in reversed(self._tensors):
                tensor.copy_(before)


@contextmanager
def rewound(devices: Iterable[torch.device]) -> Iterator[Kept]:
    """Afterwards what was kept is as it was, and so are all random generators, those of ``devices`` included."""
    kept = Kept()
    with randomness.undisturbed(), generators_kept(devices):
        try:
            yield kept
        finally:
            kept.put_back()


@contextmanager
def generators_kept(devices: Iterable[torch.device], generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Draws of torch inside do not change those afterwards: on the CPU, on ``devices``, and from ``generators``."""
    own = [(generator, generator.get_state()) for generator in generators]
    host = torch.get_rng_state()
    on_devices = [(device, generator_state(device)) for device in devices if device.type != "cpu"]
    try:
        yield
    finally:
        torch.set_rng_state(host)
        for device, state in on_devices:
            torch.get_device_module(device).set_rng_state(state, device)
        for generator, state in own:
            generator.set_state(state)


def generator_state(device: torch.device) -> Tensor:
    """Where torch's own generator for a device stands."""
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


#: What may stand in for a forward at the time; see :mod:`.patches`.
_NOT_OURS = frozenset({"forward", "_compiled_call_impl"})


class _Module:
    """What one module holds: its attributes, the content of plain containers among them, and where its weights lie."""

    def __init__(self, module: nn.Module) -> None:
        self._attributes = {name: value for name, value in vars(module).items() if name not in _NOT_OURS}
        held = [value for value in self._attributes.values() if isinstance(value, (list, dict, set, deque))]
        self._contents = [(container, container.copy()) for container in held]
        registered = [*module._parameters.values(), *module._buffers.values()]
        self._memory = [(tensor, tensor.detach()) for tensor in registered if tensor is not None]

    def put_back(self, module: nn.Module) -> None:
        attributes = vars(module)
        for name in attributes.keys() - self._attributes.keys() - _NOT_OURS:
            del attributes[name]
        attributes.update(self._attributes)
        for container, before in self._contents:
            _refill(container, before)
        for tensor, before in self._memory:
            if memory_of(tensor) != memory_of(before):
                tensor.data = before


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, (list, deque)):
        same = len(container) == len(before) and all(map(lambda one, other: one is other, container, before))
        if not same:
            container.clear()
            container.extend(before)
    elif isinstance(container, dict):
        if container.keys() != before.keys() or any(container[key] is not before[key] for key in before):
            container.clear()
            container.update(before)
    elif container != before:
        container.clear()
        container.update(before)

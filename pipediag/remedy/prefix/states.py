"""What a module keeps: its attributes, the content of plain containers among them, and where its weights lie."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...usercode import tree
from .memory import memory_of

#: Where a module keeps parameters and buffers; these are compared by their own names.
_REGISTERS = frozenset({"_parameters", "_buffers"})
#: Containers that are known by what is in them, and values that are compared by ``==``.
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device)
#: Containers longer than this are compared by their length alone.
_LONG = 1000


class State:
    """A module as it was, for a comparison later. Of tensors the memory and the count of changes are compared."""

    def __init__(self, module: nn.Module) -> None:
        self._values = {name: value for name, value in vars(module).items() if name not in _REGISTERS}
        self._values.update(module.named_parameters(recurse=False))
        self._values.update(module.named_buffers(recurse=False))
        self._contents = {name: _content(value) for name, value in self._values.items()}
        self._places = {name: _places(content) for name, content in self._contents.items()}

    def changes(self, now: State) -> Iterator[str]:
        """The names of attributes that are others now."""
        for name in {**self._values, **now._values}:
            if name not in self._values or name not in now._values or not self._same(now, name):
                yield name

    def _same(self, now: State, name: str) -> bool:
        value, value_now = self._values[name], now._values[name]
        before, after = self._contents[name], now._contents[name]
        if isinstance(value, _CONTAINERS) and type(value) is type(value_now):
            alike = len(before) == len(after) and all(map(_equal, before, after))
        else:
            alike = _equal(value, value_now)
        return alike and self._places[name] == now._places[name]


def _content(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        return (value,)
    if not isinstance(value, _CONTAINERS):
        return ()
    if isinstance(value, (set, frozenset)) or len(value) > _LONG:
        return (len(value),)
    return (*value.keys(), *value.values()) if isinstance(value, dict) else tuple(value)


def _places(content: tuple[Any, ...]) -> list[Any]:
    return [(memory_of(one), tree.versions(one)) for one in content if isinstance(one, Tensor)]


def _equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other))

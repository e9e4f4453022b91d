"""What a call returned, taken apart into its tensors and what is around them, and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

#: Values that are compared by ``==``; other objects are equal only to themselves.
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


def rebuilt(obj: Any, fn: Callable[[Any], Any]) -> Any:
    """The same structure with ``fn`` applied to all that is not a tuple, list, dict or dataclass; those are made anew.

    Unlike :func:`pipediag.usercode.tree.map_leaves` it takes no subclass apart whose making it does not know, but for
    dataclasses that are mappings, as model libraries return them.
    """
    if type(obj) is tuple:
        return tuple(rebuilt(item, fn) for item in obj)
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return type(obj)(*(rebuilt(item, fn) for item in obj))
    if type(obj) is list:
        return [rebuilt(item, fn) for item in obj]
    if type(obj) in (dict, OrderedDict):
        return type(obj)((key, rebuilt(value, fn)) for key, value in obj.items())
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        values = {one.name: rebuilt(getattr(obj, one.name), fn) for one in dataclasses.fields(obj) if one.init}
        if isinstance(obj, Mapping):
            return dataclasses.replace(obj, **values)
        twin = copy.copy(obj)
        for name, value in values.items():
            object.__setattr__(twin, name, value)
        return twin
    return fn(obj)


def found_in(obj: Any, kind: type[T]) -> list[T]:
    """The objects of this kind that :func:`rebuilt` meets, in order."""
    found: list[T] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, kind):
            found.append(leaf)
        return leaf

    rebuilt(obj, note)
    return found


def tensors_in(obj: Any) -> list[Tensor]:
    """The tensors that :func:`rebuilt` meets, in order."""
    return found_in(obj, Tensor)


class Like:
    """A tensor's shape, strides, dtype and device, without its values."""

    __slots__ = ("device", "dtype", "size", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.stride = tensor.stride() if tensor.layout == torch.strided else None

    def zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Like) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.size, self.stride, self.dtype, self.device


class _Slot:
    """The place of a leaf in a structure, by number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slot) and self.number == other.number

    __hash__ = None  # type: ignore[assignment]


class Skeleton:
    """A structure without its tensors. Nothing in it is seen by whoever walks a batch.

    Attributes:
        tensors: how many go in.
    """

    def __init__(self, obj: Any, kept: Callable[[Any], Any] = lambda leaf: leaf) -> None:
        """``kept`` turns a leaf into what is kept in its place; tensors that it leaves alone are taken out."""
        self.tensors = 0
        self._leaves: list[Any] = []

        def take_out(leaf: Any) -> _Slot:
            leaf = kept(leaf)
            if isinstance(leaf, Tensor):
                self.tensors += 1
                leaf = _TENSOR
            self._leaves.append(leaf)
            return _Slot(len(self._leaves) - 1)

        self._form = rebuilt(obj, take_out)

    def filled(self, tensors: Sequence[Tensor], made: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """The structure with ``tensors`` in it, and ``made`` of everything else that was kept; containers are new."""
        given: Iterator[Tensor] = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else made(leaf) for leaf in self._leaves]
        return rebuilt(self._form, lambda slot: leaves[slot.number])

    def leaves(self) -> list[Any]:
        """All that was kept, without the places of tensors."""
        return [leaf for leaf in self._leaves if leaf is not _TENSOR]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Skeleton) or len(self._leaves) != len(other._leaves):
            return False
        return bool(self._form == other._form) and all(map(_same, self._leaves, other._leaves))

    __hash__ = None  # type: ignore[assignment]


class _Tensor:
    """Stands where a tensor was."""


_TENSOR = _Tensor()


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, (*_PLAIN, Like)) and bool(one == other))

"""Walk and transform a batch or sample of any structure, keeping its types and nesting.

A batch may be a tensor, a tuple, list or mapping of anything, a named tuple, a dataclass, or a user-defined object with
its own ``.to`` (graph batches, packed sequences). Anything else passes through.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from .attributes import attribute, has_attribute, is_a, is_exactly
from .paths import parts, rebuilt


def map_leaves(obj: Any, fn: Callable[[Any], Any], around: frozenset[int] = frozenset()) -> Any:
    """Return the same structure with ``fn`` applied to every leaf; containers are created anew.

    An object with its own ``.to`` is a leaf, even if it is also a container; so is one of those ``around`` it, by id.
    """
    inside = None if id(obj) in around else _parts(obj)
    if inside is None:
        return fn(obj)
    mapped = {step: map_leaves(part, fn, around | {id(obj)}) for step, part in inside}
    is_constant = is_a(obj, Mapping) and not is_a(obj, MutableMapping)
    return mapped if is_constant else rebuilt(obj, mapped)


def pinned(obj: Any, device: Any = None) -> Any:
    """Return a batch in page-locked memory as torch does it; tuples stay tuples, which older versions make lists."""
    if type(obj) is tuple:
        return tuple(pinned(one, device) for one in obj)
    if type(obj) is list:
        return [pinned(one, device) for one in obj]
    if type(obj) is dict:
        return {key: pinned(one, device) for key, one in obj.items()}
    return pin_memory(obj, device)


def as_pinned(obj: Any) -> Any:
    """Return a batch in the containers that a loader with ``pin_memory`` gives: older versions of torch make lists."""
    if type(pin_memory(())) is tuple:
        return obj
    if is_exactly(obj, tuple, list):
        return [as_pinned(one) for one in obj]
    return {key: as_pinned(one) for key, one in obj.items()} if type(obj) is dict else obj


def leaves(obj: Any, around: frozenset[int] = frozenset()) -> Iterator[Any]:
    inside = None if id(obj) in around else _parts(obj)
    if inside is None:
        yield obj
    for _, part in inside or ():
        yield from leaves(part, around | {id(obj)})


def _parts(obj: Any) -> list[tuple[Any, Any]] | None:
    """Return the direct parts of a container, each with the step to it; None for a leaf."""
    if is_a(obj, torch.Tensor) or moves_itself(obj):
        return None
    if is_a(obj, Mapping):
        return list(obj.items())
    if is_a(obj, (tuple, list)) or dataclasses.is_dataclass(type(obj)):
        return parts(obj)
    return None


def tensors(obj: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in the structure, including those held by user-defined objects."""
    for leaf in leaves(obj):
        if is_a(leaf, torch.Tensor):
            yield leaf
        elif moves_itself(leaf):
            yield from tensors(_insides(leaf))


def _insides(obj: Any) -> list[Any]:
    """Return the content of an object: the items of a sequence or mapping, otherwise its attributes."""
    if is_a(obj, (tuple, list)):
        return list(obj)
    return list(obj.values() if is_a(obj, Mapping) else attribute(obj, "__dict__", {}).values())


def moves_itself(obj: Any) -> bool:
    """Return whether an object other than a tensor has its own ``.to`` and may hold more than its items.

    The outputs of tokenizers and processors of transformers, each a ``UserDict``, hold items only.
    """
    if is_a(obj, (torch.Tensor, type)) or is_user_dict(obj):
        return False
    return callable(attribute(obj, "to", None))


def is_user_dict(obj: Any) -> bool:
    """Return whether an object is a ``UserDict`` that sets its items as they are given."""
    return is_a(obj, UserDict) and type(obj).__setitem__ is UserDict.__setitem__


def move(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return the batch on ``device``; objects with their own ``.to`` are moved by it.

    ``non_blocking``: tensors in page-locked memory are copied without blocking the host.
    """
    return map_leaves(batch, lambda leaf: _move_leaf(leaf, device, non_blocking))


def _move_leaf(leaf: Any, device: torch.device, non_blocking: bool) -> Any:
    if is_a(leaf, torch.Tensor):
        return leaf.to(device, non_blocking=non_blocking)
    # Many ``to`` methods change the object in place and return it; the cached original must not move.
    return _deep_copy(leaf).to(device) if moves_itself(leaf) else leaf


def _deep_copy(obj: Any) -> Any:
    try:
        return copy.deepcopy(obj)
    except RuntimeError:  # a tensor inside that is part of an autograd graph
        return copy.copy(obj)


def clone(batch: Any) -> Any:
    """Return a copy whose tensors share no memory with the original's."""
    return map_leaves(batch, _clone_leaf)


def _clone_leaf(leaf: Any) -> Any:
    if is_a(leaf, torch.Tensor):
        return leaf.detach().clone()
    return _deep_copy(leaf) if moves_itself(leaf) else leaf


def copied(obj: Any, kinds: tuple[type, ...] = (object,)) -> Any:
    """Return the same structure in new containers, with copies of the leaves of these types."""
    return map_leaves(obj, lambda leaf: _copied_leaf(leaf) if is_a(leaf, kinds) else leaf)


def _copied_leaf(leaf: Any) -> Any:
    if is_a(leaf, torch.Tensor):
        return leaf.detach().clone()
    try:
        return _deep_copy(leaf)
    except Exception:  # a lock, a file, a generator: returned as it is
        return leaf


def clone_pinned(batch: Any) -> Any:
    """Return a :func:`clone` with pinned tensors pinned again.

    Not for workers: checking whether memory is pinned initializes CUDA, which a forked process must not do.
    """
    return map_leaves(batch, _clone_leaf_pinned)


def _clone_leaf_pinned(leaf: Any) -> Any:
    fresh = _clone_leaf(leaf)
    pinned = is_a(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.is_pinned()
    return fresh.pin_memory() if pinned else fresh


def in_shared_memory(batch: Any) -> Any:
    """Return a copy whose tensors other processes can map.

    Objects with their own ``.to`` are shared when sent, and so are tensors of several parts, as sparse ones.
    """
    return map_leaves(batch, _shared_leaf)


def _shared_leaf(leaf: Any) -> Any:
    if not is_a(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.is_nested:
        return _clone_leaf(leaf)
    if leaf.device.type != "cpu" or type(leaf) is not torch.Tensor:
        return leaf.detach().clone().share_memory_()
    storage = torch.UntypedStorage._new_shared(leaf.numel() * leaf.element_size())  # as torch's own collating does it
    return torch.empty(0, dtype=leaf.dtype, device="cpu").set_(storage, 0, leaf.shape).copy_(leaf)


def versions(batch: Any) -> tuple[int, ...]:
    """Return the version counter of every tensor: it increases when user code writes into the tensor in place."""
    return tuple(0 if t.is_inference() else t._version for t in tensors(batch))  # those of inference mode have none


def share_memory(one: Any, other: Any) -> bool:
    """Return whether a tensor of one structure shares its storage with a tensor of the other."""
    return bool(_storages(one) & _storages(other))


def _storages(obj: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors(obj) if t.layout == torch.strided and t.numel()}


def nbytes(obj: Any) -> int:
    """Return the bytes of data in a batch or sample: tensors, arrays, images, strings. Containers are entered once."""
    total = 0
    entered: set[int] = set()
    left = [obj]
    while left:
        part = left.pop()
        inside = _insides(part)
        size = _leaf_bytes(part)
        if size is not None:
            total += size
        elif not inside or is_a(part, type):
            total += _SMALL
        elif id(part) not in entered:
            entered.add(id(part))
            left.extend(inside)
    return total


#: Methods that give the tensors of which a sparse one consists.
_BY_ROWS, _BY_COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), _BY_ROWS),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), _BY_COLUMNS),
}
#: Bytes assumed for a number, a label or an object without data.
_SMALL = 32


def _leaf_bytes(leaf: Any) -> int | None:
    """Return the bytes of a leaf that holds data, or None if its content must be examined."""
    if is_a(leaf, torch.Tensor):
        parts = [getattr(leaf, name)() for name in _PARTS.get(leaf.layout, ())] or [leaf]
        return sum(int(part.numel() * part.element_size()) for part in parts)
    size = attribute(leaf, "nbytes", None)  # numpy and similar
    if is_a(size, int):
        return int(size)
    if is_a(leaf, (bytes, bytearray, str)):
        return len(leaf)
    if has_attribute(leaf, "getbands") and has_attribute(leaf, "size"):  # a Pillow image, without importing Pillow
        with suppress(Exception):  # an object that has every attribute
            width, height = leaf.size
            return int(width) * int(height) * max(1, len(leaf.getbands()))
    return None

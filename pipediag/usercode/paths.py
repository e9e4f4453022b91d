"""Address parts of a sample by path: find, read, replace, copy and compare them.

A sample is a tuple, list, mapping, dataclass or user-defined object with any content. Arrays, tensors and images are
its leaves, as is everything that is code rather than data: classes, functions, datasets, modules.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import types
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.data import Dataset

from .attributes import attribute, has_attribute, is_a

#: Steps from a container to its part: an index, a key, or an attribute's name.
Path = tuple[Any, ...]

#: Maximum depth of nested structures.
DEPTH = 8
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_CODE = (type, types.ModuleType, enum.Enum, Dataset, torch.nn.Module, *_FUNCTIONS)
_LEAF_MODULES = ("torch", "torchvision", "numpy", "PIL", "builtins", "pathlib", "datetime", "_thread", "threading")
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Attribute(str):
    """A step of a path that is an attribute rather than a key."""


def parts(obj: Any) -> list[tuple[Any, Any]]:
    """Return the direct parts of a container, each with the step to it; [] for a leaf."""
    if is_a(obj, (tuple, list)):
        return list(enumerate(obj))
    if is_a(obj, MutableMapping):
        return list(obj.items())
    if dataclasses.is_dataclass(type(obj)):
        return [(Attribute(f.name), getattr(obj, f.name)) for f in dataclasses.fields(obj)]
    if is_a(obj, (*_CODE, Mapping)) or not has_attribute(obj, "__dict__"):
        return []
    if type(obj).__module__.split(".")[0] in _LEAF_MODULES:
        return []
    return [(Attribute(name), value) for name, value in [*vars(obj).items()]]  # of a user's class that holds data


def walk(obj: Any) -> Iterator[tuple[Path, Any]]:
    """Yield everything inside, containers before their parts. Repeated objects are yielded again but entered once."""
    return _walk(obj, (), set())


def _walk(obj: Any, path: Path, entered: set[int]) -> Iterator[tuple[Path, Any]]:
    yield path, obj
    if len(path) >= DEPTH or id(obj) in entered:
        return
    inside = parts(obj)
    if inside:
        entered.add(id(obj))
    for step, part in inside:
        yield from _walk(part, (*path, step), entered)


def has_identity(obj: Any) -> bool:
    """Return whether an object's identity is meaningful: not for code, numbers, strings and None, which are shared."""
    empty = is_a(obj, tuple) and not obj
    return not empty and not is_a(obj, _PLAIN) and not is_a(obj, _CODE)


def follow(obj: Any, path: Path) -> Any:
    for step in path:
        obj = getattr(obj, step) if is_a(step, Attribute) else obj[step]
    return obj


def replace(obj: Any, path: Path, value: Any) -> Any:
    """Return ``obj`` with ``value`` at ``path``; containers on the path are copied, the rest is shared."""
    if not path:
        return value
    step, part = path[0], replace(follow(obj, path[:1]), path[1:], value)
    if type(obj) is tuple:  # the usual sample: faster
        return (*obj[:step], part, *obj[step + 1 :])
    return rebuilt(obj, {step: part})


def rebuilt(obj: Any, changes: Mapping[Any, Any]) -> Any:
    """Return a shallow copy of a container with some of its direct parts replaced."""
    if is_a(obj, tuple):
        items = [changes.get(i, item) for i, item in enumerate(obj)]
        return type(obj)(*items) if has_attribute(obj, "_fields") else type(obj)(items)
    # A shallow copy of a user-defined mapping may still share its items.
    shares = is_a(obj, MutableMapping) and not is_a(obj, (dict, UserDict))
    fresh = copy.deepcopy(obj) if shares else copy.copy(obj)
    for step, value in changes.items():
        if is_a(step, Attribute):
            object.__setattr__(fresh, step, value)
        else:
            fresh[step] = value
    return fresh


def private(obj: Any) -> Any:
    """Return a copy that can be changed without affecting the original; code and unknown objects are shared."""
    return _private(obj, {}, DEPTH)


def _private(obj: Any, done: dict[int, Any], depth: int) -> Any:
    if id(obj) in done:
        return done[id(obj)]
    inside = parts(obj) if depth else []
    if not inside:
        return _private_leaf(obj)
    done[id(obj)] = obj  # for references back to it while its parts are copied
    done[id(obj)] = rebuilt(obj, {step: _private(part, done, depth - 1) for step, part in inside})
    return done[id(obj)]


def _private_leaf(leaf: Any) -> Any:
    if is_a(leaf, torch.Tensor):
        return leaf.clone()
    if is_a(leaf, _CODE):
        return leaf
    own_copy: Callable[[], Any] | None = attribute(leaf, "copy", None)  # arrays, images, dicts, lists, sets
    return own_copy() if callable(own_copy) else leaf


def same(left: Any, right: Any) -> bool | None:
    """Return whether two structures hold equal data, or None if that is unknown."""
    return _same(left, right, set())


def _same(left: Any, right: Any, compared: set[tuple[int, int]]) -> bool | None:
    if left is right or (id(left), id(right)) in compared:
        return True
    compared.add((id(left), id(right)))
    a, b = parts(left), parts(right)
    if a or b:
        if [step for step, _ in a] != [step for step, _ in b]:
            return False
        answers = {_same(x, y, compared) for (_, x), (_, y) in zip(a, b, strict=True)}
        return False if False in answers else None if None in answers else True
    return _same_leaf(left, right)


def _same_leaf(left: Any, right: Any) -> bool | None:
    try:
        if has_attribute(left, "getbands"):  # copying turns an image file object into an in-memory image
            return bool(left.size == right.size and left.mode == right.mode and left.tobytes() == right.tobytes())
        if type(left) is not type(right):
            return False
        if has_attribute(left, "shape"):
            return bool(left.shape == right.shape and ((left == right) | ((left != left) & (right != right))).all())
        if getattr(type(left), "__eq__", None) is object.__eq__:
            return None
        return bool(left == right)
    except Exception:  # data without a comparison: sparse tensors, arrays of arrays
        return None

"""Places inside a sample: finding its parts, reading and replacing one by its path, copying and comparing.

A sample is a tuple, list, mapping, dataclass or object of the user's with anything inside. Arrays, tensors and images
are its leaves, and so is everything that is code rather than data: classes, functions, datasets, modules.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

#: Steps from a container to its part: an index, a key, or an attribute's name.
Path = tuple[Any, ...]

_DEPTH = 8
_CODE = (type, types.ModuleType, enum.Enum, Dataset, torch.nn.Module)
_LEAF_MODULES = ("torch", "torchvision", "numpy", "PIL", "builtins", "pathlib", "datetime", "_thread", "threading")
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Attribute(str):
    """A step of a path that is an attribute rather than a key."""


def parts(obj: Any) -> list[tuple[Any, Any]]:
    """The direct parts of a container, each with the step to it; none for a leaf."""
    if isinstance(obj, (tuple, list)):
        return list(enumerate(obj))
    if isinstance(obj, Mapping):
        return list(obj.items())
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return [(Attribute(f.name), getattr(obj, f.name)) for f in dataclasses.fields(obj)]
    if _is_record(obj):
        return [(Attribute(name), value) for name, value in vars(obj).items()]
    return []


def _is_record(obj: Any) -> bool:
    """An object of a class of the user's that merely holds data."""
    if isinstance(obj, _CODE) or callable(obj) or not hasattr(obj, "__dict__"):
        return False
    return type(obj).__module__.split(".")[0] not in _LEAF_MODULES


def walk(obj: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything inside, containers before their parts. An object that contains itself is not entered again."""
    return _walk(obj, path, ())


def _walk(obj: Any, path: Path, above: tuple[int, ...]) -> Iterator[tuple[Path, Any]]:
    yield path, obj
    if len(above) >= _DEPTH or id(obj) in above:
        return
    for step, part in parts(obj):
        yield from _walk(part, (*path, step), (*above, id(obj)))


def has_identity(obj: Any) -> bool:
    """Numbers, strings and None are shared by the interpreter: which object they are says nothing."""
    empty = isinstance(obj, tuple) and not obj
    return not empty and not isinstance(obj, _PLAIN) and not isinstance(obj, _CODE)


def follow(obj: Any, path: Path) -> Any:
    """The part at ``path``."""
    for step in path:
        obj = getattr(obj, step) if isinstance(step, Attribute) else obj[step]
    return obj


def replace(obj: Any, path: Path, value: Any) -> Any:
    """``obj`` with ``value`` at ``path``; containers on the way are copied, the rest is shared."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, Attribute):
        return _rebuilt(obj, {step: replace(getattr(obj, step), rest, value)})
    return _rebuilt(obj, {step: replace(obj[step], rest, value)})


def _rebuilt(obj: Any, changes: Mapping[Any, Any]) -> Any:
    """A shallow copy of a container with some of its direct parts replaced."""
    if isinstance(obj, tuple):
        items = [changes.get(i, item) for i, item in enumerate(obj)]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    fresh = copy.copy(obj)
    for step, value in changes.items():
        if isinstance(step, Attribute):
            object.__setattr__(fresh, step, value)
        else:
            fresh[step] = value
    return fresh


def private(obj: Any, depth: int = _DEPTH) -> Any:
    """A copy deep enough that changing it leaves the original alone; code and unknown objects are shared."""
    inside = parts(obj) if depth else []
    if inside:
        return _rebuilt(obj, {step: private(part, depth - 1) for step, part in inside})
    return _private_leaf(obj)


def _private_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if isinstance(leaf, _CODE) or callable(leaf):
        return leaf
    own_copy: Callable[[], Any] | None = getattr(leaf, "copy", None)  # arrays, images, dicts, lists, sets
    return own_copy() if callable(own_copy) else leaf


def same(left: Any, right: Any) -> bool:
    """Whether two structures hold equal data; what cannot be compared counts as different."""
    if left is right:
        return True
    a, b = parts(left), parts(right)
    if a or b:
        return [s for s, _ in a] == [s for s, _ in b] and all(same(x, y) for (_, x), (_, y) in zip(a, b, strict=True))
    try:
        if hasattr(left, "getbands"):  # an image of a file becomes one in memory when it is copied
            return bool(left.size == right.size and left.mode == right.mode and left.tobytes() == right.tobytes())
        if type(left) is not type(right):
            return False
        if hasattr(left, "shape"):
            return bool(left.shape == right.shape and ((left == right) | ((left != left) & (right != right))).all())
        return bool(left == right)
    except Exception:
        return False

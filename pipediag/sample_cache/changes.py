"""Notice that a dataset, or a transform whose results are kept, has changed: what was kept would be out of date."""

from __future__ import annotations

import os
import platform
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..remedy.fingerprint import digest
from ..usercode.slots import find_slots
from .cut import Cut, links_of

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MISSING = object()
#: Number of items up to which the items of a transform's list are compared one by one for every sample.
_FEW = 64
#: Bytes of an array that are looked at for every epoch.
_MOST_BYTES = 1 << 26
_DEPTH = 6


class Attributes:
    """The attributes of the objects that make samples, compared before every sample: this takes microseconds."""

    def __init__(self, dataset: Any, settling: Iterable[str]) -> None:
        settling = frozenset(settling)
        self._held = [
            (attributes, name, value)
            for attributes in map(vars, makers(dataset))
            for name, value in attributes.items()
            if name not in settling
        ]
        lists = (value for _, _, value in self._held if isinstance(value, list) and len(value) <= _FEW)
        self._items = [(value, tuple(value)) for value in lists if any(map(callable, value))]
        self._slots = [(slot, slot.get()) for slot in find_slots(dataset)]

    def changed(self) -> str:
        """Return the name of an attribute that has another value than at first, or ""."""
        for attributes, name, value in self._held:
            now = attributes.get(name, _MISSING)
            if now is not value and not (type(now) is type(value) and isinstance(now, _PLAIN) and now == value):
                return str(name)
        for items, before in self._items:
            if len(items) != len(before) or any(a is not b for a, b in zip(items, before, strict=True)):
                return "transforms"
        return next((slot.name for slot, value in self._slots if slot.get() is not value), "")


def contents(dataset: Any) -> dict[str, Any]:
    """Return, for every attribute of the objects that make samples, a value that changes with its content.

    It holds for one process. Of arrays beyond 64 MB, only a part is looked at; other objects count by their type.
    """
    found = {}
    for number, maker in enumerate(makers(dataset)):
        for name, value in list(vars(maker).items()):
            found[f"{number}.{name}"] = _content(value)
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> frozenset[str]:
    """Return the names of the attributes that differ between two results of :func:`contents`."""
    names = one.keys() | other.keys()
    return frozenset(n.partition(".")[2] for n in names if one.get(n, _MISSING) != other.get(n, _MISSING))


def key_of(dataset: Any, cut: Cut) -> str:
    """Return a name for what is kept, which changes with the code and the data that it is made from."""
    code = [getattr(type(maker), name, None) for maker in makers(dataset) for name in ("__getitem__", "__getitems__")]
    files = [_content(value) for maker in makers(dataset) for value in vars(maker).values() if _is_file(value)]
    versions = [platform.python_version(), torch.__version__, np.__version__]
    versions += [str(getattr(sys.modules.get(name), "__version__", "")) for name in ("torchvision", "PIL")]
    return digest([dataset, code, list(cut.heads.items()), files, versions])


def makers(dataset: Any) -> list[Any]:
    """Return the objects with attributes that make samples: the datasets, their transforms and the links of these."""
    found: dict[int, Any] = {}
    _add(dataset, found, _DEPTH)
    for slot in find_slots(dataset):
        transform = slot.get()
        for part in (transform, *links_of(transform)):
            if hasattr(part, "__dict__"):
                found.setdefault(id(part), part)
    return list(found.values())


def _add(dataset: Any, found: dict[int, Any], depth: int) -> None:
    if depth == 0 or id(dataset) in found or not hasattr(dataset, "__dict__"):
        return
    found[id(dataset)] = dataset
    for value in list(vars(dataset).values()):
        few = isinstance(value, (list, tuple)) and len(value) <= _FEW
        for part in value if few else [value]:
            if isinstance(part, Dataset) or _is_sequence_of_users(part):
                _add(part, found, depth - 1)


def _is_sequence_of_users(value: Any) -> bool:
    kind = type(value)
    own = kind.__module__.split(".")[0] not in ("builtins", "torch", "numpy", "collections", "PIL", "pathlib")
    return own and hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def _content(value: Any) -> Any:
    if _is_file(value):
        found = os.stat(value)
        return str(value), found.st_size, found.st_mtime_ns
    if isinstance(value, _PLAIN) or isinstance(value, PurePath):
        return value
    if isinstance(value, torch.Tensor):
        readable = value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized
        plain = value.detach().as_subclass(torch.Tensor)
        return plain.shape, _sum(plain.contiguous().reshape(-1).view(torch.uint8).numpy()) if readable else id(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, value.dtype.str, _sum(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return len(value), _hashed(value)
    return type(value).__qualname__


def _sum(memory: Any) -> int:
    return zlib.adler32(memory[:: max(1, -(-len(memory) // _MOST_BYTES))].tobytes())


def _hashed(value: Any) -> int:
    items: tuple[Any, ...] = tuple(value.items()) if isinstance(value, dict) else tuple(value)
    if isinstance(value, (set, frozenset)):
        return hash(frozenset(items))
    try:
        return hash(items)
    except TypeError:  # holds lists or dicts
        return hash(tuple(_frozen(items)))


def _frozen(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (list, tuple, dict, set)):
            yield _hashed(item)
        else:
            yield item if item.__hash__ else id(item)


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, PurePath)) and 0 < len(str(value)) < 4096 and os.path.isfile(value)

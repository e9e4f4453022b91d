"""Notice that a dataset, or a transform whose results are kept, has changed: the cache would be out of date."""

from __future__ import annotations

import hashlib
import operator
import os
import pickle
import platform
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..remedy.fingerprint import digest
from ..usercode.links import chains_in, links_of
from ..usercode.slots import find_slots
from .cut import Cut

#: A value for each attribute, by the object's id and the attribute's name.
Contents = dict[tuple[int, str], Any]
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MISSING = object()
#: Number of items up to which a list is searched for datasets.
_FEW = 64
#: Maximum bytes of an array that are summed for every epoch; of a larger one, as many bytes in this number of parts.
_MOST_BYTES, _PARTS = 1 << 26, 64
_DEPTH = 6
#: Length from which a list counts as long.
_LONG = 10_000


class Attributes:
    """The attributes of the objects that make samples, compared before every sample in microseconds."""

    def __init__(self, dataset: Any, cut: Cut) -> None:
        self._held = [
            (attributes, name, value)
            for attributes in map(vars, makers(dataset, cut.heads))
            for name, value in attributes.items()
            if name not in cut.settling
        ]
        slots = find_slots(dataset)
        self._slots = [(slot.name, slot.get, slot.get()) for slot in slots]
        self._chains = [(slot.name, parts, tuple(parts())) for slot in slots for parts in chains_in(slot.get())]

    def changed(self) -> str:
        """Return the name of an attribute whose value has changed since, or ""."""
        for attributes, name, value in self._held:
            now = attributes.get(name, _MISSING)
            if now is not value and not (type(now) is type(value) and isinstance(now, _PLAIN) and now == value):
                return str(name)
        for name, get, transform in self._slots:
            if get() is not transform:
                return name
        for name, parts, before in self._chains:
            found = parts()
            if len(found) != len(before) or not all(map(operator.is_, found, before)):
                return name
        return ""


def contents(objects: Iterable[Any]) -> Contents:
    """Return, for every attribute of the objects, a value that changes with its content.

    The values hold for one process. Of arrays beyond 64 MB, only parts are read. Arrays that are not contiguous count
    by their identity, other objects by their type.
    """
    return {(id(obj), str(name)): _content(value) for obj in objects for name, value in list(vars(obj).items())}


def differing(one: Contents, other: Contents, objects: Iterable[Any]) -> frozenset[str]:
    """Return the names of the objects' attributes that differ between two results of :func:`contents`."""
    among = set(map(id, objects))
    keys = {key for key in one.keys() | other.keys() if key[0] in among}
    return frozenset(key[1] for key in keys if one.get(key, _MISSING) != other.get(key, _MISSING))


def key_of(dataset: Any, cut: Cut) -> str:
    """Return a name for the cache, which changes with the code and the data that the samples are made from."""
    objects = makers(dataset, cut.heads)
    elsewhere = {*map(id, objects), *(id(slot.get()) for slot in find_slots(dataset))}
    held = []
    for obj in objects:
        attributes = {k: v for k, v in vars(obj).items() if id(v) not in elsewhere and k not in cut.settling}
        files = [_content(value) for value in attributes.values() if _is_file(value)]
        held += [type(obj), {name: _shortened(value) for name, value in attributes.items()}, files]
    code = [getattr(type(obj), name, None) for obj in objects for name in ("__getitem__", "__getitems__", "forward")]
    functions = [slot.get() for slot in find_slots(dataset) if isinstance(slot.get(), types.FunctionType)]
    versions = [platform.python_version(), torch.__version__, np.__version__]
    versions += [str(getattr(sys.modules.get(name), "__version__", "")) for name in ("torchvision", "PIL")]
    return digest([held, code, functions, list(cut.heads.items()), versions])


def _shortened(value: Any) -> Any:
    """Return the hash of a long list in its place: :func:`digest` would read it item by item."""
    if not isinstance(value, (list, tuple, dict)) or len(value) < _LONG:
        return value
    try:
        return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()
    except Exception:  # whatever the items' own classes raise
        return value


def makers(dataset: Any, heads: Mapping[int, int] | None = None) -> list[Any]:
    """Return the objects with attributes that make what is kept: the datasets, and the links before the cut.

    Without ``heads``, all links count.
    """
    found: dict[int, Any] = {}
    _add(dataset, found, _DEPTH)
    for number, slot in enumerate(find_slots(dataset)):
        links = links_of(slot.get())
        for one in links if heads is None or number not in heads else links[: heads[number]]:
            if hasattr(one, "__dict__"):
                found.setdefault(id(one), one)
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
    if isinstance(value, (*_PLAIN, PurePath)):
        return value
    if isinstance(value, torch.Tensor):
        readable = value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized
        if not readable or not value.is_contiguous():
            return id(value)
        plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        return value.shape, _sum(plain.view(-1).view(torch.uint8).numpy())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if not value.flags.c_contiguous:
            return id(value)
        return value.shape, value.dtype.str, _sum(np.asarray(value).reshape(-1).view(np.uint8))
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return len(value), _hashed(value)
    return type(value).__qualname__


def _sum(memory: Any) -> int:
    """Return a check sum of an array's bytes; of a large one, a check sum of parts that are spread over it."""
    if len(memory) <= _MOST_BYTES:
        return zlib.adler32(memory)
    total, part = 1, _MOST_BYTES // _PARTS
    for begin in range(0, len(memory) - part, (len(memory) - part) // (_PARTS - 1)):
        total = zlib.adler32(memory[begin : begin + part], total)
    return total


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

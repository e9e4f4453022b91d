"""Compute a short digest of a transform that changes with its code and with the values it holds.

Equal digests do not prove equal behaviour: other code, in a library for example, may have changed. Before the
transforms are tried again, the digests are compared with those of a saved plan.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from .custom.inside import class_values, closed_over, globals_of, is_library, is_record, slot_values
from .plan import Plan, slot_at
from .recorder import links_of

#: Types whose values are identified by their repr.
_PLAIN = (int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.Size)
#: A generator's state is not part of a transform's behaviour.
_GENERATORS = (random.Random, torch.Generator)


def moved_links(plan: Plan, dataset: Any) -> list[tuple[str, str]]:
    """Return the name and digest of every link that a plan moves, in order.

    Raises:
        IndexError: the dataset keeps its transforms elsewhere than when the plan was made.
    """
    found = []
    for piece in plan.pieces:
        links = links_of(slot_at(dataset, piece.path).get())
        found += list(zip(piece.moves, map(digest, links[piece.start :]), strict=False))
    return found


def digest(obj: Any) -> str:
    """Return sixteen hexadecimal digits, the same in every process with the same code and values."""
    hashed = hashlib.sha256()
    seen: dict[int, int] = {}
    pending = [obj]
    kept = []  # keeps visited objects alive, since their ids identify them here
    while pending:
        value = pending.pop()
        kept.append(value)
        if not isinstance(value, _PLAIN) and id(value) in seen:
            hashed.update(f"seen {seen[id(value)]};".encode())
            continue
        seen[id(value)] = len(seen)
        word, inside = _told(value)
        hashed.update(f"{type(value).__qualname__} {len(inside)} ".encode() + word + b";")
        pending.extend(reversed(inside))
    return hashed.hexdigest()[:16]


def _told(value: Any) -> tuple[bytes, list[Any]]:
    """Return the bytes that describe one object, and the objects inside it."""
    if isinstance(value, _PLAIN):
        return repr(value).encode(), []
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}".encode(), []
    if isinstance(value, torch.Tensor):
        return _of_tensor(value), []
    if isinstance(value, (list, tuple)):
        return b"", list(value)
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(repr, value))).encode(), []
    if isinstance(value, dict):
        return b"", [part for entry in value.items() for part in entry]
    if isinstance(value, functools.partial):
        return b"", [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return b"", [value.__func__, value.__self__]
    if isinstance(value, (staticmethod, classmethod)):
        return b"", [value.__func__]
    if isinstance(value, property):
        return b"", [value.fget]
    if isinstance(value, types.FunctionType):
        return _name(value).encode(), [] if is_library(value) else list(_inside_function(value))
    if isinstance(value, type):
        own = [] if is_library(value) else [*sorted(class_values(value).items(), key=lambda item: item[0])]
        return _name(value).encode(), [*own, *([] if is_library(value) else value.__bases__)]
    if isinstance(value, _GENERATORS) or inspect.isbuiltin(value) or inspect.ismodule(value):
        return str(getattr(value, "__name__", "")).encode(), []
    return _of_object(value)


def _of_object(value: Any) -> tuple[bytes, list[Any]]:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return f"{value.dtype} {value.shape} ".encode() + hashlib.sha256(value.tobytes()).digest(), []
    if not is_record(value):
        return b"", [type(value)]
    attributes = {**slot_values(value), **getattr(value, "__dict__", {})}
    return b"", [type(value), *(part for name in sorted(attributes, key=str) for part in (name, attributes[name]))]


def _of_tensor(tensor: torch.Tensor) -> bytes:
    told = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return told
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return told + hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).digest()


def _inside_function(fn: types.FunctionType) -> Iterator[Any]:
    """Yield the code, as source if available, and the values that it uses in addition to its arguments."""
    try:
        yield inspect.getsource(fn)
    except (OSError, TypeError):
        yield fn.__code__.co_code
    yield from (fn.__defaults__, fn.__kwdefaults__)
    for name, value in sorted({**globals_of(fn), **closed_over(fn)}.items()):
        yield from (name, value)


def _name(obj: Any) -> str:
    return f"{getattr(obj, '__module__', '')}.{obj.__qualname__}"

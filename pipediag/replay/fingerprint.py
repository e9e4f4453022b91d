"""Compute a short digest of a transform that changes with its code and with the values it holds.

Equal digests do not prove equal behaviour: other code, in a library for example, may have changed. A saved plan holds
digests, which must be the same when its transforms are tried again. The user's own code moves to the device only if the
calls that prove it leave its digest the same.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import pathlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..usercode.attributes import attribute
from ..usercode.contents import (
    NAMESPACES,
    class_values,
    closed_over,
    globals_of,
    is_library,
    is_record,
    modules_of,
    names_in,
    reads_in,
    slot_values,
)

#: Types whose values are identified by their repr.
_PLAIN = (
    *(int, float, complex, str, bytes, type(None), type(...), range, slice, pathlib.PurePath),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
#: Code without contents.
_BUILTIN = (
    *(types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.MemberDescriptorType, types.GetSetDescriptorType),
)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_WRAPPERS = (functools.partial, types.MethodType, staticmethod, classmethod, property)
#: Types whose state is not part of a transform's behaviour.
_GENERATORS = (random.Random, torch.Generator)


def digest(obj: Any, named_only: bool = False, code_only: bool = False) -> str:
    """Return sixteen hexadecimal digits, the same in every process with the same code and values.

    With ``named_only``, only those settings in a namespace count, such as parsed arguments, that a function names:
    another number of epochs should change no digest. With ``code_only``, only code counts and which objects hold each
    other, but no numbers, texts and tensors in them.
    """
    hashed = hashlib.sha256()
    seen: dict[int, int] = {}
    pending = [obj]
    kept = []  # keeps visited objects alive, since their ids identify them here
    while pending:
        value = pending.pop()
        kept.append(value)
        if not isinstance(value, _PLAIN):  # whether equal numbers are one object says nothing
            if id(value) in seen:
                hashed.update(f"seen {seen[id(value)]};".encode())
                continue
            seen[id(value)] = len(seen)
        word, inside = _described(value, value is obj, named_only)
        if code_only and not isinstance(value, types.CodeType):
            word, inside = b"" if _is_setting(value) else word, [part for part in inside if not _is_setting(part)]
        hashed.update(f"{type(value).__qualname__} {len(inside)} ".encode() + word + b";")
        pending.extend(reversed(inside))
    return hashed.hexdigest()[:16]


def _is_setting(value: Any) -> bool:
    """Return whether a value is a number, a text, a tensor or the like, or holds only such."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_setting, value))
    if isinstance(value, dict):
        return all(map(_is_setting, value.values()))
    numpy = sys.modules.get("numpy")
    arrays = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(value, (*_PLAIN, enum.Enum, torch.Tensor, *arrays))


def _described(value: Any, outermost: bool, named_only: bool) -> tuple[bytes, list[Any]]:
    """Return the bytes that describe one object, and the objects inside it.

    Inside a library's function these are only what it closes over, which may be the user's, unless it is ``outermost``.
    """
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
        return b"", [value.fget, value.fset]
    if isinstance(value, types.FunctionType):
        whole = outermost or not is_library(value)
        held = _inside_function(value, named_only) if whole else closed_over(value).values()
        return _name(value).encode(), list(held)
    if isinstance(value, types.CodeType):
        return value.co_code, [value.co_names, value.co_consts]
    if isinstance(value, type):
        if is_library(value):
            return _name(value).encode(), []
        values = sorted(class_values(value).items(), key=lambda item: item[0])
        return _name(value).encode(), [*values, *value.__bases__]
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return value.__name__.encode(), [value.__self__]
    if isinstance(value, (*_GENERATORS, *_BUILTIN)):
        return str(attribute(value, "__name__", "")).encode(), []
    return _of_object(value)


def _of_object(value: Any) -> tuple[bytes, list[Any]]:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return f"{value.dtype} {value.shape} ".encode() + hashlib.sha256(value.tobytes()).digest(), []
    if not is_record(value):
        return b"", [type(value)]
    attributes = {**slot_values(value), **attribute(value, "__dict__", {})}
    return b"", [type(value), *(part for name in sorted(attributes, key=str) for part in (name, attributes[name]))]


def _of_tensor(tensor: torch.Tensor) -> bytes:
    told = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if not _is_readable(tensor):
        return told
    # A copy, since torch takes the tensor itself for one that numpy may write into, from then on.
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return told + hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).digest()


def _is_readable(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized


def _inside_function(fn: types.FunctionType, named_only: bool) -> Iterator[Any]:
    """Yield the function's code and the values that it uses in addition to its arguments."""
    yield fn.__code__  # not the source, which the user may edit while the script runs
    yield from (fn.__defaults__, fn.__kwdefaults__, *sorted(fn.__dict__.items()))
    names = set(names_in(fn.__code__))
    for name, value in sorted({**globals_of(fn), **closed_over(fn)}.items()):
        if named_only and isinstance(value, NAMESPACES):
            value = {attribute: vars(value)[attribute] for attribute in sorted(names & vars(value).keys())}
        yield from (name, value)
    for module in modules_of(fn):
        for name in reads_in(fn.__code__):
            if name in vars(module):
                yield from (name, vars(module)[name])


def _name(obj: Any) -> str:
    module = str(attribute(obj, "__module__", ""))
    return f"{'__main__' if module == '__mp_main__' else module}.{obj.__qualname__}"  # as a spawned process calls it

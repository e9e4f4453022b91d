"""Copy a callable with all that it reads, so that no later change reaches the copy.

``copy.deepcopy`` shares functions and classes, and with them globals, closure variables and class attributes. Here the
user's own functions, classes and modules are copied too, each with those globals only that it names. What belongs to a
library is shared.
"""

from __future__ import annotations

import builtins
import copy
import enum
import io
import pickle
import types
from abc import ABCMeta
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ...usercode.contents import class_values, closed_over, is_library, is_library_module, reads_in
from .fingerprint import digest

#: Entries of a class that its copy gets by being made.
_MADE = ("__dict__", "__weakref__", "__slots__", "_abc_impl")


def own_copy(fn: Any) -> Any:
    """Return an independent copy of ``fn``.

    Raises:
        Exception: something that it reads cannot be copied.
    """
    named: set[str] = set()
    digest(fn, lambda value: named.update(reads_in(value) if isinstance(value, types.CodeType) else ()))
    written = io.BytesIO()
    pickler = _Pickler(written, sorted(named))
    pickler.dump(fn)
    return _Unpickler(io.BytesIO(written.getvalue()), pickler.shared).load()


class _Pickler(pickle.Pickler):
    """Pickler for the same process: what is shared is written as its index in ``shared``."""

    def __init__(self, file: io.BytesIO, names: Iterable[str]) -> None:
        super().__init__(file, protocol=5)
        self._names = names  # of what is copied of a module
        self.shared: list[Any] = []
        self._tensors: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = self._share(copy.deepcopy(value))
            return self._tensors[id(value)]
        if isinstance(value, _Shared):
            return self._share(value.value)
        return self._share(value) if _is_shared(value) else None

    def _share(self, value: Any) -> int:
        self.shared.append(value)
        return len(self.shared) - 1

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return _function_reduced(value)
        if isinstance(value, types.ModuleType):
            entries = {name: vars(value)[name] for name in self._names if name in vars(value)}
            return types.ModuleType, (value.__name__,), entries, None, None, _fill_module
        if isinstance(value, type):
            return _class_reduced(value)
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value), (value.__func__,)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, index: int) -> Any:
        return self._shared[index]


def _is_shared(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return value.__module__ == __name__ or (is_library(value) and not value.__closure__)
    if isinstance(value, types.ModuleType):
        return is_library_module(value)
    if isinstance(value, type):
        return is_library(value) or issubclass(value, enum.Enum)
    code = (types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    return isinstance(value, (*code, enum.Enum))


class _Shared:
    """Wraps what is shared for another reason than its type."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _function(code: types.CodeType, name: str, namespace: dict[str, Any] | None) -> types.FunctionType:
    namespace = {"__builtins__": builtins} if namespace is None else namespace
    return types.FunctionType(code, namespace, name, closure=tuple(types.CellType() for _ in code.co_freevars))


def _function_reduced(fn: types.FunctionType) -> Any:
    library = is_library(fn)  # then only what it closes over is the user's
    names = () if library else reads_in(fn.__code__)
    state = {
        "globals": {name: fn.__globals__[name] for name in names if name in fn.__globals__},
        "closed over": closed_over(fn),
        "own": {name: getattr(fn, name) for name in ("__module__", "__qualname__", "__defaults__", "__kwdefaults__")},
        "attributes": vars(fn),
    }
    made = fn.__code__, fn.__name__, _Shared(fn.__globals__) if library else None
    return _function, made, state, None, None, _fill_function


def _fill_function(fn: types.FunctionType, state: dict[str, Any]) -> None:
    fn.__globals__.update(state["globals"])
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if name in state["closed over"]:
            cell.cell_contents = state["closed over"][name]
    for name, value in state["own"].items():
        setattr(fn, name, value)
    vars(fn).update(state["attributes"])


def _class_reduced(cls: type) -> Any:
    begins_subclasses = any("__init_subclass__" in vars(base) and not is_library(base) for base in cls.__mro__)
    if type(cls) not in (type, ABCMeta) or begins_subclasses:
        raise TypeError(f"the class {cls.__name__!r} has a say in how classes are made")
    if "__del__" in vars(cls):
        raise TypeError(f"the class {cls.__name__!r} has a destructor, which may close what the original still needs")
    slots = {"__slots__": vars(cls)["__slots__"]} if "__slots__" in vars(cls) else {}
    copied = class_values(cls)
    state = {
        name: value if name in copied or isinstance(value, types.FunctionType) else _Shared(value)
        for name, value in vars(cls).items()
        if name not in _MADE and not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
    }
    made = cls.__name__, cls.__bases__, {"__qualname__": cls.__qualname__, **slots}
    return type(cls), made, state, None, None, _fill_class


def _fill_class(cls: type, state: dict[str, Any]) -> None:
    for name, value in state.items():
        type.__setattr__(cls, name, value)


def _fill_module(module: types.ModuleType, entries: dict[str, Any]) -> None:
    module.__dict__.update(entries)

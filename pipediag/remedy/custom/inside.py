"""What a function, an object or a class of the user's has inside: where its tensors and its state can be."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import torch

from ...usercode.slots import names_in

#: Values and code that hold nothing to be watched or taken along.
LEAVES = (
    *(int, float, complex, str, bytes, type(None), type(...), enum.Enum, torch.dtype, torch.device),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType),
)
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "scipy", "PIL"}
#: Objects of these are not entered by their attributes; those of torch are, since a module is one.
_OPAQUE = sys.stdlib_module_names | {"numpy", "PIL"}


def _package(obj: Any) -> str:
    return (getattr(obj, "__module__", None) or "builtins").partition(".")[0]


def is_library(obj: Any) -> bool:
    """Whether a function or class is of a library: it is taken to keep nothing and to hold no tensors."""
    if _package(obj) in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(obj.__module__), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_record(obj: Any) -> bool:
    """Whether an object is entered by its attributes."""
    if isinstance(obj, type) or _package(type(obj)) in _OPAQUE:
        return False
    return hasattr(obj, "__dict__") or bool(slot_values(obj))


def globals_of(fn: types.FunctionType) -> dict[str, Any]:
    """The globals that a function uses, those that there are by now."""
    return {name: fn.__globals__[name] for name in sorted(set(names_in(fn.__code__))) if name in fn.__globals__}


def closed_over(fn: types.FunctionType) -> dict[str, Any]:
    """The variables that a function closes over, those that are filled by now."""
    values = {}
    for name, cell in cells(fn).items():
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return values


def cells(fn: types.FunctionType) -> dict[str, types.CellType]:
    """Where a function keeps what it closes over, filled or not."""
    return dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))


def slot_values(obj: Any) -> dict[str, Any]:
    """The attributes that an object keeps in slots, by the names that ``getattr`` knows."""
    names = [name for cls in type(obj).__mro__ for name in _slot_names(cls)]
    return {name: getattr(obj, name) for name in names if hasattr(obj, name)}


def _slot_names(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    hidden = [f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [name for name in hidden if name not in ("__dict__", "__weakref__")]


def class_values(cls: type) -> dict[str, Any]:
    """What a class itself defines; of the names that are Python's own, ``__call__`` only."""
    return {name: value for name, value in vars(cls).items() if name == "__call__" or not name.startswith("__")}

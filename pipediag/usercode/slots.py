"""Find where a dataset keeps its transforms: slots whose callable can be replaced temporarily."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

#: Name parts of attributes that make raw data rather than change it.
_LOADING = ("load", "read", "open", "decod", "fetch", "sampler", "collate", "is_valid", "filter", "find", "index")
_DEPTH = 6


@dataclass
class Slot:
    """A place that holds a transform: an attribute, an item, a global or a closure variable.

    ``install`` replaces the transform and returns a function that undoes this.
    """

    name: str
    get: Callable[[], Any]
    install: Callable[[Any], Callable[[], None]]

    @contextmanager
    def replaced(self, value: Any) -> Iterator[None]:
        undo = self.install(value)
        try:
            yield
        finally:
            undo()


def find_slots(dataset: Any) -> list[Slot]:
    """Return every place below ``dataset`` that may hold a transform, also inside Subset, ConcatDataset and others."""
    slots: list[Slot] = []
    _search(dataset, slots, set(), _DEPTH)
    return slots


def function_slots(fn: Any) -> list[Slot]:
    """Return the slots of transforms that a function uses as globals, closure variables or attributes."""
    slots: list[Slot] = []
    if isinstance(fn, functools.partial):
        return argument_slots(fn) + function_slots(fn.func)
    if isinstance(fn, types.MethodType):
        fn = fn.__func__
    if isinstance(fn, types.FunctionType):
        _from_code(fn, slots, set(), functions=True)
    elif not isinstance(fn, (types.BuiltinFunctionType, type)) and hasattr(fn, "__dict__"):
        _from_attributes(fn, slots, set(), 1)
        _from_code(type(fn).__call__, slots, set())
    return slots


def argument_slots(stage: Any) -> list[Slot]:
    """Return the slots of transforms among the arguments that are kept for a function, as by ``functools.partial``."""
    slots: list[Slot] = []
    _from_attributes(stage, slots, set(), 1)
    keywords = getattr(stage, "keywords", {})
    return slots + [_entry(name, keywords, name) for name, value in keywords.items() if _is_transform(name, value)]


def inner_slots(fn: Any) -> list[Slot]:
    """Return the slots inside a transform that hold further transforms, such as the items of a Compose."""
    if isinstance(fn, types.MethodType) and not isinstance(fn.__self__, (type, types.ModuleType, Dataset)):
        slots: list[Slot] = []
        _from_attributes(fn.__self__, slots, set(), 1)
        return slots + function_slots(fn)
    if isinstance(fn, torch.nn.Module):
        # Its own code is forward(); its children are separate from its other attributes.
        slots = []
        _from_attributes(fn, slots, set(), 1)
        slots += [_entry(f"{name}", fn._modules, name) for name, child in fn._modules.items() if child is not None]
        _from_code(type(fn).forward, slots, set())
        return slots
    return function_slots(fn)


def _search(obj: Any, slots: list[Slot], seen: set[int], depth: int) -> None:
    if id(obj) in seen or depth == 0:
        return
    seen.add(id(obj))
    _from_attributes(obj, slots, seen, depth)
    for method in ("__getitem__", "__getitems__", "__iter__"):
        _from_code(inspect.getattr_static(type(obj), method, None), slots, seen)


def _from_attributes(obj: Any, slots: list[Slot], seen: set[int], depth: int) -> None:
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        if isinstance(obj, torch.nn.Module) and name.startswith("_"):  # torch's own: hooks, children, buffers
            continue
        if _is_transform(name, value):
            slots.append(_attribute(obj, name))
        elif isinstance(value, (list, tuple)) and 0 < len(value) <= 64:
            if all(is_dataset(item) for item in value):
                for item in value:
                    _search(item, slots, seen, depth - 1)
            elif all(item is None or _is_transform(name, item) for item in value):
                slots.extend(_item(obj, name, i) for i, item in enumerate(value) if item is not None)
        elif isinstance(value, dict) and 0 < len(value) <= 64 and not makes_data(name):
            slots.extend(
                _entry(f"{name}[{key!r}]", value, key) for key, v in value.items() if _is_transform(str(key), v)
            )
        elif is_dataset(value):
            _search(value, slots, seen, depth - 1)


def _from_code(fn: Any, slots: list[Slot], seen: set[int], functions: bool = False) -> None:
    """Add slots of callable objects that a method uses as globals or closure variables.

    With ``functions``, plain functions among its closure variables are added too.
    """
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    for name in names_in(fn.__code__):
        value = fn.__globals__.get(name)
        if _is_callable_object(value) and _is_transform(name, value):
            slots.append(_entry(name, fn.__globals__, name))
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if _is_transform(name, value) and (functions or not isinstance(value, types.FunctionType)):
            slots.append(_cell(name, cell))


#: Containers and arrays: they have items and a length, but hold data rather than make it.
_CONTAINERS = (list, tuple, dict, str, bytes, torch.Tensor, type, torch.nn.Module)
_DATA_MODULES = ("numpy", "pandas", "h5py", "pyarrow", "collections", "array")


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, including comprehensions and inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def is_dataset(value: Any) -> bool:
    if isinstance(value, Dataset):
        return True
    if isinstance(value, _CONTAINERS) or type(value).__module__.split(".")[0] in _DATA_MODULES:
        return False
    return hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")


def _is_transform(name: str, value: Any) -> bool:
    if not callable(value) or isinstance(value, (type, Dataset, Sampler, torch.Generator, types.ModuleType)):
        return False
    return not makes_data(name) and not inspect.isgeneratorfunction(value)  # which transforms a stream, not a sample


def makes_data(name: str) -> bool:
    return any(part in name.lower() for part in _LOADING)


def _is_callable_object(value: Any) -> bool:
    """Return whether ``value`` is an instance with ``__call__``: global functions are too many to record."""
    return callable(value) and not isinstance(
        value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
    )


def _attribute(obj: Any, name: str) -> Slot:
    # Bypass the object's __setattr__: an nn.Module refuses to replace a child by another type.
    return _entry(name, obj.__dict__, name)


def _item(obj: Any, name: str, index: int) -> Slot:
    """Return the slot of a list item, replaced in place, or of a tuple item, where the whole tuple is replaced."""

    def install(value: Any) -> Callable[[], None]:
        items = obj.__dict__[name]
        if isinstance(items, list):
            before, items[index] = items[index], value
            return lambda: items.__setitem__(index, before)
        changed = [*items[:index], value, *items[index + 1 :]]
        obj.__dict__[name] = type(items)(*changed) if hasattr(items, "_fields") else type(items)(changed)
        return lambda: obj.__dict__.__setitem__(name, items)

    return Slot(f"{name}[{index}]", lambda: obj.__dict__[name][index], install)


def _entry(shown: str, mapping: dict[Any, Any], key: Any) -> Slot:
    """Return the slot of a dict value: in a user's dict, an object's attributes, or a module's globals."""

    def install(value: Any) -> Callable[[], None]:
        before, mapping[key] = mapping[key], value
        return lambda: mapping.__setitem__(key, before)

    return Slot(shown, lambda: mapping[key], install)


def _cell(name: str, cell: types.CellType) -> Slot:
    def install(value: Any) -> Callable[[], None]:
        before, cell.cell_contents = cell.cell_contents, value
        return lambda: setattr(cell, "cell_contents", before)

    return Slot(name, lambda: cell.cell_contents, install)

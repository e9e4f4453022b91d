"""Find where a dataset keeps its transforms: slots whose callable can be replaced temporarily."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from .attributes import attribute, has_attribute, is_a
from .contents import assigned_cells, names_in

#: Name parts of attributes that make raw data rather than change it.
_LOADING = ("load", "read", "open", "decod", "fetch", "sampler", "collate", "is_valid", "filter", "find", "index")
_DEPTH = 6


@dataclass
class Slot:
    """A place that holds a transform: an attribute of an object or a class, an item, a global or a closure variable."""

    name: str
    get: Callable[[], Any]
    #: Replaces the transform and returns what undoes this, unless user code has put another transform there since.
    install: Callable[[Any], Callable[[], None]]

    @contextmanager
    def replaced(self, value: Any) -> Iterator[None]:
        undo = self.install(value)
        try:
            yield
        finally:
            undo()


def find_slots(dataset: Any) -> list[Slot]:
    """Return every place that may hold a transform in ``dataset`` or in the datasets inside, as in a Subset."""
    return list(_below(dataset, set(), _DEPTH))


def function_slots(fn: Any) -> list[Slot]:
    """Return the slots of transforms that a function uses as globals, closure variables or attributes."""
    if is_a(fn, functools.partial):
        return argument_slots(fn) + function_slots(fn.func)
    if is_a(fn, types.MethodType):
        fn = fn.__func__
    if is_a(fn, types.FunctionType):
        return list(_in_code(fn, set(), functions=True))
    if is_a(fn, (types.BuiltinFunctionType, type)) or not has_attribute(fn, "__dict__"):
        return []
    return [*_in_attributes(fn, set(), 1), *_in_code(type(fn).__call__, set())]


def argument_slots(stage: Any) -> list[Slot]:
    """Return the slots of transforms among a function's stored arguments, such as those of ``functools.partial``."""
    keywords = attribute(stage, "keywords", {})
    named = [_entry(name, keywords, name) for name, value in keywords.items() if _is_transform(name, value)]
    return [*_in_attributes(stage, set(), 1), *named]


def inner_slots(fn: Any) -> list[Slot]:
    """Return the slots inside a transform that hold further transforms, such as the items of a Compose."""
    if is_a(fn, types.MethodType) and not is_a(fn.__self__, (type, types.ModuleType, Dataset)):
        return [*_in_attributes(fn.__self__, set(), 1), *function_slots(fn)]
    if is_a(fn, list):  # a class of chains that inherits from it
        items = [_of_list(f"[{i}]", fn, i) for i, item in enumerate(fn) if _is_transform("", item)]
        return [*items, *function_slots(fn)]
    if is_a(fn, torch.nn.Module):
        # Its own code is forward(); its children are separate from its other attributes.
        children = [_entry(name, fn._modules, name) for name, child in fn._modules.items() if child is not None]
        return [*_in_attributes(fn, set(), 1), *children, *_in_code(type(fn).forward, set())]
    return function_slots(fn)


def _below(dataset: Any, seen: set[int], depth: int) -> Iterator[Slot]:
    if id(dataset) in seen or depth == 0:
        return
    seen.add(id(dataset))
    yield from _in_attributes(dataset, seen, depth)
    yield from _in_classes(dataset, seen)
    for method in ("__getitem__", "__getitems__", "__iter__"):
        yield from _in_code(inspect.getattr_static(type(dataset), method, None), seen)


def _in_attributes(obj: Any, seen: set[int], depth: int) -> Iterator[Slot]:
    """Yield the slots in an object's attributes and, if ``depth`` allows, in those of the datasets among them."""
    for name, value in list(attribute(obj, "__dict__", {}).items()):
        if is_a(obj, torch.nn.Module) and name.startswith("_"):  # torch's own: hooks, children, buffers
            continue
        if _is_transform(name, value):
            # Bypass the object's __setattr__: an nn.Module refuses to replace a child by another type.
            yield _entry(name, obj.__dict__, name)
        elif is_a(value, (list, tuple)) and 0 < len(value) <= 64:
            if all(is_dataset(item) for item in value):
                for item in value:
                    yield from _below(item, seen, depth - 1)
            # One that is also a dataset may mix in other samples: alone, or beside other datasets, it is data.
            elif all(
                item is None or _is_transform(name, item) or (is_a(item, Dataset) and callable(item)) for item in value
            ):
                yield from (_item(obj, name, i) for i, item in enumerate(value) if item is not None)
        elif is_a(value, dict) and 0 < len(value) <= 64 and not makes_data(name):
            for key, item in value.items():
                if _is_transform(str(key), item):
                    yield _entry(f"{name}[{key!r}]", value, key)
        elif is_dataset(value):
            yield from _below(value, seen, depth - 1)


def _in_classes(obj: Any, seen: set[int]) -> Iterator[Slot]:
    """Yield the slots of callable objects that an object's class, or one that it inherits from, holds for it."""
    names = {*attribute(obj, "__dict__", {})}
    for cls in type(obj).__mro__:
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        for name, value in list(vars(cls).items()):
            if name in names or name.startswith("__"):
                continue
            names.add(name)
            if _is_callable_object(value) and _is_transform(name, value) and not has_attribute(type(value), "__get__"):
                # A metaclass may refuse to set it.
                yield _entry(name, vars(cls), name, functools.partial(type.__setattr__, cls, name))


def _in_code(fn: Any, seen: set[int], functions: bool = False) -> Iterator[Slot]:
    """Yield the slots of callable objects that a method uses as globals or closure variables.

    With ``functions``, plain functions among its closure variables count too.
    """
    if not is_a(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    for name in names_in(fn.__code__):
        value = fn.__globals__.get(name)
        if _is_callable_object(value) and _is_transform(name, value):
            yield _entry(name, fn.__globals__, name)
    for name, cell in assigned_cells(fn):
        value = cell.cell_contents
        if _is_transform(name, value) and (functions or not is_a(value, types.FunctionType)):
            yield _cell(name, cell)


#: Containers and arrays: they have items and a length, but hold data rather than make it.
_CONTAINERS = (list, tuple, dict, str, bytes, torch.Tensor, type, torch.nn.Module)
_DATA_MODULES = ("numpy", "pandas", "h5py", "pyarrow", "collections", "array")


def is_dataset(value: Any) -> bool:
    """Return whether ``value`` makes samples: a ``Dataset``, or another object with items that is no mere container."""
    if is_a(value, Dataset):
        return True
    if is_a(value, _CONTAINERS) or type(value).__module__.split(".")[0] in _DATA_MODULES:
        return False
    return has_attribute(type(value), "__getitem__") and has_attribute(type(value), "__len__")


def _is_transform(name: str, value: Any) -> bool:
    if not callable(value) or is_a(value, (type, Dataset, Sampler, torch.Generator, types.ModuleType)):
        return False
    if is_a(value, (types.FunctionType, types.MethodType, functools.partial)) and inspect.isgeneratorfunction(value):
        return False  # it transforms a stream, not a sample
    return not makes_data(name)


def makes_data(name: str) -> bool:
    """Return whether a callable with this name makes raw data rather than change it."""
    return any(part in name.lower() for part in _LOADING)


def _is_callable_object(value: Any) -> bool:
    """Return whether ``value`` is an instance with ``__call__``: global functions are too many to record."""
    return callable(value) and not is_a(
        value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
    )


def _item(obj: Any, name: str, index: int) -> Slot:
    """Return the slot of a list item, replaced in place, or of a tuple item, where the whole tuple is replaced."""

    def install(value: Any) -> Callable[[], None]:
        items = obj.__dict__[name]
        if is_a(items, list):
            return _of_list("", items, index).install(value)
        changed = [*items[:index], value, *items[index + 1 :]]
        ours = type(items)(*changed) if has_attribute(items, "_fields") else type(items)(changed)
        return _entry(name, obj.__dict__, name).install(ours)

    return Slot(f"{name}[{index}]", lambda: obj.__dict__[name][index], install)


def _of_list(shown: str, items: list[Any], index: int) -> Slot:
    def install(value: Any) -> Callable[[], None]:
        before, items[index] = items[index], value

        def undo() -> None:
            items[:] = [before if item is value else item for item in items]  # it may have moved

        return undo

    return Slot(shown, lambda: items[index], install)


def _entry(shown: str, mapping: Mapping[Any, Any], key: Any, put: Callable[[Any], None] | None = None) -> Slot:
    """Return the slot of a dict value: in a user's dict, an object's attributes, or a module's globals.

    ``put`` sets the value where the mapping only shows it, as for a class.
    """
    put = put or functools.partial(operator.setitem, mapping, key)

    def install(value: Any) -> Callable[[], None]:
        before = mapping[key]
        put(value)

        def undo() -> None:
            if mapping.get(key) is value:
                put(before)

        return undo

    return Slot(shown, lambda: mapping[key], install)


def _cell(name: str, cell: types.CellType) -> Slot:
    def install(value: Any) -> Callable[[], None]:
        before, cell.cell_contents = cell.cell_contents, value

        def undo() -> None:
            if cell != types.CellType() and cell.cell_contents is value:
                cell.cell_contents = before

        return undo

    return Slot(name, lambda: cell.cell_contents, install)

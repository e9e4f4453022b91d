"""Read code that gets recorded images: may it tell one from a real image, which it gets without the remedy?

The user's code runs once for a sample, so nothing can be tried to find out what it does with a recorded image. Where it
may ask for the exact type of an object, which differs, it gets real images.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ...usercode.attributes import has_attribute
from ...usercode.contents import (
    closed_over,
    compares_identity,
    globals_of,
    is_library,
    is_library_module,
    is_record,
    modules_of,
    names_in,
    package,
)
from ...usercode.places import label

#: What tells a recorded image from a real one, beside comparing it with the one that it was made of.
_TELLING = frozenset({"type", "__class__", "id", "dir", "vars", "__dict__"})
#: Libraries that take a recorded image for a real one, or ask it for pixels, which shows in the batch, or take none.
_OURS = __name__.partition(".")[0]
_KNOWN = frozenset({_OURS, "torch", "torchvision", "timm", "PIL", "numpy", "pandas", *sys.stdlib_module_names})
#: Maximum number of functions to read, and of a container's items.
_MOST, _ITEMS = 300, 64


def why_telling(values: Iterable[Any], but: Iterable[Any] = ()) -> str:
    """Return why the code that ``values`` can reach may tell a recorded image from a real one; empty if it may not.

    All code of the user's is read: it must not ask for types, and must call no library that may. What only ``but`` can
    reach is left out.
    """
    pending = [*values]
    seen: dict[int, Any] = {id(value): value for value in but}
    functions = 0
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, types.FunctionType) and not _is_known(value):
            functions += 1
            if functions > _MOST:
                return "there is too much code to read"
            if _tells(value.__code__):
                return f"{label(value)} may tell recorded images by their exact type"
        elif _is_of_another_library(value):
            name = value.__name__ if isinstance(value, types.ModuleType) else package(value)
            return f"it calls {name.partition('.')[0]}, which may tell recorded images by their exact type"
        pending += _reached_from(value)
    return ""


def _is_known(value: Any) -> bool:
    """Return whether a function or class is a library's, whose own code is not read."""
    return package(value) == _OURS or is_library(value)


def _tells(code: types.CodeType) -> bool:
    """Return whether code of the user's may find out that an image is a recorded one."""
    return not _TELLING.isdisjoint(names_in(code)) or compares_identity(code)


def _reached_from(value: Any) -> Iterator[Any]:
    """Yield what an object, a class, or a function of the user's can call."""
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        yield value.__func__
        yield getattr(value, "__self__", None)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, types.FunctionType):
        if not _is_known(value):
            yield from (*globals_of(value).values(), *closed_over(value).values(), *(value.__defaults__ or ()))
            names = names_in(value.__code__)
            modules = modules_of(value)
            yield from (vars(module).get(name) for name in names for module in modules)
    elif isinstance(value, type):
        if not _is_known(value):
            yield from (one for name, one in vars(value).items() if name != "__init__")
            yield from value.__bases__
    elif isinstance(value, (list, tuple, dict)):
        yield from itertools.islice(value.values() if isinstance(value, dict) else value, _ITEMS)
    elif is_record(value):
        yield type(value)
        yield from vars(value).values() if has_attribute(value, "__dict__") else ()


def _is_of_another_library(value: Any) -> bool:
    """Return whether a module, class or function is of a library of which nothing is known."""
    if isinstance(value, types.ModuleType):
        return is_library_module(value) and value.__name__.partition(".")[0] not in _KNOWN
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    name = package(value)
    return name not in _KNOWN and name != "" and is_library(value)

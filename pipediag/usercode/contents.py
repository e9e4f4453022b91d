"""List the contents of a user's function, object or class: the places where its tensors and its state can be."""

from __future__ import annotations

import argparse
import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..frames import is_installed, is_ours, is_users
from .attributes import attribute, has_attribute, is_a, is_exactly, unwrapped

_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "scipy", "PIL"}
#: Objects of these packages are not searched by attribute; torch's are, since a module is one.
_OPAQUE = sys.stdlib_module_names | {"numpy", "PIL"}
#: Objects of the standard library that have attributes only.
NAMESPACES = (argparse.Namespace, types.SimpleNamespace)


def package(obj: Any) -> str:
    """Return the top-level package that defines a class or function, or ""."""
    return str(attribute(obj, "__module__", None) or "").partition(".")[0]


def is_library(obj: Any) -> bool:
    """Return whether a function or class is a library's. Such are assumed to keep no state and to hold no tensors."""
    if package(obj) in _LIBRARIES:
        return True
    return _is_of_library(attribute(sys.modules.get(obj.__module__), "__file__", None) or "")


def _is_of_library(file: str) -> bool:
    """Return whether a source file is installed, or pipediag's own: what it wraps a script's functions in."""
    return is_installed(file) or is_ours(file)


def is_record(obj: Any) -> bool:
    """Return whether an object is searched by its attributes."""
    if is_a(obj, NAMESPACES):
        return True
    if is_a(obj, type) or package(type(obj)) in _OPAQUE:
        return False
    return has_attribute(obj, "__dict__") or bool(slot_values(obj))


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code, then that of its comprehensions and inner functions."""
    yield code
    for constant in code.co_consts:
        if is_a(constant, types.CodeType):
            yield from _codes_in(constant)


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, including comprehensions and inner functions."""
    return (name for one in _codes_in(code) for name in one.co_names)


def loaded_in(code: types.CodeType) -> set[str]:
    """Return the global names that a function's code uses as names, not as attributes."""
    instructions = (one for inner in _codes_in(code) for one in dis.get_instructions(inner))
    return {str(one.argval) for one in instructions if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def compares_identity(code: types.CodeType) -> bool:
    """Return whether a function's code, or an inner one's, asks whether two objects are one, neither a constant."""
    pairs = (pair for inner in _codes_in(code) for pair in itertools.pairwise(dis.get_instructions(inner)))
    return any(one.opname == "IS_OP" and not before.opname.startswith("LOAD_CONST") for before, one in pairs)


def reads_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a function's code may look up in its globals and in modules, also by ``getattr``."""
    constants = (constant for one in _codes_in(code) for constant in one.co_consts if is_a(constant, str))
    return tuple(sorted({*names_in(code), *filter(str.isidentifier, constants)}))


def modules_of(fn: types.FunctionType) -> list[types.ModuleType]:
    """Return the user's own modules that a function can reach by its globals and variables, and by these modules."""
    names = reads_in(fn.__code__)
    found: dict[str, types.ModuleType] = {}
    pending: list[Any] = [*(fn.__globals__.get(name) for name in names), *closed_over(fn).values()]
    while pending:
        value = pending.pop()
        if is_a(value, types.ModuleType) and value.__name__ not in found and not is_library_module(value):
            found[value.__name__] = value
            pending += [vars(value).get(name) for name in names]
    return [found[name] for name in sorted(found)]


def is_library_module(module: types.ModuleType) -> bool:
    if module.__name__.partition(".")[0] in _LIBRARIES:
        return True
    return _is_of_library(getattr(module, "__file__", None) or "")


def globals_of(fn: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a function uses and that exist now."""
    return {name: fn.__globals__[name] for name in sorted(set(names_in(fn.__code__))) if name in fn.__globals__}


def closed_over(fn: types.FunctionType) -> dict[str, Any]:
    """Return the variables that a function closes over and that are assigned now."""
    return {name: cell.cell_contents for name, cell in assigned_cells(fn)}


def assigned_cells(fn: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    """Yield each variable that a function closes over and that is assigned now, with the cell that holds its value."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if cell != types.CellType():  # an empty one: not assigned yet
            yield name, cell


def slot_values(obj: Any) -> dict[str, Any]:
    """Return the attributes that an object keeps in slots, by the names that ``getattr`` knows. No code runs."""
    values: dict[str, Any] = {}
    for cls in type(obj).__mro__:
        for name, slot in [*vars(cls).items()] if "__slots__" in vars(cls) else ():  # other threads may add to it
            if is_a(slot, types.MemberDescriptorType):
                try:
                    values.setdefault(name, slot.__get__(obj))
                except AttributeError:  # not assigned yet
                    continue
    return values


#: Maximum number of a container's items that are looked at.
_ITEMS = 64
#: Maximum number of values in :func:`settings`, and of objects inside each other.
_SETTINGS, _INSIDE = 1000, 4


def settings(obj: Any) -> dict[str, Any]:
    """Return the numbers, texts and None among what an object and its parts hold, by how code names them.

    Large containers are left out. No code of the user's runs.
    """
    found: dict[str, Any] = {}
    _add_settings(obj, "", found, {}, _INSIDE)
    return found


def _add_settings(value: Any, name: str, found: dict[str, Any], seen: dict[int, Any], depth: int) -> None:
    if is_exactly(value, bool, int, float, str, types.NoneType):
        found[name] = value
    elif depth and id(value) not in seen and max(len(found), len(seen)) < _SETTINGS:
        seen[id(value)] = value
        parts: dict[str, Any] = {}
        if is_exactly(value, list, tuple) and len(value) <= _ITEMS:
            parts = {f"{name}[{k}]": part for k, part in enumerate(value)}
        elif type(value) is dict and len(value) <= _ITEMS:
            parts = {f"{name}[{key!r}]": part for key, part in value.items() if is_exactly(key, int, str)}
        elif is_record(value):
            held = attribute(value, "__dict__")
            held = {**(held if type(held) is dict else {}), **slot_values(value)}
            parts = {f"{name}.{key}".removeprefix("."): part for key, part in held.items() if type(key) is str}
        for at, part in parts.items():
            _add_settings(part, at, found, seen, depth - 1)


def reached(*roots: Any, without: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield these values, all that they hold, and all that the user's functions among them can call.

    ``without`` are values that are passed over, with what only they hold.

    The special methods that ``dataclass`` or attrs has written for a class are left out: they ask for the type of such
    objects only, and hand each field on to its own method.
    """
    pending = [*roots]
    seen: dict[int, Any] = {id(value): value for value in without}
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            pending += _reached_from(value)


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
        if not is_library(value):
            yield from (*globals_of(value).values(), *closed_over(value).values(), *(value.__defaults__ or ()))
            names = names_in(value.__code__)
            modules = modules_of(value)
            yield from (vars(module).get(name) for name in names for module in modules)
    elif isinstance(value, type):
        if not is_library(value):
            for name, one in [*vars(value).items()]:
                if name != "__init__" and not _is_written_for(value, name, one):
                    yield one
            yield from value.__bases__
    elif isinstance(value, (list, tuple, dict)):
        yield from itertools.islice(value.values() if isinstance(value, dict) else value, _ITEMS)
    elif is_record(value):
        yield type(value)
        yield from [*vars(value).values()] if has_attribute(value, "__dict__") else ()


#: What a class that ``dataclass`` or attrs has completed holds.
_FIELDS = frozenset({"__dataclass_fields__", "__attrs_attrs__"})


def _is_written_for(cls: type, name: str, method: Any) -> bool:
    """Return whether ``dataclass`` or attrs has written a special method of a class: no file of the user's has it."""
    code = attribute(unwrapped(method), "__code__")
    written = name.startswith("__") and is_a(code, types.CodeType) and not _FIELDS.isdisjoint(vars(cls))
    return written and not is_users(code.co_filename)


#: Functions that tell the exact type of their argument, and attributes that do.
_TYPE, _CLASS = "type", "__class__"
_NAMES = ("__name__", "__qualname__", "__module__")
#: Instructions that do nothing.
_FILLERS = ("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "PUSH_NULL", "RESUME")


def line_that_asks_types(code: types.CodeType) -> int | None:
    """Return the line where a function's code, or an inner one's, asks for the exact type of an object other than
    ``self``, for another end than to print it; None if it does not."""
    known = [one for one in dis.get_instructions(code) if one.opname not in _FILLERS]
    line = code.co_firstlineno
    for k, one in enumerate(known):
        line = (
            one.positions.lineno or line if sys.version_info >= (3, 11) and one.positions else one.starts_line or line
        )
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval == _TYPE:
            end = next((n for n in range(k + 1, len(known)) if known[n].opname.startswith("CALL")), None)
            given = known[k + 1 : end]
            if not given or _is_self(given) or any(part.opname == "BUILD_TUPLE" for part in given):
                continue  # it is an argument itself, as of isinstance()
            if end is None or _is_printed(known[end + 1 :]):
                continue
            return line
        asks = one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval == _CLASS
        if asks and not _is_self(known[k - 1 : k]) and not _is_printed(known[k + 1 :]):
            return line
    inner = (line_that_asks_types(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return next((line for line in inner if line is not None), None)


def _is_self(loaded: list[dis.Instruction]) -> bool:
    return len(loaded) == 1 and loaded[0].argval in ("self", "cls")


def _is_printed(after: list[dis.Instruction]) -> bool:
    """Return whether what was loaded goes into a text."""
    named = bool(after) and after[0].opname.startswith("LOAD_ATTR") and after[0].argval in _NAMES
    following = after[1:] if named else after
    return bool(following) and following[0].opname.startswith(("FORMAT", "CONVERT"))


#: Methods that make, copy or show an object.
_NOT_RUN = ("new", "init", "init_subclass", "repr", "str", "reduce", "reduce_ex", "getstate", "setstate", "deepcopy")


def class_values(cls: type) -> dict[str, Any]:
    """Return a class's own definitions; of Python's special names, methods that a call may run."""
    hidden = ("_abc_impl",)  # of abstract classes: a cache
    return {
        name: value
        for name, value in [*vars(cls).items()]
        if name not in hidden
        and (not name.startswith("__") or (is_a(value, types.FunctionType) and name.strip("_") not in _NOT_RUN))
    }

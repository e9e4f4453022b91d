"""Digest a function's code, and the code and the simple values that it refers to."""

from __future__ import annotations

import functools
import hashlib
import sys
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..frames import in_package
from .keys import NoKey, simple

_DEPTH = 8


@functools.lru_cache(maxsize=256)
def code_of(function: Any) -> bytes:
    """Return a digest that changes with a function's code and with that of the user's functions that it refers to.

    Of libraries, names and versions count.
    """
    digest = hashlib.sha256()
    _add(function, digest, set(), _DEPTH)
    return digest.digest()


def _add(value: Any, digest: Any, seen: set[int], depth: int) -> None:
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    value = getattr(value, "__func__", value) if isinstance(value, MethodType) else value
    if isinstance(value, functools.partial):
        _add_all((value.func, *value.args, *value.keywords.values()), digest, seen, depth)
    elif isinstance(value, FunctionType):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
        if not _is_of_a_library(value.__code__.co_filename):
            _add_code(value, digest, seen, depth)
        elif version := getattr(sys.modules.get(value.__module__.partition(".")[0]), "__version__", ""):
            digest.update(str(version).encode())
    elif isinstance(value, type):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
        module = sys.modules.get(value.__module__)
        if not _is_of_a_library(getattr(module, "__file__", None)):
            _add_all(vars(value).values(), digest, seen, depth)
    elif isinstance(value, (staticmethod, classmethod)):
        _add(value.__func__, digest, seen, depth)
    else:
        try:
            digest.update(repr(simple(value)).encode())
        except NoKey:
            digest.update(type(value).__qualname__.encode())


def _add_all(values: Any, digest: Any, seen: set[int], depth: int) -> None:
    for value in values:
        _add(value, digest, seen, depth - 1)


def _add_code(function: FunctionType, digest: Any, seen: set[int], depth: int) -> None:
    names = _add_bytecode(function.__code__, digest)
    _add_all(
        (function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None)), digest, seen, depth
    )
    for cell in function.__closure__ or ():
        try:
            _add(cell.cell_contents, digest, seen, depth - 1)
        except ValueError:  # empty yet
            continue
    for name in names:
        found = function.__globals__.get(name)
        if not isinstance(found, ModuleType):
            _add(found, digest, seen, depth - 1)
        elif _is_of_a_library(getattr(found, "__file__", None)):
            digest.update(f"{found.__name__} {getattr(found, '__version__', '')}".encode())
        else:  # any of the names may be an attribute of it
            _add_all((vars(found).get(other) for other in names), digest, seen, depth)


def _add_bytecode(code: CodeType, digest: Any) -> list[str]:
    """Add a code object with those inside it; return the names that they use."""
    digest.update(code.co_code)
    names = [*code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _add_bytecode(constant, digest)
        else:
            digest.update(repr(constant).encode())
    digest.update(repr(names).encode())
    return names


def _is_of_a_library(file: str | None) -> bool:
    return file is None or in_package(file) != ""

"""Name the user's code and find its lines: where a function or class is defined, which line is running.

Nothing here parses source: a worker asks while it makes a batch. See :mod:`.constructions` for what does.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ..frames import in_package, is_command, is_ours, is_torchs, is_users
from ..session import Link, Place
from .attributes import ByObject, attribute, is_a, is_routine, unwrapped

#: File and line of each class that was asked for, or None if they are not certain.
_CLASSES: ByObject[tuple[str, int] | None] = ByObject()


def caller() -> str:
    """Return ``file:line`` of the running user code: the innermost frame of the user's own.

    Without such a frame, as in a library's loop, it is the innermost one outside torch and pipediag.
    """
    frame, library = inspect.currentframe(), None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{short(file)}:{frame.f_lineno}"
        if library is None and not (is_ours(file) or is_torchs(file) or is_command(file) or file.startswith("<frozen")):
            library = frame
        frame = frame.f_back
    return f"{short(library.f_code.co_filename)}:{library.f_lineno}" if library is not None else ""


def place_of(obj: Any) -> Place:
    """Return name and definition of a callable (a function's own, or its class's); no definition for torch's own."""
    target = _code_behind(obj)
    name = label(obj)
    if str(attribute(target, "__module__", "")).split(".")[0] == "torch":
        return Place(f"torch's {name}")
    return placed(name, target)


def placed(name: str, target: Any) -> Place:
    """Return the place where a function or class is defined, under this name; without a line if none is certain."""
    source = _source(target)
    if source is None:
        return Place(name)
    library = not cell(source[0]) and not is_users(os.path.abspath(source[0]))
    return Place(name, f"{short(source[0])}:{source[1]}", library=library)


def link_of(transform: Any, whole: str = "") -> Link:
    """Return a transform as a link of a chain, at its definition."""
    place = place_of(transform)
    return Link(label(transform), place.where, whole=whole, origin=origin(transform), library=place.library)


def label(obj: Any) -> str:
    """Return the familiar name of a callable: a function's own, or its class's."""
    target = _code_behind(obj)
    if inspect.isbuiltin(target):  # its qualified name may contain an unfamiliar class
        return str(target.__name__)
    name: str = attribute(target, "__qualname__", type(target).__name__)
    return name.rpartition("<locals>.")[2]


def code_of(obj: Any) -> int:
    """Return the identity of the code that a callable runs, or of its class: different ones may have the same name."""
    behind = _code_behind(obj)
    return id(attribute(behind, "__code__", behind))


def origin(obj: Any) -> str:
    """Return the module that defines a callable, or its class."""
    return str(attribute(_code_behind(obj), "__module__", None) or "")


def _code_behind(obj: Any) -> Any:
    """Return the function behind a callable, or its class."""
    while is_a(obj, functools.partial):
        obj = obj.func
    return obj if is_routine(obj) else type(obj)


def short(file: str) -> str:
    """Return a path as the user would write it: relative to the working directory, or to a library's package.

    A cell is ``In[3]``.
    """
    if named := cell(file):
        return named
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        relative = ".."
    # An environment may be in the working directory.
    return in_package(file) or (file if relative.startswith("..") else relative)


def cell(file: str) -> str:
    """Return the name that a notebook shows for the cell compiled as ``file``, or "" if it is no cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return str(named[1]) if named else ""


def _source(target: Any) -> tuple[str, int] | None:
    """Return file and line of a function or class, or None if they are not certain."""
    code = _code(target)
    if code is not None:
        generated = code.co_filename.startswith("<") and not linecache.getlines(code.co_filename)
        return None if generated else (code.co_filename, code.co_firstlineno)
    if not isinstance(target, type):
        return None
    if target not in _CLASSES:
        _CLASSES.set(target, _class_source(target))
    return _CLASSES.get(target)


def _code(target: Any) -> CodeType | None:
    target = unwrapped(attribute(target, "__func__", target)) if callable(target) else target
    code: CodeType | None = attribute(target, "__code__")
    return code


def _class_source(cls: type) -> tuple[str, int] | None:
    """Find a class statement from the lines of its methods, else by its text, provided that this is unambiguous.

    ``inspect`` would parse the whole file, which takes tenths of a second for a large one.
    """
    methods = list(_own_methods(cls))
    file = attribute(sys.modules.get(cls.__module__), "__file__", None) or next((m.co_filename for m in methods), "")
    lines = linecache.getlines(file)
    statement = re.compile(rf"(\s*)class\s+{re.escape(cls.__name__)}\b")
    begins = [m.co_firstlineno for m in methods if os.path.abspath(m.co_filename) == os.path.abspath(file)]
    numbers: Iterator[int] = iter(range(1, len(lines) + 1))
    if first := vars(cls).get("__firstlineno__"):  # from Python 3.13 on: of its first decorator
        numbers = iter(range(first, len(lines) + 1))
    elif begins:
        numbers = iter(range(min(*begins, len(lines)), 0, -1))
    matches = ((number, found) for number in numbers if (found := statement.match(lines[number - 1])))
    if first or begins:
        return next(((file, number) for number, _ in matches), None)
    every = list(matches)
    outer = [one for one in every if not one[1][1]]
    certain = outer if outer and "." not in cls.__qualname__ else every
    return (file, certain[0][0]) if len(certain) == 1 else None


def _own_methods(cls: type) -> Iterator[CodeType]:
    """Yield the code of the methods in the class's own statement: others are inherited, assigned or generated."""
    for method in [*vars(cls).values()]:
        code, written = _code(method), unwrapped(method) if callable(method) else method
        named = attribute(written, "__qualname__", "").rpartition(".")[0]
        if code is not None and named == cls.__qualname__ and attribute(written, "__module__", "") == cls.__module__:
            yield code

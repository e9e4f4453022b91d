"""Find the line of the user's code that something comes from."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..frames import is_ours, is_torchs, is_users
from ..session import Place

#: Maximum number of source files searched for the construction of a transform, and maximum bytes of one.
_MOST_FILES, _MOST_BYTES = 200, 1 << 20
#: Expressions that hold the transforms of one chain together.
_HOLDERS = (ast.List, ast.Tuple, ast.Call)


def caller() -> str:
    """Return ``file:line`` of the running user code: the innermost frame of the user's own.

    Without such a frame, as in a library's loop, it is the innermost one outside torch and pipediag.
    """
    frame, library = inspect.currentframe(), ""
    while frame is not None:
        file = frame.f_code.co_filename
        place = f"{short(file)}:{frame.f_lineno}"
        if is_users(file):
            return place
        if not library and not (is_ours(file) or is_torchs(file) or file.startswith("<frozen")):
            library = place
        frame = frame.f_back
    return library


def place_of(obj: Any) -> Place:
    """Return name and definition of a callable (a function's own, or its class's); no definition for torch's own."""
    target = _code_behind(obj)
    name = label(obj)
    if str(getattr(target, "__module__", "")).split(".")[0] == "torch":
        return Place(f"torch's {name}")
    return Place(name, definition(target))


def places_of(links: Sequence[Any]) -> list[Place]:
    """Return name and line of each transform of a chain.

    The user's own are located at their definition; a library's at the line of the user's code that constructs it, if
    that is certain, otherwise at its definition in the library.
    """
    places = [Place(label(fn), place_of(fn).where) for fn in links]
    foreign = [not inspect.isroutine(fn) and not _file_is_users(fn) for fn in links]
    if any(foreign):
        made = _constructions([place.name for place in places])
        for number, is_foreign in enumerate(foreign):
            if is_foreign and made[number]:
                places[number] = Place(places[number].name, made[number])
    return places


def label(obj: Any) -> str:
    """Return the familiar name of a callable: a function's own, or its class's."""
    target = _code_behind(obj)
    if inspect.isbuiltin(target):  # its qualified name may contain an unfamiliar class
        return str(target.__name__)
    name: str = getattr(target, "__qualname__", type(target).__name__)
    return name.rpartition("<locals>.")[2]


def code_of(obj: Any) -> Any:
    """Return the code that a callable runs, or its class: different ones may have the same name."""
    behind = _code_behind(obj)
    return getattr(behind, "__code__", behind)


def origin(obj: Any) -> str:
    """Return the module that defines a callable, or its class."""
    return str(getattr(_code_behind(obj), "__module__", None) or "")


def _code_behind(obj: Any) -> Any:
    """Return the function behind a callable, or its class."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    return obj if inspect.isroutine(obj) else type(obj)


def short(file: str) -> str:
    """Return a path as the user would write it: relative if below the working directory, ``In[3]`` for a cell."""
    if named := _cell(file):
        return named
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if relative.startswith("..") else relative


def _cell(file: str) -> str:
    """Return the name that a notebook shows for the cell compiled as ``file``, or "" if it is no cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return str(named[1]) if named else ""


def definition(target: Any) -> str:
    """Return ``file:line`` where a function or class is defined, or "" without source."""
    source = _source(target)
    return f"{short(source[0])}:{source[1]}" if source else ""


def _source(target: Any) -> tuple[str, int] | None:
    code = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
    if code is not None:
        return code.co_filename, code.co_firstlineno
    try:
        file = inspect.getsourcefile(target)
        line = _class_line(target, file) if isinstance(target, type) and file else 0
        line = line or inspect.getsourcelines(target)[1]
    except (OSError, TypeError):
        return None
    return (file, line) if file else None


def _class_line(cls: type, file: str) -> int:
    """Return the line of a class statement, or 0 if it is not certain.

    ``inspect`` would parse the whole file, which takes tenths of a second for a large one, in a worker that is making a
    batch.
    """
    methods = [fn.__code__.co_firstlineno for fn in vars(cls).values() if inspect.isfunction(fn)]
    if not methods:
        return 0
    statement = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    before = enumerate(linecache.getlines(file)[: min(methods)], 1)
    found = [number for number, line in before if statement.match(line)]
    return found[-1] if found else 0


def _file_is_users(fn: Any) -> bool:
    source = _source(_code_behind(fn))
    return source is not None and is_users(os.path.abspath(source[0]))


def _constructions(names: list[str]) -> list[str]:
    """Return the line of the user's code that constructs each class, or "" if it is ambiguous.

    Of several lines, take the one next to most of the chain's other names: a script often builds one chain for training
    and another for validation.
    """
    candidates: dict[str, list[tuple[int, str]]] = {}
    for file in _users_files():
        for name, line, company in _calls_in(file):
            if name in names:
                candidates.setdefault(name, []).append((len(company & set(names)), f"{short(file)}:{line}"))
    found = []
    for name in names:
        ranked = sorted(candidates.get(name, []), reverse=True)
        clear = len(ranked) == 1 or (len(ranked) > 1 and ranked[0][0] > ranked[1][0])
        found.append(ranked[0][1] if clear else "")
    return found


def _users_files() -> list[str]:
    """Return the source files of the user's modules, at most ``_MOST_FILES``: a notebook's cells, the script, the rest.

    A cell has no file, but a name in ``linecache``.
    """
    named = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    files = {name: os.path.abspath(f) for name, f in named.items() if isinstance(f, str) and f.endswith(".py")}
    script = files.get("__main__")
    mine = sorted({*files.values()}, key=lambda file: (file != script, file))
    cells = [file for file in list(linecache.cache) if _cell(file)]
    return [*cells, *(file for file in mine if is_users(file) and os.path.isfile(file))][:_MOST_FILES]


def _calls_in(file: str) -> list[tuple[str, int, set[str]]]:
    """Return every call in a source file: its name, its line, and the names called in the same list."""
    try:
        if _cell(file):
            parsed = ast.parse("".join(linecache.getlines(file)))
        elif os.path.getsize(file) > _MOST_BYTES:
            return []
        else:
            parsed = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    company: dict[ast.AST, set[str]] = {}
    for node in ast.walk(parsed):
        beside = getattr(node, "elts", None) or getattr(node, "args", None) if isinstance(node, _HOLDERS) else None
        together = {name for name in map(_called, beside or []) if name}
        for part in beside or []:
            company.setdefault(part, together)
    return [
        (name, node.lineno, company.get(node, {name}))
        for node in ast.walk(parsed)
        if isinstance(node, ast.Call) and (name := _called(node))
    ]


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")

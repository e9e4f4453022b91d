"""Find the line of the user's code that constructs an object of a library, by parsing the user's source files.

Only for the training process between windows: a file is parsed once, but a script may have many.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ..frames import is_users
from ..session import Link, Part, Place
from .places import cell, link_of, short

_Transform = TypeVar("_Transform", Link, Part)

#: Maximum number of source files searched, and maximum bytes of one.
_MOST_FILES, _MOST_BYTES = 200, 1 << 18
#: Number of parsed files that are kept as trees.
_KEPT_TREES = 4
#: Expressions that hold the transforms of one chain together.
_HOLDERS = (ast.List, ast.Tuple, ast.Call)
#: A call in source text, other than a definition.
_CALL = re.compile(rb"(?<!class )(?<!def )\b(\w+)\s*\(")


def places_of(transforms: Sequence[Any]) -> list[Place]:
    """Return name and line of each transform of a chain, :func:`located`."""
    links = located([link_of(transform) for transform in transforms])
    return [Place(link.name, link.where, link.library) for link in links]


def located(links: Sequence[Link]) -> list[Link]:
    """Locate a library's transforms at the line of the user's code that constructs them, if that is certain.

    So are the parts of wrappers. The user's own stay at their definition, as do functions: calling one elsewhere has
    nothing to do with the chain.
    """
    lines = iter(_lines([*links, *(part for link in links for part in link.parts)]))
    found = [_at(link, next(lines)) for link in links]
    return [replace(link, parts=[_at(part, next(lines)) for part in link.parts]) for link in found]


def _at(transform: _Transform, line: str) -> _Transform:
    return replace(transform, where=line, library=False) if line else transform


def _lines(transforms: Sequence[Link | Part]) -> list[str]:
    """Return the line of the user's code that constructs each library's transform, or "" if none is certain."""
    foreign = [(one.library or not one.where) and _is_of_class(one) for one in transforms]
    if not any(foreign):
        return [""] * len(transforms)
    made = constructions({one.name for one, sought in zip(transforms, foreign, strict=True) if sought}, transforms)
    return [made[one.name] if sought else "" for one, sought in zip(transforms, foreign, strict=True)]


def _is_of_class(link: Link | Part) -> bool:
    """Return whether a transform is named by its class. Only a class can be without both a line and its name there."""
    try:
        return isinstance(attrgetter(link.name)(sys.modules.get(link.origin)), type)
    except AttributeError:
        return not link.where


def constructions(names: Collection[str], chain: Sequence[Link | Part] = ()) -> dict[str, str]:
    """Return the line of the user's code that constructs each class, or "" if it is ambiguous.

    Of several lines, take the one next to most of the chain's other names: a script often builds one chain for training
    and another for validation.
    """
    sought, chained = set(names), {link.name for link in chain}
    candidates: dict[str, list[tuple[int, str]]] = {}
    for file in _users_files():
        stamp = _stamp(file)
        if sought.isdisjoint(_named_in(file, stamp)):
            continue
        for name, line, company in _calls_in(file, stamp):
            if name in sought:
                candidates.setdefault(name, []).append((len(company & chained), f"{short(file)}:{line}"))
    found = {}
    for name in names:
        ranked = sorted(candidates.get(name, []), reverse=True)
        clear = len(ranked) == 1 or (len(ranked) > 1 and ranked[0][0] > ranked[1][0])
        found[name] = ranked[0][1] if clear else ""
    return found


def _users_files() -> list[str]:
    """Return the source files of the user's modules, at most ``_MOST_FILES``: a notebook's cells, the script, the rest.

    A cell has no file, but a name in ``linecache``.
    """
    named = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    files = {name: os.path.abspath(f) for name, f in named.items() if isinstance(f, str) and f.endswith(".py")}
    script = files.get("__main__")
    mine = sorted({*files.values()}, key=lambda file: (file != script, file))
    cells = [file for file in list(linecache.cache) if cell(file)]
    return [*cells, *(file for file in mine if is_users(file) and os.path.isfile(file))][:_MOST_FILES]


def _stamp(file: str) -> tuple[int, int]:
    """Return what changes when a file does: its time of change and its size."""
    try:
        if cell(file):
            return 0, len("".join(linecache.getlines(file)))
        status = os.stat(file)
        return status.st_mtime_ns, status.st_size
    except OSError:
        return 0, 0


@functools.lru_cache(maxsize=2 * _MOST_FILES)
def _named_in(file: str, stamp: tuple[int, int]) -> frozenset[str]:
    """Return the names that the text of a file seems to call: few files have to be parsed."""
    try:
        return frozenset(name.decode("utf-8", "replace") for name in _CALL.findall(_text(file, stamp)))
    except OSError:
        return frozenset()


def _text(file: str, stamp: tuple[int, int]) -> bytes:
    if cell(file):
        return "".join(linecache.getlines(file)).encode()
    return Path(file).read_bytes() if stamp[1] <= _MOST_BYTES else b""


def parsed(file: str) -> ast.Module:
    """Return a source file's or cell's syntax tree; an empty one if it cannot be read."""
    return _parsed(file, _stamp(file))


@functools.lru_cache(maxsize=_KEPT_TREES)
def _parsed(file: str, stamp: tuple[int, int]) -> ast.Module:
    try:
        return ast.parse(_text(file, stamp))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=2 * _MOST_FILES)
def _calls_in(file: str, stamp: tuple[int, int]) -> list[tuple[str, int, set[str]]]:
    """Return every call in a source file: its name, its line, and the names called in the same list."""
    tree = _parsed(file, stamp)
    company: dict[ast.AST, set[str]] = {}
    for node in ast.walk(tree):
        beside = getattr(node, "elts", None) or getattr(node, "args", None) if isinstance(node, _HOLDERS) else None
        together = {name for name in map(_called, beside or []) if name}
        for part in beside or []:
            company.setdefault(part, together)
    return [
        (name, node.lineno, company.get(node, {name}))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (name := _called(node))
    ]


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")

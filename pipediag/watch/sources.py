"""Read the source of a running process's code: the text of a line, and which functions are generators."""

from __future__ import annotations

import ast
import os
import re
import stat
from functools import cache

from ..frames import in_package
from .sampling import Frame

#: Largest source that is read, in bytes.
_LARGEST = 2_000_000
#: The standard library of any Python, as the process may run another one than this.
STANDARD = re.compile(r".*/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|<")


def library(file: str) -> str:
    """Return a library's file relative to its package; the path itself for other files."""
    standard = STANDARD.match(file)
    return in_package(file) or (file[standard.end() :] if standard else file)


class Sources:
    """The files of a process, also of one in a container: they are read below ``root``, such as ``/proc/17/root``."""

    def __init__(self, root: str = "", folder: str = "") -> None:
        self._root, self._folder = root, folder
        self._text, self._functions = cache(self._read), cache(self._parsed)

    def text(self, frame: Frame) -> str:
        """Return the running line; "" if it cannot be read."""
        lines = self._text(frame.file).splitlines()
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def where(self, frame: Frame) -> str:
        """Return file and line: a library's relative to its package, others to the process's working directory."""
        return f"{library(frame.file).removeprefix(self._folder and os.path.join(self._folder, ''))}:{frame.line}"

    def is_generator(self, frame: Frame) -> bool:
        """Return whether the function that a frame runs is a generator, as far as its source is there."""
        around = [
            (last - first, yields) for first, last, yields in self._functions(frame.file) if first <= frame.line <= last
        ]
        return min(around)[1] if around else False

    def _read(self, file: str) -> str:
        path = os.path.join(self._folder, file)
        for candidate in (self._root + path, path):
            try:
                # The process chooses the name, and opening a pipe would wait for its writer.
                descriptor = os.open(candidate, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                with open(descriptor, encoding="utf-8", errors="replace") as opened:
                    facts = os.fstat(descriptor)
                    if stat.S_ISREG(facts.st_mode) and facts.st_size <= _LARGEST:
                        return opened.read(_LARGEST)
            except (OSError, ValueError):
                continue
        return ""

    def _parsed(self, file: str) -> list[tuple[int, int, bool]]:
        """Return first and last line of each function, and whether it yields."""
        try:
            nodes = [*ast.walk(ast.parse(self._text(file)))]
            functions = [one for one in nodes if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
            return [(one.lineno, one.end_lineno or one.lineno, _yields(one)) for one in functions]
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two of what is nested too deep
            return []


def _yields(node: ast.AST) -> bool:
    """Return whether a function's own body yields: what stands in functions inside it does not count."""
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return any(
        isinstance(one, (ast.Yield, ast.YieldFrom)) or (not isinstance(one, inside) and _yields(one))
        for one in ast.iter_child_nodes(node)
    )

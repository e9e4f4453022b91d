"""Read the source of a running process's code: the text of a line, and which functions are generators."""

from __future__ import annotations

import ast
import os
from functools import cache, cached_property

from .sampling import Frame

#: Largest source that is parsed, in bytes.
_LARGEST = 2_000_000


class Sources:
    """The files of a process, also of one in a container: they are read below ``root``, such as ``/proc/17/root``."""

    def __init__(self, root: str = "", folder: str = "") -> None:
        self._root, self._folder = root, folder
        self._of = cache(self._read)

    def text(self, frame: Frame) -> str:
        """Return the running line; "" if it cannot be read."""
        lines = self._of(frame.file).lines
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def is_generator(self, frame: Frame) -> bool:
        """Return whether the function that a frame runs is a generator, as far as its source is there."""
        return self._of(frame.file).is_generator(frame.line)

    def _read(self, file: str) -> Source:
        path = os.path.join(self._folder, file)
        for candidate in (self._root + path, path) if self._root else (path,):
            try:
                if os.path.getsize(candidate) <= _LARGEST:
                    with open(candidate, encoding="utf-8", errors="replace") as opened:
                        return Source(opened.read())
            except OSError:
                continue
        return Source("")


class Source:
    """A source file's lines and functions."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._text = text

    def is_generator(self, line: int) -> bool:
        inside = [(last - first, yields) for first, last, yields in self._functions if first <= line <= last]
        return min(inside)[1] if inside else False

    @cached_property
    def _functions(self) -> list[tuple[int, int, bool]]:
        """First and last line of each function, and whether it yields itself."""
        try:
            tree = ast.parse(self._text)
        except (SyntaxError, ValueError, RecursionError):
            return []
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [
            (one.lineno, one.end_lineno or one.lineno, _yields(one)) for one in ast.walk(tree) if isinstance(one, kinds)
        ]


def _yields(function: ast.AST) -> bool:
    """Return whether a function's own body yields: what stands in functions inside it does not count."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)) and _yields(node):
            return True
    return False

"""Read the command lines of Python processes: which interpreter runs which script or module, with which flags."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

#: Flags of Python's that take the next word as their value if it is not attached.
_WITH_VALUE = "WX"
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)
_PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a script, or with ``-m`` a module, with the words before it.

    Attributes:
        flags: the interpreter's own.
        target: the script and its arguments, or ``-m``, the module and its arguments.
    """

    interpreter: str
    flags: tuple[str, ...]
    target: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> PythonCommand | None:
        """Return the command that the words form; None if it runs no script or module."""
        flags = 1
        while flags < len(words) and words[flags].startswith("-") and words[flags] != "-":
            word = words[flags]
            if word == "-m":
                return cls(words[0], tuple(words[1:flags]), tuple(words[flags:])) if flags + 1 < len(words) else None
            if word.startswith("--"):
                flags += 2 if word in _LONG_WITH_VALUE else 1
                continue
            if "c" in word or "m" in word.partition("W")[0].partition("X")[0]:  # code, or a module in one word: -um
                return None
            flags += 2 if word[-1] in _WITH_VALUE and not set(word[1:-1]) & set(_WITH_VALUE) else 1
        if flags >= len(words) or words[flags] == "-":
            return None
        return cls(words[0], tuple(words[1:flags]), tuple(words[flags:]))


def is_named_python(word: str) -> bool:
    return _PYTHON.match(os.path.basename(word)) is not None


def is_this_python(word: str, path: str | None = None) -> bool:
    """Return whether a command is this interpreter, with the same packages.

    Args:
        path: where to look for it; None: as in ``PATH``.
    """
    found = shutil.which(word, path=path)
    return found is not None and _installation(found) == _installation(sys.executable)


def interpreter_of(script: str) -> str | None:
    """Return the interpreter that a Python script names in its first lines; None if it is no Python script."""
    try:
        with open(script, "rb") as file:
            first, second = (file.readline(4096).decode(errors="replace").strip() for _ in range(2))
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words[:1] and os.path.basename(words[0]) == "sh" and second.startswith("'''exec'"):  # pip's, for long paths
        words = second.removeprefix("'''exec'").replace('"', " ").split()
    elif words[:1] and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words[:1] and is_named_python(words[0]) else None


@cache
def _installation(interpreter: str) -> str:
    """Return what identifies an interpreter's packages: its virtual environment, or its real file."""
    folder = os.path.dirname(os.path.abspath(interpreter))
    environment = os.path.dirname(folder)
    if os.path.exists(os.path.join(environment, "pyvenv.cfg")):
        return os.path.realpath(environment)
    return os.path.realpath(interpreter)

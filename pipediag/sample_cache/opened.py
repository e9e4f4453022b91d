"""Note the files that are opened for reading while a sample is made."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .store import FileFacts

_CODE = (".py", ".pyc", ".so")


class _Noting(threading.local):
    facts: dict[str, FileFacts] | None = None


_noting = _Noting()


@contextmanager
def opened_files() -> Iterator[list[FileFacts]]:
    """Note the files that this thread opens through Python within the context; the list is complete after it."""
    _install_hook()
    files: list[FileFacts] = []
    _noting.facts = {}
    try:
        yield files
    finally:
        files += _noting.facts.values()
        _noting.facts = None


@functools.cache
def _install_hook() -> None:
    """Install Python's hook for this once: it cannot be removed. Outside the context it does nothing."""
    sys.addaudithook(_opening)


def _opening(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or _noting.facts is None:
        return
    path, _, flags = args
    if not isinstance(path, (str, bytes, os.PathLike)) or (flags or 0) & os.O_ACCMODE != os.O_RDONLY:
        return
    name = os.fsdecode(path)
    if not name.endswith(_CODE) and name not in _noting.facts:
        try:
            _noting.facts[name] = FileFacts.of(name)
        except OSError:  # opening it fails too
            pass

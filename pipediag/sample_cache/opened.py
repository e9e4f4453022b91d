"""Note the files that are opened for reading while a sample is made."""

from __future__ import annotations

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
_installed: list[bool] = []


@contextmanager
def opened_files() -> Iterator[list[FileFacts]]:
    """Note the files that this thread opens through Python within the context; the list is complete after it.

    Python's hook for this cannot be removed again; outside the context it does nothing.
    """
    if not _installed:
        sys.addaudithook(_opening)
        _installed.append(True)
    files: list[FileFacts] = []
    _noting.facts = {}
    try:
        yield files
    finally:
        files += _noting.facts.values()
        _noting.facts = None


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

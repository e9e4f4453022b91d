"""Find out whether calls change anything that a callable holds, and which tensors it holds."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..fingerprint import digest, shows_changes

#: Limits on what a callable may hold: more takes too long to read, and too much memory of the device.
_MOST_OBJECTS, _MOST_BYTES = 100_000, 1 << 28


class Refused(Exception):
    """Error: the callable stays in the worker; the message is a clause such as "it draws from ..."."""


class Held:
    """Digest of everything that a callable can reach: closures, globals, attributes and classes, and their contents.

    ``tensors`` holds the tensors among it.

    Raises:
        Refused: it holds too much, or an object whose changes a digest does not show, such as a random generator.
    """

    def __init__(self, fn: Any) -> None:
        self.tensors: list[Tensor] = []
        self._fn = fn
        self._objects = self._bytes = 0
        try:
            self._digest = digest(fn, self._meet)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"what it holds cannot be read: {error}") from error

    def changed(self) -> bool:
        """Return whether the callable holds anything else than before."""
        try:
            return digest(self._fn) != self._digest
        except Exception:  # it holds something new, which cannot be read
            return True

    def check(self) -> None:
        """Check that the callable holds what it held before.

        Raises:
            Refused: it holds anything else.
        """
        if self.changed():
            raise Refused("it keeps state between calls")

    def _meet(self, value: Any) -> None:
        self._objects += 1
        self._bytes += _nbytes(value)
        if self._objects > _MOST_OBJECTS or self._bytes > _MOST_BYTES:
            raise Refused(f"it holds more than {_MOST_OBJECTS} objects or {_MOST_BYTES >> 20} MiB")
        if not shows_changes(value):
            raise Refused(f"it holds an object whose state cannot be compared (of type {type(value).__name__!r})")
        if isinstance(value, Tensor):
            if value.device.type != "cpu":  # a forked process cannot read it
                raise Refused("it holds a tensor outside the CPU's memory")
            self.tensors.append(value)


def _nbytes(value: Any) -> int:
    numpy = sys.modules.get("numpy")
    if isinstance(value, Tensor):
        return int(value.numel() * value.element_size())
    return int(value.nbytes) if numpy is not None and isinstance(value, numpy.ndarray) else 0

"""Find out whether calls change anything that a callable holds, and which tensors it holds."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...usercode.contents import is_library, is_library_module, modules_of, names_in
from .fingerprint import digest, shows_changes
from .reads import compared_bytes

#: Limits on what a callable may hold: more takes too long to read, and too much memory of the device.
_MOST_OBJECTS, _MOST_BYTES = 10_000, 1 << 28
#: Limit on what must be compared byte by byte at each call.
_MOST_COMPARED = 1 << 20
#: Names of what no digest shows: the process, its environment and its clock, files, and names made while running.
_OUTSIDE = frozenset(
    {"get_worker_info", "environ", "getenv", "getpid", "current_process", "current_thread", "get_ident", "get_rank"}
    | {"time", "time_ns", "monotonic", "perf_counter", "process_time", "now", "today", "open"}
    | {"globals", "locals", "eval", "exec", "__import__", "import_module", "_getframe"}
    | {"initial_seed", "get_rng_state", "getstate"}
)
#: Names of what a user sees, or a log keeps: it is to be there once a sample, in the plain script's order.
_SHOWN = frozenset({"print", "input", "write", "warn", "warning", "info", "debug", "exception", "critical"})

_BY_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")


class Refused(Exception):
    """Error: the callable stays in the worker; the message is a clause such as "it draws from ..."."""


class Held:
    """Digest of everything that a callable can reach: closures, globals, attributes and classes, and their contents.

    ``tensors`` holds the tensors among it, and ``digest`` is the same in each process that holds the same.

    Raises:
        Refused: it holds too much, or an object whose changes a digest does not show, such as a random generator.
    """

    def __init__(self, fn: Any) -> None:
        self.tensors: list[Tensor] = []
        self._fn = fn
        self._objects = self._bytes = self._compared = 0
        try:
            self.digest = digest(fn, self._meet)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"what it holds cannot be read: {error}") from error

    def changed(self) -> bool:
        """Return whether the callable holds anything else than before."""
        try:
            return digest(self._fn) != self.digest
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
        self._compared += compared_bytes(value)
        if self._compared > _MOST_COMPARED:
            raise Refused(f"it holds more than {_MOST_COMPARED >> 20} MiB that others can write into")
        if isinstance(value, types.FunctionType) and not is_library(value):
            names = {*_names_used(value.__code__, value.__globals__)}
            if outside := sorted(_OUTSIDE & names):
                raise Refused(f"it may read what differs from call to call, by {outside[0]!r}")
            if shown := sorted(_SHOWN & names):
                raise Refused(f"it may print or log, by {shown[0]!r}")
            if _imports_or_computes(value):
                raise Refused("it reads a module of yours that it imports itself, or by names that it computes")
        if not shows_changes(value):
            raise Refused(f"it holds an object whose state cannot be compared (of type {type(value).__name__!r})")
        if isinstance(value, Tensor):
            if value.device.type != "cpu":  # a forked process cannot read it
                raise Refused("it holds a tensor outside the CPU's memory")
            self.tensors.append(value)


def _names_used(code: types.CodeType, namespace: dict[str, Any]) -> Iterator[str]:
    """Yield the names of globals and attributes that code uses, without modules: not the ``time`` of ``time.sleep``."""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if isinstance(name, types.CodeType):
            yield from _names_used(name, namespace)
        elif instruction.opname in _BY_NAME:
            is_global = instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            if not (is_global and isinstance(namespace.get(name), types.ModuleType)):
                yield name


def _imports_or_computes(fn: types.FunctionType) -> bool:
    """Return whether a function may read a module of the user's that its globals do not show, or in a hidden way."""
    names = set(names_in(fn.__code__))
    hidden = bool(names & {"getattr", "__dict__", "vars"}) and bool(modules_of(fn))
    return hidden or any(map(_is_users_module, _imported_in(fn.__code__)))


def _imported_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the modules that code imports when it runs; "" for one relative to its package."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield instruction.argval
        elif isinstance(instruction.argval, types.CodeType):
            yield from _imported_in(instruction.argval)


def _is_users_module(name: str) -> bool:
    module = sys.modules.get(name)
    return module is None or not is_library_module(module)


def _nbytes(value: Any) -> int:
    numpy = sys.modules.get("numpy")
    if isinstance(value, Tensor):
        return int(value.numel() * value.element_size())
    return int(value.nbytes) if numpy is not None and isinstance(value, numpy.ndarray) else 0

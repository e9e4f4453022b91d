"""Find out what a callable holds, which tensors are among it, and whether calls or other code change any of it.

The proof compares digests. A worker must tell at each call, in microseconds, whether the callable still reads what it
read when it was proven (:class:`Watched`). Where it does not, the worker runs the callable itself, on the pixels, as
the plain script does. So a change counts from the very sample from which it counts there.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ...usercode.attributes import attribute
from ...usercode.contents import is_library, is_library_module, is_record, modules_of, names_in, reads_in, slot_values
from .fingerprint import digest, shows_changes

#: Bytes up to which a tensor is compared by value. Larger ones are compared by their version, which torch counts up
#: with each write, unless others can write into their memory: numpy, or another process.
BY_VALUE = 1 << 16

_ABSENT = object()
#: Returns whether something is as it was.
_Check = Callable[[], bool]


def read_now(digest: str) -> str:
    """Return a digest of what a callable reads, from a digest of what it holds: its results depend on torch's too."""
    return f"{digest} {torch.get_default_dtype()}"


class Watched:
    """``proven`` is the digest of everything that the callable read when it was proven, in this process or another."""

    def __init__(self, fn: Any, proven: str) -> None:
        self._fn = fn
        self._proven = proven
        self._checks: list[_Check] | None = None
        self._changed = True

    def changed(self) -> bool:
        """Return whether the callable reads anything else now."""
        checks = self._checks
        try:
            if checks is None or not all(check() for check in checks):
                self._look()
        except Exception:  # it reads something new, which cannot be compared
            self._checks, self._changed = None, True
        return self._changed

    def _look(self) -> None:
        checks: list[_Check] = [_same(lambda: [torch.get_default_dtype()])]
        held = digest(self._fn, lambda value: checks.extend(_checks(value)))
        self._changed = read_now(held) != self._proven
        self._checks = checks


def compared_bytes(value: Any) -> int:
    """Return how many bytes of an array or tensor must be compared at each call."""
    if isinstance(value, Tensor):
        return 0 if _counts_its_writes(value) else int(value.numel() * value.element_size())
    return int(value.nbytes) if _is_array(value) else 0


def _counts_its_writes(tensor: Tensor) -> bool:
    large = tensor.numel() * tensor.element_size() > BY_VALUE
    return large and not tensor.is_shared() and tensor.untyped_storage().resizable()


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _checks(value: Any) -> Iterable[_Check]:
    """Yield the checks of one object, not of the objects inside it. What cannot change has none."""
    if isinstance(value, Tensor):
        yield _tensor(value)
    elif _is_array(value):
        kept = value.dtype, value.shape, value.tobytes()
        yield lambda: (value.dtype, value.shape, value.tobytes()) == kept
    elif isinstance(value, list):
        yield _same(partial(list, value))
    elif isinstance(value, dict):
        yield _same(lambda: [*value, *value.values()])
    elif isinstance(value, (set, bytearray)):
        members = value.copy()
        yield lambda: value == members
    elif isinstance(value, types.FunctionType):
        yield from _function(value)
    elif isinstance(value, type):
        if not is_library(value):
            yield _same(lambda: [*vars(value).values(), *value.__bases__])
    elif is_record(value):
        yield _same(lambda: [type(value), *attribute(value, "__dict__", {}).values()])
        if any("__slots__" in vars(cls) for cls in type(value).__mro__):
            yield _same(lambda: list(slot_values(value).values()))


def _same(parts: Callable[[], Sequence[Any]]) -> _Check:
    """Return a check that the parts are the same objects as now."""
    kept = parts()

    def check() -> bool:
        now = parts()
        return len(now) == len(kept) and all(map(is_, now, kept))

    return check


def _function(fn: types.FunctionType) -> Iterable[_Check]:
    yield _same(lambda: [fn.__code__, fn.__defaults__, fn.__kwdefaults__, *vars(fn).values()])
    if fn.__closure__:
        yield _same(lambda: [_content(cell) for cell in fn.__closure__ or ()])
    if not is_library(fn):
        names = reads_in(fn.__code__)
        for namespace in (fn.__globals__, *map(vars, modules_of(fn))):
            yield _same(partial(_named, namespace, names))


def _named(namespace: dict[str, Any], names: Sequence[str]) -> list[Any]:
    return [namespace.get(name, _ABSENT) for name in names]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _ABSENT


def _tensor(tensor: Tensor) -> _Check:
    kind = tensor.dtype, tensor.shape, tensor.stride()
    if _counts_its_writes(tensor):
        version, place = tensor._version, tensor.data_ptr()
        return lambda: tensor._version == version and tensor.data_ptr() == place and tensor.shape == kind[1]
    bits = _bits(tensor).clone()

    def check() -> bool:
        return (tensor.dtype, tensor.shape, tensor.stride()) == kind and torch.equal(_bits(tensor), bits)

    return check


def _bits(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes, which are equal even where it is not a number."""
    return tensor.detach().as_subclass(Tensor).contiguous().reshape(-1).view(torch.uint8)


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

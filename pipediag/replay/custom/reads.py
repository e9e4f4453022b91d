"""Tell at each call, in microseconds, whether a callable still reads what it read when it was proven.

The worker asks before it records a call. Where the answer is no, it runs the callable itself, on the pixels, as the
plain script does. So a change counts from the very sample from which it counts there.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ...usercode.attributes import attribute
from ...usercode.contents import is_library, is_record, modules_of, reads_in, slot_values
from .fingerprint import digest

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

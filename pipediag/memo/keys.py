"""Say what a call's result depends on: files by their state, content by its digest, simple values, and code."""

from __future__ import annotations

import functools
import hashlib
import io
import marshal
import os
import platform
import stat
import sys
from pathlib import PosixPath, PurePosixPath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..clock import time
from ..frames import in_package
from ..usercode.attributes import is_exactly

#: Seconds after a change of a file from which another change is sure to get another time, on any file system. Until
#: then nothing is remembered of the file.
SETTLED = 2.5
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_PATHS = (PosixPath, PurePosixPath)
_DEPTH = 4
_PYTHON = platform.python_version()


class NoKey(Exception):
    """Error: it is not certain what identifies the input, so the call is made plainly."""


def digest(*parts: Any) -> bytes:
    """Return the key for simple values."""
    # Up to version 2, marshal's bytes depend on the values only.
    return hashlib.sha256(marshal.dumps((_PYTHON, parts), 2)).digest()[:16]


def path_state(path: Any) -> tuple[int, ...]:
    """Return the state of a file by its name.

    Raises:
        NoKey: it is not a file, or has just been changed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise NoKey
    try:
        return _state(os.stat(path))
    except (OSError, ValueError):
        raise NoKey from None


def file_state(file: Any) -> tuple[Any, ...]:
    """Return what an open binary file reads, without reading a file on a disk.

    Raises:
        NoKey: it is neither a file on a disk nor bytes in memory, but an object of another class.
    """
    if type(file) is io.BytesIO:
        return (*content(file.getbuffer()), file.tell())
    if type(file) is io.BufferedReader and type(file.raw) is io.FileIO and not file.closed:
        return (*_state(os.fstat(file.fileno())), file.tell())
    raise NoKey


def content(data: Any) -> tuple[Any, ...]:
    """Return length and digest of a contiguous buffer."""
    view = memoryview(data)
    if not view.contiguous:
        raise NoKey
    return view.nbytes, hashlib.sha256(view).digest()


def simple(value: Any, depth: int = _DEPTH) -> Any:
    """Return a simple value with its type, in a form for :func:`digest`.

    Raises:
        NoKey: the value is not simple.
    """
    kind = type(value)
    if is_exactly(value, *_SIMPLE):
        return kind.__name__, value
    if is_exactly(value, tuple, list) and depth:
        return kind.__name__, tuple(simple(item, depth - 1) for item in value)
    if kind is dict and depth:
        return "dict", tuple((simple(key, 1), simple(item, depth - 1)) for key, item in value.items())
    named = isinstance(value, type) and value.__module__ in ("builtins", "numpy")
    if named or (kind.__module__ in ("numpy", "numpy.dtypes", "torch") and kind.__name__.lower().endswith("dtype")):
        return "type", repr(value)
    raise NoKey


def argument(value: Any, depth: int = _DEPTH) -> Any:
    """Return what identifies an argument of the user's function: also files by name, bytes, arrays and tensors.

    Raises:
        NoKey: nothing does for certain.
    """
    kind = type(value)
    if is_exactly(value, str, *_PATHS):
        return kind.__qualname__, os.fspath(value), _state_if_any(value)
    if is_exactly(value, bytes):
        return ("bytes", *content(value), _state_if_any(value))
    if is_exactly(value, bytearray):
        return ("bytearray", *content(value))
    if is_exactly(value, tuple, list) and depth:
        return kind.__name__, tuple(argument(item, depth - 1) for item in value)
    if kind is dict and depth:
        return "dict", tuple((argument(key, 1), argument(item, depth - 1)) for key, item in value.items())
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray:
        if value.dtype.hasobject or not value.flags.c_contiguous:
            raise NoKey
        return ("ndarray", repr(value.dtype), value.shape, *content(value.reshape(-1).view(numpy.uint8)))
    if torch is not None and kind is torch.Tensor:
        return tensor(value)
    return simple(value, depth)


def tensor(value: Any) -> tuple[Any, ...]:
    """Return what identifies a tensor of the CPU."""
    import torch

    plain = value.device.type == "cpu" and value.layout == torch.strided and not value.requires_grad
    if not plain or not value.is_contiguous() or value.is_conj() or value.is_neg():
        raise NoKey
    return ("tensor", str(value.dtype), tuple(value.shape), *content(value.reshape(-1).view(torch.uint8).numpy()))


def _state_if_any(path: Any) -> tuple[int, ...] | None:
    """Return the state of a file; None if there is none of that name."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _state(found)


def _state(found: os.stat_result) -> tuple[int, ...]:
    # The time of the last change of the inode shows changes of the content whose modification time was set back.
    if not stat.S_ISREG(found.st_mode) or time.time() - max(found.st_ctime, found.st_mtime) < SETTLED:
        raise NoKey
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


_DEPTH = 8


@functools.lru_cache(maxsize=256)
def code_of(function: Any) -> bytes:
    """Return a digest that changes with a function's code and with that of the user's functions that it refers to.

    Of libraries, names and versions count.
    """
    digest = hashlib.sha256()
    _add(function, digest, set(), _DEPTH)
    return digest.digest()


def _add(value: Any, digest: Any, seen: set[int], depth: int) -> None:
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    value = getattr(value, "__func__", value) if isinstance(value, MethodType) else value
    if isinstance(value, functools.partial):
        _add_all((value.func, *value.args, *value.keywords.values()), digest, seen, depth)
    elif isinstance(value, FunctionType):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
        if not _is_of_a_library(value.__code__.co_filename):
            _add_code(value, digest, seen, depth)
        elif version := getattr(sys.modules.get(value.__module__.partition(".")[0]), "__version__", ""):
            digest.update(str(version).encode())
    elif isinstance(value, type):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
        module = sys.modules.get(value.__module__)
        if not _is_of_a_library(getattr(module, "__file__", None)):
            _add_all([*vars(value).values()], digest, seen, depth)
    elif isinstance(value, (staticmethod, classmethod)):
        _add(value.__func__, digest, seen, depth)
    else:
        try:
            digest.update(repr(simple(value)).encode())
        except NoKey:
            digest.update(type(value).__qualname__.encode())


def _add_all(values: Any, digest: Any, seen: set[int], depth: int) -> None:
    for value in values:
        _add(value, digest, seen, depth - 1)


def _add_code(function: FunctionType, digest: Any, seen: set[int], depth: int) -> None:
    names = _add_bytecode(function.__code__, digest)
    _add_all(
        (function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None)), digest, seen, depth
    )
    for cell in function.__closure__ or ():
        try:
            _add(cell.cell_contents, digest, seen, depth - 1)
        except ValueError:  # empty yet
            continue
    for name in names:
        found = function.__globals__.get(name)
        if not isinstance(found, ModuleType):
            _add(found, digest, seen, depth - 1)
        elif _is_of_a_library(getattr(found, "__file__", None)):
            digest.update(f"{found.__name__} {getattr(found, '__version__', '')}".encode())
        else:  # any of the names may be an attribute of it
            _add_all((vars(found).get(other) for other in names), digest, seen, depth)


def _add_bytecode(code: CodeType, digest: Any) -> list[str]:
    """Add a code object with those inside it; return the names that they use."""
    digest.update(code.co_code)
    names = [*code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _add_bytecode(constant, digest)
        else:
            digest.update(repr(constant).encode())
    digest.update(repr(names).encode())
    return names


def _is_of_a_library(file: str | None) -> bool:
    return file is None or in_package(file) != ""

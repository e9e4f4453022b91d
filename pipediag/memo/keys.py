"""Say what a call's result depends on: files by their state, content by its digest, simple values by themselves."""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import platform
import stat
import sys
import time
from pathlib import PosixPath, PurePosixPath
from typing import Any

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
    if kind in _SIMPLE:
        return kind.__name__, value
    if kind in (tuple, list) and depth:
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
    if kind in (str, *_PATHS):
        return kind.__qualname__, os.fspath(value), _state_if_any(value)
    if kind in (bytes, bytearray):
        return (kind.__name__, *content(value))
    if kind in (tuple, list) and depth:
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

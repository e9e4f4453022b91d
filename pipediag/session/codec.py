"""Read a JSON file within bounds of time and memory, check its version, and build dataclasses from its data; open only
own files."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from ..errors import SessionFileError

_T = TypeVar("_T")

#: Version of a session's JSON form.
SCHEMA_VERSION = 1
#: Largest numbers: a tensor's float32 values, and counts in 64 bits.
_LARGEST_FLOAT, _LARGEST_INT = 1e39, 1 << 63
#: Bounds of a file: bytes, values, and depth of nesting. A long session reaches a tenth of each.
MOST_BYTES, MOST_VALUES, DEEPEST = 16 << 20, 200_000, 40
#: pipediag measures no numbers with more digits.
_MOST_DIGITS = 18
#: JSON as Python has it, also if a script replaces the functions of its module while it is measured.
dumps, loads = json.JSONEncoder(default=str).encode, json.JSONDecoder().decode
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def check_version(version: Any) -> None:
    """Check the version of a session's JSON form; None means the present one.

    Raises:
        SessionFileError: a newer pipediag wrote it.
        ValueError: there is no such version.
    """
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SessionFileError("the session was written by a newer pipediag; update this one")
    if version not in (None, SCHEMA_VERSION) or isinstance(version, (bool, float)):
        raise ValueError(f"its schema_version is {version!r:.20}")


def build(cls: type[_T], data: Any) -> _T:
    """Build a dataclass from plain data. Ignore unknown keys, so that versions may differ.

    Raises:
        TypeError, ValueError: the data does not fit the class.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{cls.__name__} is not an object")
    hints = _hints(typing.cast(Hashable, cls))
    return cls(**{name: _fit(hints[name], value, name) for name, value in data.items() if name in hints})


@functools.cache
def _hints(cls: Hashable) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _fit(hint: Any, value: Any, name: str) -> Any:
    """Return the value converted to its annotated type."""
    arguments = typing.get_args(hint)
    kind = typing.get_origin(hint) or hint
    if kind is Any:
        return value
    if kind in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _fit(arguments[0], value, name)
    if dataclasses.is_dataclass(kind):
        return build(kind, value)  # type: ignore[arg-type]
    if isinstance(value, int) and abs(value) >= _LARGEST_INT:
        raise ValueError(f"{name} is too large")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is tuple:
        return _fit_tuple(arguments, value, name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {value!r:.40}")
    if kind is float and not (math.isfinite(value) and abs(value) <= _LARGEST_FLOAT):
        raise ValueError(f"{name} is {value:g}")
    if kind is list:
        return [_fit(arguments[0], item, name) for item in value]
    if kind is dict:
        return {key: _fit(arguments[1], item, name) for key, item in value.items()}
    return value


def _fit_tuple(kinds: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    """Return a list as a tuple; if ``kinds`` ends with an ellipsis, all its items are of the first kind."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is {value!r:.40}")
    kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
    if len(kinds) != len(value):
        raise TypeError(f"{name} has {len(value)} entries")
    return tuple(_fit(kind, item, name) for kind, item in zip(kinds, value, strict=True))


def check_entries(data: Mapping[str, Any], kinds: Mapping[str, Any], name: str) -> None:
    """Check those entries of ``data`` whose types are known; numbers must not be negative.

    Raises:
        TypeError, ValueError: an entry is of another type.
    """
    for key, value in data.items():
        if key in kinds and isinstance(_fit(kinds[key], value, f"{name}.{key}"), float) and value < 0:
            raise ValueError(f"{name}.{key} is {value:g}")


def read_json(path: str) -> Any:
    """Return the content of the JSON file at ``path``: every number is finite, all text can be written as UTF-8.

    Raises:
        SessionFileError: the file cannot be read, is no regular file, or is beyond the bounds; the message names it.
    """
    try:
        content = _content(path)
        data = json.loads(content.decode("utf-8-sig"), parse_int=_whole, parse_float=_finite, parse_constant=_finite)
        if _depth(data) > DEEPEST:
            raise RecursionError
    except OSError as error:
        raise SessionFileError(f"{path}: cannot be read ({error.strerror})") from None
    except SessionFileError as error:
        raise SessionFileError(f"{path}: {error}") from None
    except RecursionError:
        raise SessionFileError(f"{path}: not a file of pipediag's (it is nested too deep)") from None
    except ValueError as error:
        raise SessionFileError(f"{path}: not JSON ({error!s:.80})") from None
    return _writable(data) if _SURROGATE.search(content) else data


def opened_own(path: str, flags: int) -> int:
    """Open a regular file of this user, made with mode 0600 if ``flags`` make one. It waits for nobody.

    Raises:
        OSError: it cannot be opened, is another user's, or no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    facts = os.fstat(descriptor)
    if facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "it is another user's, or no regular file", path)


def _content(path: str) -> bytes:
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SessionFileError("cannot be read (it is not a regular file)")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SessionFileError(f"not a file of pipediag's (it is larger than {MOST_BYTES >> 20} MB)")
    if sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise SessionFileError(f"not a file of pipediag's (it holds more than {MOST_VALUES} values)")
    return content


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"the number {digits:.20}... is too large")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.20} is no number")
    return number


def _depth(data: Any) -> int:
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            value
            for one in level
            if isinstance(one, (dict, list))
            for value in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _writable(data: Any) -> Any:
    """Return the data with lone surrogates escaped: they stand for bytes of file names and cannot be written."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, list):
        return [_writable(value) for value in data]
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    return data

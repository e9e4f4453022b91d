"""Build dataclasses from the plain data of a JSON file: check types, ignore unknown keys."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Largest numbers: a tensor's float32 values, and counts in 64 bits.
_LARGEST_FLOAT, _LARGEST_INT = 1e39, 1 << 63


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

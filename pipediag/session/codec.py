"""Build dataclasses from the plain data of a JSON file: check types, ignore unknown keys."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def build(cls: type[_T], data: Any) -> _T:
    """Build a dataclass from plain data. Ignore unknown keys, so that versions may differ.

    Raises:
        TypeError, ValueError: the data does not fit the class.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{cls.__name__} is not an object")
    hints = typing.get_type_hints(cls)
    fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {name: _fit(hints[name], value, name) for name, value in data.items() if name in fields}
    return cls(**known)


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
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {value!r:.40}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{name} is not finite")
    if kind is list:
        return [_fit(arguments[0], item, name) for item in value]
    if kind is dict:
        return {key: _fit(arguments[1], item, name) for key, item in value.items()}
    return value

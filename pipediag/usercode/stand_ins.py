"""Put an object in a transform's place that is the transform in all but its calls.

A dataset may set an attribute of its transform, ask for its class, its length or its items, copy it or pickle it. All
of that reaches the transform. Only ``is``, ``type()`` and ``id()`` tell the two apart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .attributes import ByObject, attribute


def standing_in(original: Any, call: Callable[..., Any]) -> Any:
    """Return a stand-in for ``original`` whose calls are calls of ``call``."""
    kind = type(original)
    stands = _KINDS.get(kind)
    if stands is None:
        # Python looks these methods up in the class, so it must have those of the original's class and no others.
        methods = {name: _forwarded(name) for name in dir(kind) if _is_looked_up_in_the_class(kind, name)}
        stands = type(kind.__name__, (_StandIn,), {**methods, "__slots__": ()})
        _KINDS.set(kind, stands)
    made: Any = object.__new__(stands)
    _ORIGINAL.__set__(made, original)
    _CALL.__set__(made, call)
    return made


class _StandIn:
    __slots__ = ("__weakref__", "_call", "_original")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _CALL.__get__(self)(*args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__reduce__", "__reduce_ex__"):
            return lambda *version: (_itself, (_original_of(self),))
        return getattr(_original_of(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_original_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_original_of(self), name)

    def __copy__(self) -> Any:
        return copy.copy(_original_of(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_original_of(self), memo)

    def __eq__(self, other: object) -> bool:
        return bool(_original_of(self) == (_original_of(other) if issubclass(type(other), _StandIn) else other))

    def __hash__(self) -> int:
        return hash(_original_of(self))

    def __repr__(self) -> str:
        return repr(_original_of(self))

    def __str__(self) -> str:
        return str(_original_of(self))

    def __dir__(self) -> list[str]:
        return dir(_original_of(self))


_ORIGINAL: Any = vars(_StandIn)["_original"]
_CALL: Any = vars(_StandIn)["_call"]
#: The stand-ins' class for each class of an original.
_KINDS: ByObject[type] = ByObject()
#: Methods that have no part in what an object does, or that belong to its class.
_OF_NO_OBJECT = frozenset(
    ("__del__", "__getattr__", "__get__", "__set__", "__delete__", "__set_name__", "__class_getitem__")
)


def _original_of(stand_in: Any) -> Any:
    return _ORIGINAL.__get__(stand_in)


def _itself(value: Any) -> Any:
    return value


def _is_looked_up_in_the_class(kind: type, name: str) -> bool:
    special = name.startswith("__") and name.endswith("__")
    return special and name not in _OF_NO_OBJECT and not hasattr(_StandIn, name) and callable(attribute(kind, name))


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = _original_of(self)
        return getattr(type(original), name)(original, *args, **kwargs)

    return forward

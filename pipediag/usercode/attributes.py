"""Hold values by object, and read attributes and types of the user's objects, whose protocols may raise anything."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, Generic, TypeVar


def attribute(obj: Any, name: str, otherwise: Any = None) -> Any:
    """Return an attribute, or ``otherwise`` if the object has none, or raises another error than it should."""
    try:
        return getattr(obj, name, otherwise)
    except Exception:
        return otherwise


def has_attribute(obj: Any, name: str) -> bool:
    try:
        return hasattr(obj, name)
    except Exception:
        return False


def is_a(obj: Any, kinds: type | tuple[type, ...]) -> bool:
    """Return ``isinstance(obj, kinds)``; if the object's ``__class__`` or its class's class raises, what the bases of
    its type say."""
    try:
        return isinstance(obj, kinds)
    except Exception:
        return any(_derives(base, kinds) for base in _MRO.__get__(type(obj)))


#: Reads the bases of a class past its metaclass.
_MRO: Any = vars(type)["__mro__"]


def _derives(kind: type, kinds: type | tuple[type, ...]) -> bool:
    try:
        return issubclass(kind, kinds)
    except Exception:  # it is the class whose own class raises
        return False


def is_exactly(obj: Any, *kinds: type) -> bool:
    """Return whether the object's type is one of these and no subclass.

    Types are told apart by identity: the metaclass of a user's class may compare and hash them in another way, or fail.
    """
    kind = type(obj)
    return any(kind is one for one in kinds)


def is_routine(obj: Any) -> bool:
    """Return whether the object is a function or method of any kind."""
    try:
        return inspect.isroutine(obj)
    except Exception:  # its ``__class__`` raises: it is an instance of the user's class
        return False


def unwrapped(function: Any) -> Any:
    """Return the function that decorators have wrapped, or the object itself if it is none."""
    try:
        return inspect.unwrap(function)
    except Exception:
        return function


_T = TypeVar("_T")


class ByObject(Generic[_T]):
    """A value for each object. Objects are told apart by identity, not by equality, and are not kept alive."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], _T]] = {}

    def __contains__(self, one: Any) -> bool:
        return id(one) in self._held

    def get(self, one: Any) -> _T | None:
        return self._held[id(one)][1] if one in self else None

    def set(self, one: Any, value: _T) -> None:
        """Hold the value until the object is gone.

        Raises:
            TypeError: the object's type allows no weak references.
        """
        number = id(one)
        self._held[number] = weakref.ref(one, lambda _: self._held.pop(number, None)), value

    def pop(self, one: Any) -> None:
        """Forget an object, if it is known."""
        self._held.pop(id(one), None)

    def objects(self) -> list[Any]:
        return [one for held, _ in list(self._held.values()) if (one := held()) is not None]


class HeldByObject(Generic[_T]):
    """A value for each object, held by the object itself, which needs a ``__dict__``: both are freed together, even if
    the value leads back to the object. A copy of the object has no value."""

    def __init__(self) -> None:
        self._objects: list[weakref.ref[Any]] = []

    def __contains__(self, one: Any) -> bool:
        held = one.__dict__.get(_HELD)
        return held is not None and held.by is self and held.of is not None and held.of() is one

    def get(self, one: Any) -> _T | None:
        return one.__dict__[_HELD].value if one in self else None

    def set(self, one: Any, value: _T) -> None:
        held = one.__dict__[_HELD] = _Held()
        held.by, held.of, held.value = self, weakref.ref(one), value
        self._objects = [*(other for other in self._objects if other() is not None), held.of]

    def clear(self) -> None:
        for one in (held() for held in self._objects):
            if one is not None:
                one.__dict__.pop(_HELD, None)
        self._objects.clear()


_HELD = "_pipediag"


class _Held:
    by: Any = None
    of: weakref.ref[Any] | None = None
    value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:  # what is pickled or copied with the object holds nothing
        return _Held, ()

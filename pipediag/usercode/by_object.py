"""Hold a value for each object, by identity, without keeping the object alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

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
        """Return the objects that live."""
        return [one for held, _ in list(self._held.values()) if (one := held()) is not None]

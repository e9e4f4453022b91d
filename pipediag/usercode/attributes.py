"""Read attributes of the user's objects, whose ``__getattr__`` may raise anything."""

from __future__ import annotations

import inspect
from typing import Any


def attribute(obj: Any, name: str, otherwise: Any = None) -> Any:
    """Return an attribute, or ``otherwise`` if the object has none, or raises another error than it should."""
    try:
        return getattr(obj, name, otherwise)
    except Exception:
        return otherwise


def has_attribute(obj: Any, name: str) -> bool:
    """Return whether the object has an attribute."""
    try:
        return hasattr(obj, name)
    except Exception:
        return False


def unwrapped(function: Any) -> Any:
    """Return the function that decorators have wrapped, or the object itself if it is none."""
    try:
        return inspect.unwrap(function)
    except Exception:
        return function

"""Patch a library's own function within a context, whoever patches it in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from ..patches import alive, replaced


def layered(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> AbstractContextManager[None]:
    """Replace an attribute by ``make(the present one)`` within the context.

    Do nothing if others have replaced the library's own function already: what theirs does is not known.
    """
    plain = alive(getattr(owner, name, None))
    if plain is None or not _is_the_librarys(plain, owner):
        return nullcontext()
    return replaced(owner, name, wraps(plain)(make(plain)))


def _is_the_librarys(function: Any, owner: Any) -> bool:
    """Return whether a function's code is in the package that has it; True for compiled ones."""
    if not isinstance(function, FunctionType):
        return True
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "?"
    own = os.path.dirname(file) + os.sep if os.path.basename(file) == "__init__.py" else file
    return not hasattr(function, "__wrapped__") and function.__code__.co_filename.startswith(own)

"""Patch a library's own function within a context, whoever patches it in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from ..patches import live


@contextmanager
def layered(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace an attribute by ``make(the present one)`` within the context.

    A patch that others put around it in the meantime stays, and then calls what was there before. Do nothing if others
    have replaced the library's own function already: what theirs does is not known.
    """
    plain = getattr(owner, name, None)
    if plain is None or not _is_the_librarys(plain, owner):
        yield
        return
    stand_in, active = make(plain), True

    @wraps(plain)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return stand_in(*args, **kwargs) if active else plain(*args, **kwargs)

    own = vars(owner).get(name)
    setattr(owner, name, patched)
    with live(f"{owner!r}.{name}"):
        try:
            yield
        finally:
            active = False
            if vars(owner).get(name) is patched:
                if own is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)


def _is_the_librarys(function: Any, owner: Any) -> bool:
    """Return whether a function's code is in the package that has it; True for compiled ones."""
    if not isinstance(function, FunctionType):
        return True
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "?"
    own = os.path.dirname(file) + os.sep if os.path.basename(file) == "__init__.py" else file
    return not hasattr(function, "__wrapped__") and function.__code__.co_filename.startswith(own)
